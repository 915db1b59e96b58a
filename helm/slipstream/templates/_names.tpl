{{/* Names and labels. */}}

{{- define "slipstream.name" -}}
{{- include "slipstream.short" (default .Chart.Name .Values.nameOverride) -}}
{{- end -}}

{{/* Leaves room for what names end in, -router-headless and the like; texts that differ at their end still do. */}}
{{- define "slipstream.short" -}}
{{- if gt (len .) 43 -}}
{{- printf "%s-%s" (trunc 34 . | trimSuffix "-") (sha256sum . | trunc 8) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "slipstream.short" .Values.fullnameOverride -}}
{{- else if contains (include "slipstream.name" .) .Release.Name -}}
{{- include "slipstream.short" .Release.Name -}}
{{- else -}}
{{- include "slipstream.short" (printf "%s-%s" .Release.Name (include "slipstream.name" .)) -}}
{{- end -}}
{{- end -}}

{{/* Name of a part (.part) of the release (.root): a role, or redis and the like. */}}
{{- define "slipstream.part" -}}
{{- printf "%s-%s" (include "slipstream.fullname" .root) .part -}}
{{- end -}}

{{- define "slipstream.selector" -}}
app.kubernetes.io/name: {{ include "slipstream.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "slipstream.labels" -}}
{{ include "slipstream.selector" . }}
app.kubernetes.io/part-of: slipstream
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The metadata of an object of a part; .name where it is not that of the part, .labels and .annotations beside those of all. */}}
{{- define "slipstream.metadata" -}}
name: {{ default (include "slipstream.part" .) .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "slipstream.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* An image (.image) with the tag that it has by default (.tag). */}}
{{- define "slipstream.image" -}}
{{- $registry := default .root.Values.image.registry .image.registry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .tag .image.tag }}{{ end -}}
{{- end -}}

{{- define "slipstream.role.image" -}}
{{- $values := index .root.Values .part -}}
{{- $tag := default .root.Chart.AppVersion .root.Values.image.tag -}}
{{- if $values.gpu.count }}{{ $tag = printf "%s%s" $tag .root.Values.image.cudaSuffix }}{{ end -}}
{{- include "slipstream.image" (dict "root" .root "image" $values.image "tag" $tag) -}}
{{- end -}}

{{- define "slipstream.role.serviceAccount" -}}
{{- $account := (index .root.Values .part).serviceAccount -}}
{{- if $account.create -}}
{{- default (include "slipstream.part" .) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

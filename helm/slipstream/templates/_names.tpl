{{/* Names and labels. */}}

{{- define "slipstream.name" -}}
{{- include "slipstream.short" (dict "text" (default .Chart.Name .Values.nameOverride) "most" 43) -}}
{{- end -}}

{{/* A text (.text) of so many characters at most (.most); texts that differ at their end still do. */}}
{{- define "slipstream.short" -}}
{{- if gt (len .text) .most -}}
{{- printf "%s-%s" (trunc (sub .most 9 | int) .text | trimSuffix "-") (sha256sum .text | trunc 8) -}}
{{- else -}}
{{- .text -}}
{{- end -}}
{{- end -}}

{{/* 43 characters leave room for what names end in, -router-headless and the like. */}}

{{- define "slipstream.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "slipstream.short" (dict "text" .Values.fullnameOverride "most" 43) -}}
{{- else if contains (include "slipstream.name" .) .Release.Name -}}
{{- include "slipstream.short" (dict "text" .Release.Name "most" 43) -}}
{{- else -}}
{{- include "slipstream.short" (dict "text" (printf "%s-%s" .Release.Name (include "slipstream.name" .)) "most" 43) -}}
{{- end -}}
{{- end -}}

{{/* Name of a part (.part) of the release (.root): a role, or redis and the like. */}}
{{- define "slipstream.part" -}}
{{- printf "%s-%s" (include "slipstream.fullname" .root) .part -}}
{{- end -}}

{{/* Whether a part is there once for each model, and the values are those of one. */}}
{{- define "slipstream.isOfModel" -}}
{{- if and (has .part (list "draft" "target" "test")) (hasKey .root.Values "model") -}}yes{{- end -}}
{{- end -}}

{{/* Name of an object of a part, with the model where it is one of a model's. With 46 characters at most, Kubernetes
cuts no name of a pod short: each is NAME, and twice a dash and a text without one, which tells models apart. */}}
{{- define "slipstream.object" -}}
{{- if include "slipstream.isOfModel" . -}}
{{- include "slipstream.short" (dict "text" (printf "%s-%s" (include "slipstream.part" .) .root.Values.model.object) "most" 46) -}}
{{- else -}}
{{- include "slipstream.part" . -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.selector" -}}
app.kubernetes.io/name: {{ include "slipstream.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- if include "slipstream.isOfModel" . }}
slipstream/model: {{ .root.Values.model.object | quote }}
{{- end }}
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

{{/* The metadata of an object of a part; .name where it is another one, .labels and .annotations beside those of all. */}}
{{- define "slipstream.metadata" -}}
name: {{ default (include "slipstream.object" .) .name }}
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

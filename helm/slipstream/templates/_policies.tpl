{{/* Rules of network policies. */}}

{{/* Pods of parts (.parts) of this release, as peers. */}}
{{- define "slipstream.policy.pods" -}}
{{- $hosts := list -}}
{{- range $part := .parts }}{{ $hosts = append $hosts (include "slipstream.role.host" (dict "root" $.root "part" $part)) }}{{ end -}}
{{- range $part := uniq $hosts }}
- podSelector:
    matchLabels:
      {{- include "slipstream.selector" (dict "root" $.root "part" $part) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* A rule of a policy: peers (.peers, none for all) at TCP ports (.ports). */}}
{{- define "slipstream.policy.rule" -}}
- ports:
    {{- range .ports }}
    - protocol: TCP
      port: {{ . }}
    {{- end }}
  {{- with .peers }}
  {{ $.side }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "slipstream.policy.ingress" -}}
{{- $values := index .root.Values .part -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $callers := list -}}
{{- if eq .part "http" -}}
{{- $callers = $policy.httpFrom -}}
{{- else if eq .part "router" -}}
{{- if $policy.routerFrom -}}
{{- $callers = concat $policy.routerFrom (include "slipstream.policy.pods" (dict "root" .root "parts" (ternary (list "test" "http") (list "test") .root.Values.http.enabled)) | fromYamlArray) -}}
{{- end -}}
{{- else -}}
{{- $callers = concat (include "slipstream.policy.pods" (dict "root" .root "parts" (ternary (list "router" "draft") (list "router") (eq .part "target"))) | fromYamlArray) $policy.engineFrom -}}
{{- end -}}
{{- $isShared := and (eq .part "target") (include "slipstream.draft.shared" .root) -}}
{{- $draft := dict "root" .root "part" "draft" -}}
{{ include "slipstream.policy.rule" (dict "side" "from" "peers" $callers "ports" (list (include "slipstream.role.port" . | int))) }}
{{- if $isShared }}
{{ include "slipstream.policy.rule" (dict "side" "from" "peers" (concat (include "slipstream.policy.pods" (dict "root" .root "parts" (list "router")) | fromYamlArray) $policy.engineFrom) "ports" (list (include "slipstream.role.port" $draft | int))) }}
{{- end }}
{{- if .root.Values.metrics.enabled }}
{{- $ports := list (include "slipstream.role.metricsPort" . | int) }}
{{- if $isShared }}{{ $ports = append $ports (include "slipstream.role.metricsPort" $draft | int) }}{{ end }}
{{ include "slipstream.policy.rule" (dict "side" "from" "peers" $policy.metricsFrom "ports" $ports) }}
{{- end }}
{{- with $values.networkPolicy.extraIngress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slipstream.policy.egress" -}}
{{- $values := index .root.Values .part -}}
{{- $policy := .root.Values.networkPolicy -}}
- ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
  {{- with $policy.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if and (eq .part "http") .root.Values.router.enabled }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" (include "slipstream.policy.pods" (dict "root" .root "parts" (list "router")) | fromYamlArray) "ports" (list (.root.Values.router.ports.grpc | int))) }}
{{- end }}
{{- if or (eq .part "router") (has "draft" (include "slipstream.role.residents" . | fromJsonArray)) }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" (include "slipstream.policy.pods" (dict "root" .root "parts" (list "target")) | fromYamlArray) "ports" (list (.root.Values.target.ports.grpc | int))) }}
{{- with $policy.engineTo }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" . "ports" (ternary (list (int $.root.Values.target.ports.grpc) (int $.root.Values.draft.ports.grpc)) (list (int $.root.Values.target.ports.grpc)) (eq $.part "router"))) }}
{{- end }}
{{- end }}
{{- if and (eq .part "router") .root.Values.draft.enabled }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" (include "slipstream.policy.pods" (dict "root" .root "parts" (list "draft")) | fromYamlArray) "ports" (list (.root.Values.draft.ports.grpc | int))) }}
{{- end }}
{{- if eq .part "http" }}
{{- else if .root.Values.redis.enabled }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" (include "slipstream.policy.pods" (dict "root" .root "parts" (list "redis")) | fromYamlArray) "ports" (list (.root.Values.redis.port | int))) }}
{{- else if .root.Values.redis.external.url }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" $policy.redisTo "ports" (include "slipstream.redis.ports" .root | fromJsonArray)) }}
{{- end }}
{{- if and .root.Values.modelStore.pull.enabled (not .root.Values.modelStore.readOnly) (include "slipstream.role.models" . | fromJsonArray) }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" $policy.hubTo "ports" (include "slipstream.hub.ports" .root | fromJsonArray)) }}
{{- end }}
{{- if .root.Values.telemetry.otlp.endpoint }}
{{ include "slipstream.policy.rule" (dict "side" "to" "peers" $policy.otlpTo "ports" (include "slipstream.otlp.ports" .root | fromJsonArray)) }}
{{- end }}
{{- with $values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

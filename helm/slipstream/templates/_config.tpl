{{/* Files of options: a table per service, in TOML. What operators write goes before what is only usual. */}}

{{- define "slipstream.toml.value" -}}
{{- if kindIs "bool" . -}}
{{- . -}}
{{- else if kindIs "string" . -}}
{{- toJson . -}}
{{- else if kindIs "slice" . -}}
[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "slipstream.toml.value" $item }}{{ end }}]
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* A table (.name) of values (.values) that are not null. */}}
{{- define "slipstream.toml.table" -}}
[{{ .name }}]
{{- range $key, $value := .values }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "slipstream.toml.value" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.config.store" -}}
{{- with include "slipstream.redis.url" .root -}}
store_url: {{ . | quote }}
store_prefix: {{ $.root.Values.redis.prefix | quote }}
{{- with include "slipstream.redis.secret" $.root }}
store_password_file: /etc/slipstream/redis/password
{{- end }}
{{- if $.root.Values.redis.enabled }}
store_user: slipstream
{{- if $.root.Values.tls.enabled }}
store_ca: /etc/slipstream/tls/ca.crt
store_cert: /etc/slipstream/tls/tls.crt
store_key: /etc/slipstream/tls/tls.key
{{- end }}
{{- else }}
{{- with $.root.Values.redis.external }}
{{- if .user }}
store_user: {{ .user | quote }}
{{- end }}
{{- if .caSecret }}
store_ca: /etc/slipstream/redis-ca/ca.crt
{{- end }}
{{- if .clientCertSecret }}
store_cert: /etc/slipstream/redis-cert/tls.crt
store_key: /etc/slipstream/redis-cert/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.config.tls" -}}
{{- if .root.Values.tls.enabled -}}
{{- $folder := printf "/etc/slipstream/%s" (include "slipstream.role.nameInPod" (merge (dict "name" "tls") .)) -}}
tls_cert: {{ $folder }}/tls.crt
tls_key: {{ $folder }}/tls.key
{{- if or (include "slipstream.role.isEngine" .) (and (eq .part "router") .root.Values.tls.requireClientCertificates) }}
tls_client_ca: {{ $folder }}/ca.crt
{{- end }}
{{- if include "slipstream.role.isEngine" . }}
tls_client_names:
  - {{ include "slipstream.tls.name" (dict "root" .root "part" "router") | quote }}
{{- end }}
{{- if eq .part "target" }}
tls_draft_names:
  - {{ include "slipstream.tls.name" (dict "root" .root "part" "draft") | quote }}
{{- else }}
peer_ca: {{ $folder }}/ca.crt
peer_cert: {{ $folder }}/tls.crt
peer_key: {{ $folder }}/tls.key
{{- if eq .part "http" }}
peer_router_name: {{ include "slipstream.tls.name" (dict "root" .root "part" "router") | quote }}
{{- else }}
peer_target_name: {{ include "slipstream.tls.name" (dict "root" .root "part" "target") | quote }}
{{- end }}
{{- end }}
{{- if eq .part "router" }}
peer_draft_name: {{ include "slipstream.tls.name" (dict "root" .root "part" "draft") | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Addresses at which a router finds the replicas of a role. */}}
{{- define "slipstream.config.replicas" -}}
{{- if eq (include "slipstream.discovery" .root) "registry" -}}
registry:
{{- else -}}
{{ include "slipstream.config.headless" . }}
{{- end -}}
{{- end -}}

{{- define "slipstream.config.headless" -}}
dns:///{{ include "slipstream.part" . }}-headless.{{ .root.Release.Namespace }}.svc:{{ include "slipstream.role.port" . }}
{{- end -}}

{{/* Defaults: the role's own options override them. */}}
{{- define "slipstream.config.usual" -}}
{{- if eq .part "router" -}}
targets:
  - {{ include "slipstream.config.replicas" (dict "root" .root "part" "target") | quote }}
drafts:
{{- if .root.Values.draft.enabled }}
  - {{ include "slipstream.config.replicas" (dict "root" .root "part" "draft") | quote }}
{{- else }} []
{{- end }}
max_connection_age_s: 300
max_connection_age_grace_s: {{ include "slipstream.role.grace" . }}
{{- else if eq .part "http" -}}
{{- /* Keys of callers are sent in the clear only where operators say so. */ -}}
router: {{ include "slipstream.config.headless" (dict "root" .root "part" "router") }}
plaintext_tokens: {{ not (or .root.Values.tls.enabled .root.Values.auth.enabled) }}
timeout_s: {{ .root.Values.longestGenerationSeconds }}
{{- else -}}
device: {{ ternary "cuda" "cpu" (gt (int (index .root.Values (include "slipstream.role.host" .)).gpu.count) 0) }}
{{- if and (eq .part "draft") .root.Values.target.enabled }}
kv_sources:
  - "*:{{ .root.Values.target.ports.grpc | int }}"
{{- end }}
{{- if and (eq .part "target") (gt (int .root.Values.target.gpu.count) 1) }}
tensor_parallel: {{ .root.Values.target.gpu.count | int }}
{{- end }}
{{- if and (eq .part "target") (hasPrefix "eagle3:" .root.Values.model.draft) }}
hidden_layers: auto
{{- end }}
{{- end }}
{{- end -}}

{{/* Options that only the chart sets. */}}
{{- define "slipstream.config.own" -}}
{{- $values := index .root.Values .part -}}
{{- $any := ternary "[::]" "0.0.0.0" .root.Values.ipv6 -}}
grace_s: {{ include "slipstream.role.grace" . }}
{{- if eq .part "http" }}
listen_address: "{{ $any }}:{{ $values.ports.http | int }}"
{{- if $values.token.existingSecret }}
token_file: /etc/slipstream/token/token
{{- end }}
{{- else }}
address: "{{ $any }}:{{ $values.ports.grpc | int }}"
{{- if eq .part (include "slipstream.role.host" .) }}
health_address: "{{ $any }}:{{ $values.ports.health | int }}"
{{- end }}
{{ include "slipstream.config.store" . }}
{{- end }}
{{- if eq .part "target" }}
model: {{ .root.Values.model.name | quote }}
{{- else if eq .part "draft" }}
draft: {{ .root.Values.model.draft | quote }}
target_model: {{ .root.Values.model.name | quote }}
{{- else if and (eq .part "router") .root.Values.auth.enabled }}
key_file: /etc/slipstream/keys/keys.toml
{{- end }}
{{ include "slipstream.config.tls" . }}
{{- end -}}

{{- define "slipstream.config.role" -}}
{{- $own := include "slipstream.config.own" . | fromYaml -}}
{{- $said := (index .root.Values .part).config -}}
{{- $usual := include "slipstream.config.usual" . | fromYaml -}}
{{- /* Not by merge, to which false and 0 are nothing. */ -}}
{{- $values := dict -}}
{{- range $from := list $usual $said $own -}}
{{- range $key, $value := $from }}{{ $_ := set $values $key $value }}{{ end -}}
{{- end -}}
{{- include "slipstream.toml.table" (dict "name" .part "values" $values) -}}
{{- end -}}

{{/* Name of the file that a part reads: engines have one for each model. */}}
{{- define "slipstream.config.file" -}}
{{- if include "slipstream.isOfModel" . }}model-{{ .root.Values.model.object }}.toml{{ else }}slipstream.toml{{ end -}}
{{- end -}}

{{- define "slipstream.config.telemetry" -}}
{{- $t := .Values.telemetry -}}
{{- $values := dict "log_level" $t.logLevel "log_format" $t.logFormat "trace_ratio" $t.traceRatio -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $values "metrics_address" (printf "%s:%d" (ternary "[::]" "0.0.0.0" .Values.ipv6) (int .Values.metrics.port)) -}}
{{- end -}}
{{- if $t.otlp.endpoint -}}
{{- $exporter := ternary "otlp-http" "otlp" (eq $t.otlp.protocol "http") -}}
{{- $_ := set $values "otlp_endpoint" $t.otlp.endpoint -}}
{{- if $t.otlp.traces }}{{ $_ := set $values "traces" (list $exporter) }}{{ end -}}
{{- if $t.otlp.metrics }}{{ $_ := set $values "metrics" (list $exporter) }}{{ end -}}
{{- end -}}
{{- range $key, $value := $t.config }}{{ $_ := set $values $key $value }}{{ end -}}
{{- include "slipstream.toml.table" (dict "name" "telemetry" "values" $values) -}}
{{- end -}}

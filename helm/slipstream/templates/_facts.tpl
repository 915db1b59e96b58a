{{/* Facts that follow from several values. An empty text means no. */}}

{{- define "slipstream.roles" -}}
["router", "draft", "target", "http"]
{{- end -}}

{{/* Whether a role loads a model. */}}
{{- define "slipstream.role.isEngine" -}}
{{- if has .part (list "draft" "target") -}}yes{{- end -}}
{{- end -}}

{{/* Whether the draft runs in its target's container, on the same GPU. */}}
{{- define "slipstream.draft.shared" -}}
{{- if and .Values.draft.enabled (eq .Values.draft.placement "target") -}}yes{{- end -}}
{{- end -}}

{{/* The role whose pods run a role. */}}
{{- define "slipstream.role.host" -}}
{{- ternary "target" .part (and (eq .part "draft") (not (empty (include "slipstream.draft.shared" .root)))) -}}
{{- end -}}

{{/* Whether a role has pods, of this chart or on Ray. */}}
{{- define "slipstream.role.hasPods" -}}
{{- if and (index .root.Values .part).enabled (eq .part (include "slipstream.role.host" .)) -}}yes{{- end -}}
{{- end -}}

{{/* The roles that the pods of a role run, as a list in JSON. */}}
{{- define "slipstream.role.residents" -}}
{{- toJson (ternary (list "target" "draft") (list .part) (and (eq .part "target") (not (empty (include "slipstream.draft.shared" .root))))) -}}
{{- end -}}

{{/* Whether a role runs as a Deployment of this chart. */}}
{{- define "slipstream.role.deployed" -}}
{{- if include "slipstream.role.hasPods" . -}}
{{- if not (and (include "slipstream.role.isEngine" .) .root.Values.ray.enabled) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of the port that serves, and its number. */}}
{{- define "slipstream.role.protocol" -}}
{{- ternary "http" "grpc" (eq .part "http") -}}
{{- end -}}

{{- define "slipstream.role.port" -}}
{{- index (index .root.Values .part).ports (include "slipstream.role.protocol" .) | int -}}
{{- end -}}

{{/* Name of a port or a secret (.name) of a role in its pod, where names are unique. */}}
{{- define "slipstream.role.nameInPod" -}}
{{- ternary .name (printf "%s-%s" .part .name) (eq .part (include "slipstream.role.host" .)) -}}
{{- end -}}

{{/* Port of a role's metrics: a draft in its target's pod has the next one. */}}
{{- define "slipstream.role.metricsPort" -}}
{{- ternary 0 1 (eq .part (include "slipstream.role.host" .)) | add .root.Values.metrics.port -}}
{{- end -}}

{{- define "slipstream.role.scaled" -}}
{{- $autoscaling := (index .root.Values .part).autoscaling -}}
{{- if or $autoscaling.hpa.enabled $autoscaling.keda.enabled -}}yes{{- end -}}
{{- end -}}

{{/* Replicas of a Deployment. An autoscaler's number, which only the cluster has, is kept: without it an
upgrade would render the default. */}}
{{- define "slipstream.role.replicas" -}}
{{- $values := index .root.Values .part -}}
{{- if include "slipstream.role.scaled" . -}}
{{- $there := default dict (lookup "apps/v1" "Deployment" .root.Release.Namespace (include "slipstream.object" .)) -}}
{{- max $values.autoscaling.minReplicas (dig "spec" "replicas" $values.replicas $there) -}}
{{- else -}}
{{- $values.replicas | int -}}
{{- end -}}
{{- end -}}

{{/* The most pods that a role may have. */}}
{{- define "slipstream.role.most" -}}
{{- $values := index .root.Values .part -}}
{{- if include "slipstream.role.scaled" . -}}{{ $values.autoscaling.maxReplicas | int }}{{- else -}}{{ $values.replicas | int }}{{- end -}}
{{- end -}}

{{/* An amount of memory, Kubernetes' (8Gi), Redis' (512mb) or a number, in bytes. */}}
{{- define "slipstream.bytes" -}}
{{- if not (kindIs "string" .) -}}{{ int64 . }}{{- else -}}
{{- $units := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 "kb" 1024.0 "mb" 1048576.0 "gb" 1073741824.0 -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" . -}}
{{- printf "%.0f" (mulf (float64 $number) (index $units (trimPrefix $number .))) -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.role.grace" -}}
{{- $drain := (index .root.Values (include "slipstream.role.host" .)).drain -}}
{{- default (add .root.Values.longestGenerationSeconds 30) $drain.graceSeconds | int -}}
{{- end -}}

{{- define "slipstream.role.termination" -}}
{{- $drain := (index .root.Values .part).drain -}}
{{- default (add $drain.preStopSeconds (include "slipstream.role.grace" .) 30) $drain.terminationGracePeriodSeconds | int -}}
{{- end -}}

{{- define "slipstream.redis.url" -}}
{{- if .Values.redis.enabled -}}
{{ ternary "rediss" "redis" .Values.tls.enabled }}://{{ include "slipstream.part" (dict "root" . "part" "redis") }}.{{ .Release.Namespace }}.svc:{{ .Values.redis.port | int }}/0
{{- else -}}
{{ .Values.redis.external.url }}
{{- end -}}
{{- end -}}

{{/* Ports of the hosts of a URL (.url), .default where one has none, and .more, as a list in JSON. */}}
{{- define "slipstream.url.ports" -}}
{{- $ports := list -}}
{{- range regexReplaceAll "^[^:]*://([^/?]*).*$" .url "${1}" | splitList "," -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default $.default | int) -}}
{{- end -}}
{{- range .more }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- toJson (uniq $ports) -}}
{{- end -}}

{{- define "slipstream.redis.ports" -}}
{{- include "slipstream.url.ports" (dict "url" .Values.redis.external.url "default" 6379 "more" .Values.networkPolicy.redisPorts) -}}
{{- end -}}

{{- define "slipstream.hub.ports" -}}
{{- $url := default "https://" .Values.modelStore.pull.endpoint -}}
{{- include "slipstream.url.ports" (dict "url" $url "default" (ternary 443 80 (hasPrefix "https" $url)) "more" .Values.networkPolicy.hubPorts) -}}
{{- end -}}

{{/* gRPC dials 443 where a URL has no port, whatever the scheme. */}}
{{- define "slipstream.otlp.ports" -}}
{{- $otlp := .Values.telemetry.otlp -}}
{{- $isPlainHttp := and (eq $otlp.protocol "http") (hasPrefix "http:" $otlp.endpoint) -}}
{{- include "slipstream.url.ports" (dict "url" $otlp.endpoint "default" (ternary 80 443 $isPlainHttp) "more" .Values.networkPolicy.otlpPorts) -}}
{{- end -}}

{{- define "slipstream.redis.secret" -}}
{{- if not .Values.redis.enabled -}}
{{ .Values.redis.external.existingSecret }}
{{- else if .Values.redis.auth.existingSecret -}}
{{ .Values.redis.auth.existingSecret }}
{{- else -}}
{{ include "slipstream.part" (dict "root" . "part" "redis") }}
{{- end -}}
{{- end -}}

{{- define "slipstream.redis.passwordKey" -}}
{{- if .Values.redis.enabled }}{{ .Values.redis.auth.passwordKey }}{{ else }}{{ .Values.redis.external.passwordKey }}{{ end -}}
{{- end -}}

{{/* registry or dns. */}}
{{- define "slipstream.discovery" -}}
{{- if eq .Values.discovery "auto" -}}
{{- ternary "registry" "dns" (not (empty (include "slipstream.redis.url" .))) -}}
{{- else -}}
{{- .Values.discovery -}}
{{- end -}}
{{- end -}}

{{/* The secret with a role's, redis' or a client's certificate (.part). */}}
{{- define "slipstream.tls.secret" -}}
{{- if .root.Values.tls.certManager.enabled -}}
{{- include "slipstream.part" . }}-tls
{{- else -}}
{{- index .root.Values.tls.secrets .part -}}
{{- end -}}
{{- end -}}

{{/* The name that certificates of a role carry. */}}
{{- define "slipstream.tls.name" -}}
{{- default (include "slipstream.part" .) (index .root.Values.tls.names .part) -}}
{{- end -}}

{{- define "slipstream.auth.secret" -}}
{{- if .Values.auth.existingSecret -}}
{{- .Values.auth.existingSecret -}}
{{- else -}}
{{- include "slipstream.part" (dict "root" . "part" "keys") -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.auth.file" -}}
{{- ternary .Values.auth.secretKey "keys.toml" (not (empty .Values.auth.existingSecret)) -}}
{{- end -}}

{{/* The claim that models are in; empty where there is none. */}}
{{- define "slipstream.models.claim" -}}
{{- if eq .Values.modelStore.type "existingClaim" -}}
{{- .Values.modelStore.existingClaim -}}
{{- else if eq .Values.modelStore.type "pvc" -}}
{{- include "slipstream.part" (dict "root" . "part" "models") -}}
{{- end -}}
{{- end -}}

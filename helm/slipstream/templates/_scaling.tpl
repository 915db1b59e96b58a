{{/* Scaling signals of each role: docs/scaling.md explains them. */}}

{{- define "slipstream.scaling.behavior" -}}
{{- $autoscaling := (index .root.Values .part).autoscaling -}}
{{- if $autoscaling.hpa.behavior -}}
{{- toYaml $autoscaling.hpa.behavior -}}
{{- else -}}
scaleUp:
  stabilizationWindowSeconds: {{ ternary 60 0 (eq .part "draft") }}{{/* without drafts rounds are plain; without the others requests wait */}}
  selectPolicy: Max
  policies:
    - type: Pods
      value: 1
      periodSeconds: 60
    - type: Percent
      value: 50
      periodSeconds: 60
{{- $period := 60 -}}
{{- if eq .part "draft" }}{{ $period = 300 -}}
{{- else if eq .part "target" }}{{ $period = min 1800 (include "slipstream.role.grace" . | int) }}{{/* the longest that there is */}}{{ end }}
scaleDown:
  stabilizationWindowSeconds: {{ $autoscaling.scaleDownSeconds }}
  policies:
    - type: Pods
      value: 1
      periodSeconds: {{ $period }}
    {{- if eq .part "draft" }}
    - type: Percent
      value: 25
      periodSeconds: {{ $period }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* A metric of the role's own pods (.name), and how much of it a pod has on average (.value). */}}
{{- define "slipstream.scaling.pods" -}}
- type: Pods
  pods:
    metric:
      name: {{ .name }}
    target:
      type: AverageValue
      averageValue: {{ .value | quote }}
{{- end -}}

{{/* An amount in thousandths, as Kubernetes writes it. */}}
{{- define "slipstream.scaling.milli" -}}
{{- mulf . 1000 | int64 }}m
{{- end -}}

{{- define "slipstream.scaling.metrics" -}}
{{- $limits := .root.Values.autoscaling.thresholds -}}
{{- $own := (index .root.Values .part).autoscaling.hpa.metrics -}}
{{- if $own -}}
{{- toYaml $own -}}
{{- else if eq .part "http" -}}
- type: Resource
  resource:
    name: cpu
    target:
      type: Utilization
      averageUtilization: {{ mulf $limits.httpUse 100 | int }}
{{- else if eq .part "router" -}}
{{- $requests := default 64 .root.Values.router.config.max_requests -}}
{{ include "slipstream.scaling.pods" (dict "name" "slipstream_requests_running" "value" (include "slipstream.scaling.milli" (mulf $requests $limits.routerUse))) }}
{{- else if eq .part "target" -}}
{{ include "slipstream.scaling.pods" (dict "name" "slipstream_waiting" "value" (include "slipstream.scaling.milli" $limits.targetWaiting)) }}
{{ include "slipstream.scaling.pods" (dict "name" "slipstream_kv_used_ratio" "value" (include "slipstream.scaling.milli" $limits.targetKvUse)) }}
{{- else -}}
{{ include "slipstream.scaling.pods" (dict "name" "slipstream_draft_proposals" "value" (include "slipstream.scaling.milli" $limits.draftProposals)) }}
- type: External
  external:
    metric:
      name: slipstream_sessions_active
      selector:
        matchLabels:
          app_kubernetes_io_instance: {{ .root.Release.Name }}
          app_kubernetes_io_component: target
          slipstream_model: {{ .root.Values.model.object | quote }}
    target:
      type: AverageValue
      averageValue: {{ include "slipstream.scaling.milli" $limits.draftSessions | quote }}
{{- end -}}
{{- end -}}

{{/* A query of PromQL (.query), and how much of its answer there is to be for each pod (.value). No
     answer is no reason to scale down, but for one that has none by nature (.isQuiet). */}}
{{- define "slipstream.scaling.trigger" -}}
- type: prometheus
  metricType: AverageValue
  metadata:
    serverAddress: {{ .root.Values.autoscaling.prometheusAddress | quote }}
    query: {{ .query | quote }}
    threshold: {{ .value | toString | quote }}
    ignoreNullValues: {{ .isQuiet | default false | toString | quote }}
  {{- with .root.Values.autoscaling.triggerAuthentication }}
  authenticationRef:
    name: {{ . }}
  {{- end }}
{{- end -}}

{{/* Series of the pods of a role of this release, of one model. */}}
{{- define "slipstream.scaling.of" -}}
{{- tpl .root.Values.autoscaling.selector .root | replace "WORKLOAD" (include "slipstream.object" .) -}}
{{- end -}}

{{- define "slipstream.scaling.triggers" -}}
{{- $limits := .root.Values.autoscaling.thresholds -}}
{{- $own := (index .root.Values .part).autoscaling.keda.triggers -}}
{{- $mine := include "slipstream.scaling.of" . -}}
{{- if $own -}}
{{- toYaml $own -}}
{{- else if eq .part "http" -}}
- type: cpu
  metricType: Utilization
  metadata:
    value: {{ mulf $limits.httpUse 100 | int | quote }}
{{- else if eq .part "router" -}}
{{- $use := printf "sum(slipstream_requests_running{%[1]s} / slipstream_requests_capacity{%[1]s})" $mine -}}
{{ include "slipstream.scaling.trigger" (dict "root" .root "query" $use "value" $limits.routerUse) }}
{{- else if eq .part "target" -}}
{{- $waiting := printf "sum(avg_over_time(slipstream_waiting{%s}[1m]))" $mine -}}
{{- $use := printf "sum(slipstream_kv_used_bytes{%[1]s} / (slipstream_kv_capacity_bytes{%[1]s} > 0))" $mine -}}
{{ include "slipstream.scaling.trigger" (dict "root" .root "query" $waiting "value" $limits.targetWaiting) }}
{{ include "slipstream.scaling.trigger" (dict "root" .root "query" $use "value" $limits.targetKvUse) }}
{{- else -}}
{{- /* Use and demand. Seconds that proposals take in a second: as many are there at once. Requests that gave up
drafting because drafts are late count for nothing there, so active sessions of targets keep drafts for them. */ -}}
{{- $seconds := "rate(slipstream_draft_%s_duration_seconds_sum{%s}[2m])" -}}
{{- $proposals := printf "sum(%s + %s)" (printf $seconds "queue" $mine) (printf $seconds "engine" $mine) -}}
{{- $hasNone := eq (int .root.Values.draft.autoscaling.minReplicas) 0 }}{{/* without drafts there is no value */}}
{{ include "slipstream.scaling.trigger" (dict "root" .root "query" $proposals "value" $limits.draftProposals "isQuiet" $hasNone) }}
{{- $targets := include "slipstream.scaling.of" (dict "root" .root "part" "target") }}
{{ include "slipstream.scaling.trigger" (dict "root" .root "query" (printf "sum(slipstream_sessions{%s,state=\"active\"})" $targets) "value" $limits.draftSessions) }}
{{- end -}}
{{- end -}}

{{/* A role (.part) as a Deployment: the same for router, draft and target. */}}
{{- define "slipstream.workload" -}}
{{- $values := index .root.Values .part -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "slipstream.metadata" (dict "root" .root "part" .part "annotations" $values.annotations) | nindent 2 }}
spec:
  replicas: {{ include "slipstream.role.replicas" . }}
  revisionHistoryLimit: {{ $values.revisionHistoryLimit }}
  selector:
    matchLabels:
      {{- include "slipstream.selector" . | nindent 6 }}
  strategy:
    type: {{ $values.strategy.type }}
    {{- if eq $values.strategy.type "RollingUpdate" }}
    rollingUpdate:
      maxSurge: {{ $values.strategy.maxSurge }}
      maxUnavailable: {{ $values.strategy.maxUnavailable }}
    {{- end }}
  template:
    metadata:
      labels:
        {{- include "slipstream.labels" . | nindent 8 }}
        {{- if and (eq .part "http") .root.Values.inferenceGateway.enabled }}
        llm-d.ai/engine-type: {{ .root.Values.inferenceGateway.engineType }}
        {{- end }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        {{- include "slipstream.pod.checksums" . | nindent 8 }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "slipstream.pod" . | nindent 6 }}
{{- end -}}

{{/* Whatever makes new pods necessary when it changes. Certificates and keys are read anew by themselves. */}}
{{- define "slipstream.pod.checksums" -}}
{{- $told := include "slipstream.config.telemetry" .root -}}
{{- range $role := include "slipstream.role.residents" . | fromJsonArray | reverse -}}
{{- $told = printf "%s\n%s" (include "slipstream.config.role" (dict "root" $.root "part" $role)) $told -}}
{{- end -}}
checksum/config: {{ sha256sum $told }}
{{- end -}}

{{- define "slipstream.pod" -}}
{{- $values := index .root.Values .part -}}
{{- include "slipstream.pod.placement" . }}
serviceAccountName: {{ include "slipstream.role.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "slipstream.role.termination" . }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with include "slipstream.pod.init" . | trim }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
containers:
  - {{- include "slipstream.container" . | nindent 4 }}
  {{- with $values.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "slipstream.pod.volumes" . | nindent 2 }}
{{- end -}}

{{- define "slipstream.pod.placement" -}}
{{- $values := index .root.Values .part -}}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if $values.affinity }}
  {{- toYaml $values.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "slipstream.selector" . | nindent 14 }}
  {{- end }}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range $values.topologySpreadConstraints }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "slipstream.selector" $ | fromYaml)) }}
  - {{- toYaml (ternary . (merge (dict) . $own) (hasKey . "labelSelector")) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Fetches models that are not in the store. */}}
{{- define "slipstream.pod.init" -}}
{{- $values := index .root.Values .part -}}
{{- $store := .root.Values.modelStore -}}
{{- if and $store.pull.enabled (not $store.readOnly) -}}
{{- range $i, $model := include "slipstream.role.models" . | fromJsonArray }}
- name: {{ printf "pull-%d" $i }}
  image: {{ include "slipstream.role.image" $ | quote }}
  imagePullPolicy: {{ default $.root.Values.image.pullPolicy $values.image.pullPolicy }}
  command: ["slipstream", "models", "pull", {{ $model | quote }}]
  env:
    {{- include "slipstream.env.models" $ | nindent 4 }}
    {{- with $store.pull.endpoint }}
    - name: HF_ENDPOINT
      value: {{ . | quote }}
    {{- end }}
    {{- if $store.pull.tokenSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ $store.pull.tokenSecret }}
          key: {{ $store.pull.tokenKey }}
    {{- end }}
    {{- with $values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $values.securityContext | nindent 4 }}
  {{- with $store.pull.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    {{- include "slipstream.mounts.models" $ | nindent 4 }}
    - name: tmp
      mountPath: /tmp
    {{- with $values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}
{{- with $values.extraInitContainers }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slipstream.container" -}}
{{- $values := index .root.Values .part -}}
name: {{ .part }}
image: {{ include "slipstream.role.image" . | quote }}
imagePullPolicy: {{ default .root.Values.image.pullPolicy $values.image.pullPolicy }}
{{- if eq .part "http" }}
command: ["python", "-m", "slipstream_gateway"]
{{- else if and (eq .part "target") (include "slipstream.draft.shared" .root) }}
command:
  - bash
  - -c
  - |
    {{- include "slipstream.shared.script" .root | nindent 4 }}
  - target
{{- end }}
args:
  - --config
  - /etc/slipstream/config/{{ include "slipstream.config.file" . }}
  {{- range $values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "slipstream.env" . | nindent 2 }}
{{- with $values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- range $role := include "slipstream.role.residents" . | fromJsonArray }}
  {{- $part := dict "root" $.root "part" $role }}
  {{- $ports := deepCopy (index $.root.Values $role).ports }}
  {{- if ne $role $.part }}{{ $ports = omit $ports "health" }}{{ end }}
  {{- if $.root.Values.metrics.enabled }}{{ $_ := set $ports "metrics" (include "slipstream.role.metricsPort" $part) }}{{ end }}
  {{- range $name, $port := $ports }}
  - name: {{ include "slipstream.role.nameInPod" (merge (dict "name" $name) $part) }}
    containerPort: {{ $port }}
  {{- end }}
  {{- end }}
{{- include "slipstream.probes" . | nindent 0 }}
{{- with $values.drain.preStopSeconds }}{{/* a sleep of 0 is refused before Kubernetes 1.33 */}}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
securityContext:
  {{- toYaml $values.securityContext | nindent 2 }}
resources:
  {{- include "slipstream.resources" . | nindent 2 }}
volumeMounts:
  {{- include "slipstream.mounts" . | nindent 2 }}
{{- end -}}

{{/* Runs the draft, and the target with the container's arguments. When one ends, the other drains, and the container
ends as the first one did, with an error in any case. SIGTERM drains both. */}}
{{- define "slipstream.shared.script" -}}
{{- $metrics := printf "%s:%s" (ternary "[::]" "0.0.0.0" .Values.ipv6) (include "slipstream.role.metricsPort" (dict "root" . "part" "draft")) -}}
trap 'stopping=1; kill $draft $target' TERM
OTEL_SERVICE_NAME="$DRAFT_SERVICE_NAME" python -m slipstream_draft --config /etc/slipstream/config/{{ include "slipstream.config.file" (dict "root" . "part" "draft") }}
{{- if .Values.metrics.enabled }} --metrics-address '{{ $metrics }}'{{ end }} & draft=$!
python -m slipstream_target "$@" & target=$!
wait -n
code=$?
[ "$stopping" ] || kill $draft $target 2>/dev/null
wait
[ "$stopping" ] && exit 0
[ $code -ne 0 ] && exit $code
exit 1
{{- end -}}

{{/* A process that answers is alive; whether it takes requests is another matter. */}}
{{- define "slipstream.probe" -}}
{{- if eq .part "http" -}}
httpGet:
  port: http
  path: {{ ternary "/openapi.json" "/health" .isForLife }}
  scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tls.enabled }}
{{- else -}}
grpc:
  port: {{ (index .root.Values .part).ports.health }}
  {{- if .isForLife }}
  service: live
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "slipstream.probes" -}}
{{- $values := index .root.Values .part -}}
{{- $life := include "slipstream.probe" (merge (dict "isForLife" true) .) -}}
{{- $startup := $values.probes.startup }}
startupProbe:
  {{- $life | nindent 2 }}
  periodSeconds: {{ $startup.periodSeconds }}
  timeoutSeconds: {{ $startup.timeoutSeconds }}
  failureThreshold: {{ max 1 (ceil (divf $startup.budgetSeconds $startup.periodSeconds)) | int }}
readinessProbe:
  {{- include "slipstream.probe" (merge (dict "isForLife" false) .) | nindent 2 }}
  {{- toYaml $values.probes.readiness | nindent 2 }}
livenessProbe:
  {{- $life | nindent 2 }}
  {{- toYaml $values.probes.liveness | nindent 2 }}
{{- end -}}

{{- define "slipstream.resources" -}}
{{- $values := index .root.Values .part -}}
{{- $resources := deepCopy $values.resources -}}
{{- if $values.gpu.count -}}
{{- $limits := default dict $resources.limits -}}
{{- $_ := set $limits $values.gpu.resourceName ($values.gpu.count | int) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

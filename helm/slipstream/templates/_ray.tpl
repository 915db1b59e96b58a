{{/* Drafts and targets as Ray Serve deployments: an application per model, one group of Ray's workers per pool, a replica a
pod. */}}

{{/* Refuse values that do not go together, in one sentence. */}}
{{- define "slipstream.ray.check" -}}
{{- range $role := list "draft" "target" }}
{{- if include "slipstream.role.scaled" (dict "root" $ "part" $role) }}
{{- fail (printf "ray.enabled and an autoscaler of Kubernetes exclude each other: Ray scales the pool of %ss by itself, so %s.autoscaling.hpa and %s.autoscaling.keda must not be enabled" $role $role $role) }}
{{- end }}
{{- end }}
{{- if not .Values.target.enabled }}
{{- fail "ray.enabled needs target.enabled: there is no pool of drafts without one of targets" }}
{{- end }}
{{- if not (include "slipstream.redis.url" .) }}
{{- fail "ray.enabled needs Redis, bundled (redis.enabled) or external (redis.external.url): replicas on Ray announce themselves there" }}
{{- end }}
{{- with .Values.ray.faultTolerance }}
{{- if and .enabled (not .redisAddress) (or $.Values.tls.enabled (not $.Values.redis.enabled)) }}
{{- fail "ray.faultTolerance.enabled needs ray.faultTolerance.redisAddress where Redis is not the bundled one, or is reached by TLS" }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.ray.roles" -}}
{{- toJson (ternary (list "target" "draft") (list "target") .Values.draft.enabled) -}}
{{- end -}}

{{/* Replicas of a pool: the least and the most. */}}
{{- define "slipstream.ray.least" -}}
{{- $values := index .root.Values .part -}}
{{- ternary $values.autoscaling.minReplicas $values.replicas .root.Values.ray.autoscaling.enabled | int -}}
{{- end -}}

{{- define "slipstream.ray.most" -}}
{{- $values := index .root.Values .part -}}
{{- ternary $values.autoscaling.maxReplicas $values.replicas .root.Values.ray.autoscaling.enabled | int -}}
{{- end -}}

{{/* Name of a model's pool: of its workers, and of the resource that only these have. */}}
{{- define "slipstream.ray.pool" -}}
{{ .part }}-{{ .root.Values.model.object }}
{{- end -}}

{{/* Configuration of Ray Serve for a list of models: docs/ray.md has the arguments. */}}
{{- define "slipstream.ray.serve" -}}
proxy_location: EveryNode
http_options:
  host: {{ ternary "'::'" "0.0.0.0" (first .).Values.ipv6 }}
  port: 8000
applications:
  {{- range $root := . }}
  - name: {{ .Values.model.object }}
    import_path: slipstream.cluster.app:build
    route_prefix: /{{ .Values.model.object }}
    args:
      config: /etc/slipstream/config/{{ include "slipstream.config.file" (dict "root" . "part" "target") }}
      grace_s: {{ include "slipstream.ray.grace" . }}
      {{- if not .Values.draft.enabled }}
      draft: null
      {{- end }}
      {{- range $role := include "slipstream.ray.roles" . | fromJsonArray }}
      {{- $values := index $root.Values $role }}
      {{- $part := dict "root" $root "part" $role }}
      {{ $role }}:
        min_replicas: {{ include "slipstream.ray.least" $part }}
        max_replicas: {{ include "slipstream.ray.most" $part }}
        num_cpus: 1
        num_gpus: {{ $values.gpu.count }}
        resources:
          {{ include "slipstream.ray.pool" $part }}: 1
        port: {{ $values.ports.grpc }}
        {{- if $root.Values.metrics.enabled }}
        metrics_port: {{ $root.Values.metrics.port }}
        {{- end }}
        load_per_replica: {{ index $root.Values.ray.autoscaling.loadPerReplica $role }}
        look_back_s: {{ $root.Values.ray.autoscaling.lookBackSeconds }}
        upscale_delay_s: {{ $root.Values.ray.autoscaling.upscaleDelaySeconds }}
        downscale_delay_s: {{ $values.autoscaling.scaleDownSeconds }}
      {{- end }}
  {{- end }}
{{- end -}}

{{/* The longer grace of both pools, which stop together. */}}
{{- define "slipstream.ray.grace" -}}
{{- max (include "slipstream.role.grace" (dict "root" . "part" "target") | int) (include "slipstream.role.grace" (dict "root" . "part" "draft") | int) -}}
{{- end -}}

{{- define "slipstream.ray.image" -}}
{{- printf "%s%s" (include "slipstream.role.image" .) (ternary "" .root.Values.ray.imageSuffix (contains "@" (include "slipstream.role.image" .))) -}}
{{- end -}}

{{- define "slipstream.ray.labels" -}}
{{ include "slipstream.labels" . }}
slipstream/ray: {{ include "slipstream.fullname" .root }}
{{- end -}}

{{/* The pod of a worker of a pool. KubeRay sets its command and its probes. */}}
{{- define "slipstream.ray.worker" -}}
{{- $values := index .root.Values .part -}}
metadata:
  labels:
    {{- include "slipstream.ray.labels" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "slipstream.pod.checksums" . | nindent 4 }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "slipstream.pod.placement" . | trim | nindent 2 }}
  serviceAccountName: {{ include "slipstream.role.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "slipstream.role.termination" . }}
  {{- with include "slipstream.ray.pullSecrets" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- toYaml $values.podSecurityContext | nindent 4 }}
  {{- with include "slipstream.pod.init" . | trim }}
  initContainers:
    {{- . | replace (include "slipstream.role.image" $ | quote) (include "slipstream.ray.image" $ | quote) | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .part }}
      image: {{ include "slipstream.ray.image" . | quote }}
      imagePullPolicy: {{ default .root.Values.image.pullPolicy $values.image.pullPolicy }}
      env:
        {{- include "slipstream.ray.env" . | nindent 8 }}
      {{- with $values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: grpc
          containerPort: {{ $values.ports.grpc }}
        {{- if .root.Values.metrics.enabled }}
        - name: metrics
          containerPort: {{ .root.Values.metrics.port }}
        {{- end }}
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      resources:
        {{- include "slipstream.resources" . | nindent 8 }}
      volumeMounts:
        {{- include "slipstream.mounts" . | nindent 8 }}
    {{- with $values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "slipstream.pod.volumes" . | nindent 4 }}
{{- end -}}

{{/* The pod of the head: Ray's own processes, no replica and no GPU. */}}
{{- define "slipstream.ray.head" -}}
{{- $values := .root.Values.target -}}
{{- $head := .root.Values.ray.head -}}
metadata:
  labels:
    {{- include "slipstream.ray.labels" (dict "root" .root "part" "ray") | nindent 4 }}
  annotations:
    {{- include "slipstream.pod.checksums" . | nindent 4 }}
spec:
  {{- with $head.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $head.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  enableServiceLinks: false
  {{- with include "slipstream.ray.pullSecrets" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- toYaml $values.podSecurityContext | nindent 4 }}
  containers:
    - name: head
      image: {{ default (include "slipstream.ray.image" .) $head.image | quote }}
      imagePullPolicy: {{ default .root.Values.image.pullPolicy $values.image.pullPolicy }}
      env:
        - name: HOME
          value: /tmp
        {{- include "slipstream.ray.variables" . | nindent 8 }}
      ports:
        - name: gcs
          containerPort: 6379
        - name: dashboard
          containerPort: 8265
        - name: client
          containerPort: 10001
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      resources:
        {{- toYaml $head.resources | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.tmpSize }}
{{- end -}}

{{- define "slipstream.ray.pullSecrets" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.ray.redis" -}}
{{ include "slipstream.part" (dict "root" . "part" "redis") }}.{{ .Release.Namespace }}.svc:{{ .Values.redis.port | int }}
{{- end -}}

{{- define "slipstream.ray.variables" -}}
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: RAY_worker_niceness
  value: "0"
{{- end -}}

{{/* Options of the role, without the address: a replica uses its node's address in Ray. */}}
{{- define "slipstream.ray.env" -}}
{{- $own := list -}}
{{- range include "slipstream.env" . | fromYamlArray -}}
{{- if not (hasSuffix "_ADVERTISED_ADDRESS" .name) }}{{ $own = append $own . }}{{ end -}}
{{- end -}}
{{ toYaml $own }}
{{ include "slipstream.ray.variables" . }}
{{- end -}}

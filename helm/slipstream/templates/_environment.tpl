{{/* Environment of a service: variables, mounts and volumes. */}}

{{- define "slipstream.env.models" -}}
- name: SLIPSTREAM_CACHE
  value: {{ .root.Values.modelStore.mountPath | quote }}
- name: HF_HOME
  value: {{ printf "%s/hub" .root.Values.modelStore.mountPath | quote }}
- name: HF_HUB_DISABLE_TELEMETRY
  value: "1"
- name: HOME
  value: /tmp
{{- end -}}

{{- define "slipstream.env" -}}
{{- $values := index .root.Values .part -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if not (include "slipstream.role.isEngine" .) }}
- name: HOME
  value: /tmp
{{- else }}
- name: {{ printf "SLIPSTREAM_%s_ADVERTISED_ADDRESS" (upper .part) }}
  value: {{ printf (ternary "[$(POD_IP)]:%d" "$(POD_IP):%d" .root.Values.ipv6) (int $values.ports.grpc) | quote }}
{{ include "slipstream.env.models" . }}
{{- if or .root.Values.modelStore.pull.enabled .root.Values.modelStore.readOnly }}
- name: SLIPSTREAM_OFFLINE
  value: "1"
{{- end }}
{{- include "slipstream.env.threads" . }}
{{- end }}
{{- include "slipstream.env.telemetry" . }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* As many threads as there are cores to use, where the options name no number. */}}
{{- define "slipstream.env.threads" -}}
{{- $values := index .root.Values .part -}}
{{- $limit := dig "limits" "cpu" "" $values.resources -}}
{{- $request := dig "requests" "cpu" "" $values.resources -}}
{{- if and (or $limit $request) (not $values.gpu.count) (not (hasKey $values.config "threads")) }}
- name: {{ printf "SLIPSTREAM_%s_THREADS" (upper .part) }}
  valueFrom:
    resourceFieldRef:
      containerName: {{ .part }}
      resource: {{ ternary "limits.cpu" "requests.cpu" (not (empty $limit)) }}
{{- end }}
{{- end -}}

{{- define "slipstream.env.telemetry" -}}
{{- $t := .root.Values.telemetry }}
- name: OTEL_SERVICE_NAME
  value: {{ index $t.serviceNames .part | quote }}
{{- if and (eq .part "target") (include "slipstream.draft.shared" .root) }}
- name: DRAFT_SERVICE_NAME
  value: {{ $t.serviceNames.draft | quote }}
- name: SLIPSTREAM_DRAFT_ADVERTISED_ADDRESS
  value: {{ printf (ternary "[$(POD_IP)]:%d" "$(POD_IP):%d" .root.Values.ipv6) (int .root.Values.draft.ports.grpc) | quote }}
{{- end }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: {{ include "slipstream.telemetry.attributes" . | quote }}
{{- if and $t.otlp.endpoint $t.otlp.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ $t.otlp.headersSecret }}
      key: {{ $t.otlp.headersKey }}
{{- end }}
{{- end -}}

{{- define "slipstream.telemetry.attributes" -}}
k8s.namespace.name={{ .root.Release.Namespace }},k8s.pod.name=$(POD_NAME),k8s.node.name=$(NODE_NAME)
{{- range $name, $value := .root.Values.telemetry.resourceAttributes }},{{ $name }}={{ $value }}{{ end -}}
{{- end -}}

{{- define "slipstream.mounts.models" -}}
{{- $store := .root.Values.modelStore -}}
- name: models
  mountPath: {{ $store.mountPath | quote }}
  {{- if $store.readOnly }}
  readOnly: true
  {{- end }}
  {{- with $store.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end -}}

{{- define "slipstream.mounts" -}}
{{- $values := index .root.Values .part -}}
- name: config
  mountPath: /etc/slipstream/config
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if include "slipstream.role.isEngine" . }}
{{ include "slipstream.mounts.models" . }}
{{- end }}
{{- if include "slipstream.role.shm" . }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- range $secret := include "slipstream.pod.secrets" . | fromYamlArray }}
- name: {{ $secret.name }}
  mountPath: {{ printf "/etc/slipstream/%s" $secret.name }}
  readOnly: true
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slipstream.role.shm" -}}
{{- $values := index .root.Values .part -}}
{{- default (ternary "2Gi" "" (gt (int $values.gpu.count) 1)) $values.shmSize -}}
{{- end -}}

{{- define "slipstream.pod.volumes" -}}
{{- $values := index .root.Values .part -}}
- name: config
  configMap:
    name: {{ include "slipstream.part" (dict "root" .root "part" "config") }}
- name: tmp
  emptyDir:
    sizeLimit: {{ $values.tmpSize }}
{{- if include "slipstream.role.isEngine" . }}
{{ include "slipstream.volume.models" . }}
{{- end }}
{{- with include "slipstream.role.shm" . }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . }}
{{- end }}
{{- range $secret := include "slipstream.pod.secrets" . | fromYamlArray }}
- name: {{ $secret.name }}
  projected:
    defaultMode: 0440
    sources:
      {{- toYaml $secret.sources | nindent 6 }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slipstream.volume.models" -}}
- name: models
  {{- with include "slipstream.models.claim" .root }}
  persistentVolumeClaim:
    claimName: {{ . }}
    {{- if $.root.Values.modelStore.readOnly }}
    readOnly: true
    {{- end }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .root.Values.modelStore.size }}
  {{- end }}
{{- end -}}

{{/* Secrets that a role's pods see as files: a list of names below /etc/slipstream, and sources. */}}
{{- define "slipstream.pod.secrets" -}}
{{- if .root.Values.tls.enabled }}
- name: tls
  sources:
    {{- include "slipstream.tls.sources" . | nindent 4 }}
{{- if and (eq .part "target") (include "slipstream.draft.shared" .root) }}
- name: {{ include "slipstream.role.nameInPod" (dict "root" .root "part" "draft" "name" "tls") }}
  sources:
    {{- include "slipstream.tls.sources" (dict "root" .root "part" "draft") | nindent 4 }}
{{- end }}
{{- end }}
{{- if and (eq .part "router") .root.Values.auth.enabled }}
- name: keys
  sources:
    - secret:
        name: {{ include "slipstream.auth.secret" .root }}
        items:
          - key: {{ include "slipstream.auth.file" .root }}
            path: keys.toml
{{- end }}
{{- if eq .part "http" }}
{{- with .root.Values.http.token }}
{{- if .existingSecret }}
- name: token
  sources:
    - secret:
        name: {{ .existingSecret }}
        items:
          - key: {{ .secretKey }}
            path: token
{{- end }}
{{- end }}
{{- else if include "slipstream.redis.url" .root }}
{{- with include "slipstream.redis.secret" .root }}
- name: redis
  sources:
    - secret:
        name: {{ . }}
        items:
          - key: {{ include "slipstream.redis.passwordKey" $.root }}
            path: password
{{- end }}
{{- if not .root.Values.redis.enabled }}
{{- with .root.Values.redis.external }}
{{- if .caSecret }}
- name: redis-ca
  sources:
    - secret:
        name: {{ .caSecret }}
        items:
          - key: {{ .caKey }}
            path: ca.crt
{{- end }}
{{- if .clientCertSecret }}
- name: redis-cert
  sources:
    - secret:
        name: {{ .clientCertSecret }}
        items:
          - key: tls.crt
            path: tls.crt
          - key: tls.key
            path: tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The certificate, key and authority of a part. */}}
{{- define "slipstream.tls.sources" -}}
{{- $secret := include "slipstream.tls.secret" . -}}
- secret:
    name: {{ $secret }}
    items:
      - key: tls.crt
        path: tls.crt
      - key: tls.key
        path: tls.key
- secret:
    name: {{ default $secret .root.Values.tls.ca.secret }}
    items:
      - key: {{ ternary "ca.crt" .root.Values.tls.ca.key (empty .root.Values.tls.ca.secret) }}
        path: ca.crt
{{- end -}}

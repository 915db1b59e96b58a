{{/* The bundled Redis: its file, and what starts and probes it. */}}

{{- define "slipstream.redis.conf" -}}
{{- if .Values.tls.enabled -}}
port 0
tls-port {{ .Values.redis.port }}
tls-cert-file /etc/redis/tls/tls.crt
tls-key-file /etc/redis/tls/tls.key
tls-ca-cert-file /etc/redis/tls/ca.crt
tls-auth-clients yes
{{- else -}}
port {{ .Values.redis.port }}
{{- end }}
bind * -::*
dir /data
appendonly yes
appendfsync everysec
save ""
maxmemory {{ .Values.redis.maxMemory }}
maxmemory-policy noeviction
{{- with .Values.redis.extraConfig }}
{{ . }}
{{- end }}
{{- end -}}

{{- define "slipstream.redis.client" -}}
REDISCLI_AUTH="$(cat /run/redis/operator)" redis-cli --user operator -p {{ .Values.redis.port }}
{{- if .Values.tls.enabled }} --tls --cacert /etc/redis/tls/ca.crt --cert /etc/redis/tls/tls.crt --key /etc/redis/tls/tls.key{{ end }}
{{- end -}}

{{/* The users, each with minimal rights. docs/sessions.md lists those of the services' user. */}}
{{- define "slipstream.redis.rights" -}}
~{{ .Values.redis.prefix }}:* resetchannels -@all +eval +evalsha +time +hget +hgetall +hmget +hset +hdel +get +getrange +strlen +append +del +expire +pexpire +pexpireat +zadd +zcard +zrem +zrangebyscore +zrevrange
{{- end -}}

{{- define "slipstream.redis.rayRights" -}}
~RAY* ~DUMMY resetchannels -@all +@hash +@string +del +unlink +exists +scan +info +ping
{{- end -}}

{{/* Whether Ray's head keeps its state in the bundled Redis. */}}
{{- define "slipstream.redis.hasRay" -}}
{{- if and .Values.redis.enabled .Values.ray.enabled .Values.ray.faultTolerance.enabled (not .Values.ray.faultTolerance.redisAddress) -}}yes{{- end -}}
{{- end -}}

{{/* No password is in an argument or a variable: the server gets digests. The operator probes and has certificates
read again; its password is drawn here and stays in this pod. */}}
{{- define "slipstream.redis.start" -}}
set -eu
umask 077
digest() { tr -d '\r\n' | sha256sum | cut -d ' ' -f 1; }
test -s /etc/redis/auth/password
head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1 > /run/redis/operator
password="$(digest < /etc/redis/auth/password)"
{
  cat /etc/redis/config/redis.conf
  echo
  echo "user default off"
  echo "user operator on #$(digest < /run/redis/operator) resetchannels -@all +ping +config|set"
  echo "user slipstream on #$password {{ include "slipstream.redis.rights" . }}"
  {{- if include "slipstream.redis.hasRay" . }}
  echo "user ray on #$password {{ include "slipstream.redis.rayRights" . }}"
  {{- end }}
} > /run/redis/redis.conf
{{- if .Values.tls.enabled }}
# Certificates that were replaced are read when they are set again.
( while sleep 3600; do
    {{ include "slipstream.redis.client" . }} config set tls-cert-file /etc/redis/tls/tls.crt \
      tls-key-file /etc/redis/tls/tls.key tls-ca-cert-file /etc/redis/tls/ca.crt || true
  done ) > /dev/null 2>&1 &
{{- end }}
exec redis-server /run/redis/redis.conf
{{- end -}}

{{- define "slipstream.redis.ping" -}}
{{ include "slipstream.redis.client" . }} ping | grep -q PONG
{{- end -}}

{{- define "slipstream.redis.pod" -}}
{{- $part := dict "root" . "part" "redis" -}}
{{- $redis := .Values.redis -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 60
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $redis.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $redis.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $redis.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $redis.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $redis.podSecurityContext | nindent 2 }}
containers:
  - name: redis
    image: {{ include "slipstream.image" (dict "root" . "image" $redis.image "tag" "latest") | quote }}
    imagePullPolicy: {{ default .Values.image.pullPolicy $redis.image.pullPolicy }}
    command: ["sh", "/etc/redis/config/start.sh"]
    ports:
      - name: redis
        containerPort: {{ $redis.port }}
    {{- range $probe, $failures := dict "startupProbe" 60 "readinessProbe" 3 "livenessProbe" 6 }}
    {{ $probe }}:
      exec:
        command: ["sh", "/etc/redis/config/ping.sh"]
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: {{ $failures }}
    {{- end }}
    securityContext:
      {{- toYaml $redis.securityContext | nindent 6 }}
    resources:
      {{- toYaml $redis.resources | nindent 6 }}
    volumeMounts:
      - name: config
        mountPath: /etc/redis/config
        readOnly: true
      - name: auth
        mountPath: /etc/redis/auth
        readOnly: true
      - name: data
        mountPath: /data
      - name: run
        mountPath: /run/redis
      {{- if .Values.tls.enabled }}
      - name: tls
        mountPath: /etc/redis/tls
        readOnly: true
      {{- end }}
volumes:
  - name: config
    configMap:
      name: {{ include "slipstream.part" $part }}
  - name: auth
    secret:
      secretName: {{ include "slipstream.redis.secret" . }}
      defaultMode: 0440
      items:
        - key: {{ $redis.auth.passwordKey }}
          path: password
  - name: run
    emptyDir:
      medium: Memory
      sizeLimit: 1Mi
  {{- if not $redis.persistence.enabled }}
  - name: data
    emptyDir: {}
  {{- end }}
  {{- if .Values.tls.enabled }}
  - name: tls
    projected:
      defaultMode: 0440
      sources:
        {{- include "slipstream.tls.sources" $part | nindent 8 }}
  {{- end }}
{{- end -}}

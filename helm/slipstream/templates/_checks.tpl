{{/* Refuse values that do not go together, in one sentence each, before anything is installed. */}}

{{- define "slipstream.checks" -}}
{{- include "slipstream.checks.names" . -}}
{{- include "slipstream.checks.scaling" . -}}
{{- include "slipstream.checks.metrics" . -}}
{{- include "slipstream.checks.redis" . -}}
{{- include "slipstream.checks.models" . -}}
{{- range include "slipstream.models" . | fromJsonArray -}}
{{- if include "slipstream.draft.shared" (dict "Values" .) }}{{ include "slipstream.checks.shared" (dict "Values" .) }}{{ end -}}
{{- end -}}
{{- include "slipstream.checks.tls" . -}}
{{- include "slipstream.checks.auth" . -}}
{{- if .Values.http.enabled }}{{ include "slipstream.checks.http" . }}{{ end -}}
{{- if .Values.inferenceGateway.enabled }}{{ include "slipstream.checks.inferenceGateway" . }}{{ end -}}
{{- include "slipstream.checks.memory" . -}}
{{- range include "slipstream.workloads" . | fromJsonArray -}}
{{- if (get .values .part).enabled -}}
{{- include "slipstream.checks.role" (dict "root" (set (omit $ "Values") "Values" .values) "part" .part) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Clients choose among models by name, and objects of two models have names of their own. */}}
{{- define "slipstream.checks.names" -}}
{{- $served := dict -}}
{{- $objects := dict -}}
{{- range $i, $model := .Values.models -}}
{{- $name := include "slipstream.model.served" .name -}}
{{- $object := include "slipstream.model.object" .name -}}
{{- if not $object -}}
{{- fail (printf "models[%d].name is %s, which has no letter or digit to name objects by" $i .name) -}}
{{- end -}}
{{- if hasKey $served $name -}}
{{- fail (printf "models[%d].name is %s, but models[%d].name is %s: clients could not tell them apart, for both are served as %s" $i .name (int (get $served $name)) (index $.Values.models (get $served $name)).name $name) -}}
{{- end -}}
{{- if hasKey $objects $object -}}
{{- fail (printf "models[%d].name is %s, but models[%d].name is %s: objects of both would be named %s" $i .name (int (get $objects $object)) (index $.Values.models (get $objects $object)).name $object) -}}
{{- end -}}
{{- $_ := set $served $name $i -}}
{{- $_ := set $objects $object $i -}}
{{- end -}}
{{- end -}}

{{/* Where values of a role are written: in its block, or in a model's overrides if there are any. */}}
{{- define "slipstream.role.path" -}}
{{- dig "paths" .part .part (default dict .root.Values.model) -}}
{{- end -}}

{{- define "slipstream.checks.scaling" -}}
{{- range include "slipstream.workloads" . | fromJsonArray -}}
{{- $role := .part -}}
{{- $path := include "slipstream.role.path" (dict "root" (dict "Values" .values) "part" $role) -}}
{{- $autoscaling := (get .values $role).autoscaling -}}
{{- if and $autoscaling.hpa.enabled $autoscaling.keda.enabled -}}
{{- fail (printf "%[1]s.autoscaling.hpa.enabled and %[1]s.autoscaling.keda.enabled exclude each other: two autoscalers would pull at one Deployment" $path) -}}
{{- end -}}
{{- if gt (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas) -}}
{{- fail (printf "%[1]s.autoscaling.minReplicas is %[2]d, more than the %[3]d of %[1]s.autoscaling.maxReplicas" $path (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and (not (int $autoscaling.minReplicas)) (or (ne $role "draft") (not $autoscaling.keda.enabled)) -}}
{{- fail (printf "%[1]s.autoscaling.minReplicas is 0, but must be 1 or more: only drafts scale to zero, with draft.autoscaling.keda.enabled" $path) -}}
{{- end -}}
{{- if and (ne $role "http") $autoscaling.keda.enabled (not $autoscaling.keda.triggers) (not $.Values.autoscaling.prometheusAddress) -}}
{{- fail (printf "%[1]s.autoscaling.keda.enabled needs autoscaling.prometheusAddress, or triggers of its own in %[1]s.autoscaling.keda.triggers" $path) -}}
{{- end -}}
{{- if and (ne $role "http") (or $autoscaling.hpa.enabled $autoscaling.keda.enabled) (not $.Values.metrics.enabled) (not $autoscaling.hpa.metrics) (not $autoscaling.keda.triggers) -}}
{{- fail (printf "%s.autoscaling needs metrics.enabled: it goes by the metrics of the services" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.metrics" -}}
{{- $metrics := .Values.metrics -}}
{{- if and $metrics.serviceMonitor.enabled $metrics.podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor.enabled and metrics.podMonitor.enabled exclude each other: every series would be there twice" -}}
{{- end -}}
{{- if and (not $metrics.enabled) (or $metrics.serviceMonitor.enabled $metrics.podMonitor.enabled) -}}
{{- fail "metrics.serviceMonitor and metrics.podMonitor need metrics.enabled: there is nothing to read without" -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.redis" -}}
{{- $external := .Values.redis.external -}}
{{- if and .Values.redis.enabled $external.url -}}
{{- fail "redis.enabled and redis.external.url exclude each other: set redis.enabled=false to use the external one" -}}
{{- end -}}
{{- if and (not $external.url) (or $external.user $external.existingSecret $external.caSecret $external.clientCertSecret) -}}
{{- fail "redis.external has a user, password or certificate, but no redis.external.url to use them at" -}}
{{- end -}}
{{- if and (or $external.caSecret $external.clientCertSecret) (not (hasPrefix "rediss" $external.url)) -}}
{{- fail "redis.external.caSecret and redis.external.clientCertSecret need a redis.external.url that begins with rediss" -}}
{{- end -}}
{{- $url := include "slipstream.redis.url" . -}}
{{- if and (eq .Values.discovery "registry") (not $url) -}}
{{- fail "discovery is registry, which is kept in Redis: set redis.enabled or redis.external.url, or discovery=dns" -}}
{{- end -}}
{{- $routers := include "slipstream.role.most" (dict "root" . "part" "router") | int -}}
{{- if and .Values.router.enabled (gt $routers 1) (not $url) (not .Values.sessions.allowLocal) -}}
{{- fail (printf "up to %d routers without Redis would each keep sessions that the others know nothing of, and lose them: set redis.enabled or redis.external.url, or sessions.allowLocal=true if that is no matter" $routers) -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.models" -}}
{{- $store := .Values.modelStore -}}
{{- if and (eq $store.type "existingClaim") (not $store.existingClaim) -}}
{{- fail "modelStore.type is existingClaim, but modelStore.existingClaim names none" -}}
{{- end -}}
{{- if and (ne $store.type "existingClaim") $store.existingClaim -}}
{{- fail (printf "modelStore.existingClaim is %s, but modelStore.type is %s: set it to existingClaim" $store.existingClaim $store.type) -}}
{{- end -}}
{{- if and $store.readOnly (ne $store.type "existingClaim") -}}
{{- fail "modelStore.readOnly needs modelStore.type=existingClaim: what the chart makes is empty at first" -}}
{{- end -}}
{{- $models := include "slipstream.models" . | fromJsonArray -}}
{{- $stores := ternary (list $models) (chunk 1 $models) (eq $store.type "pvc") -}}{{/* a pod's own has one model */}}
{{- range ternary $stores list (ne $store.type "existingClaim") -}}
{{- $needed := include "slipstream.models.leastBytes" (dict "models" .) | float64 -}}
{{- if gt $needed (include "slipstream.bytes" $store.size | float64) -}}
{{- fail (printf "modelStore.size is %s, less than the %.0f GB of models, by the number of parameters in the names of each and its draft at 2 bytes each" $store.size (divf $needed 1e9)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $store.type "emptyDir") $store.subPath -}}
{{- fail "modelStore.subPath needs a claim: an emptyDir has no directories" -}}
{{- end -}}
{{- end -}}

{{/* A draft in its target's container has that one's GPU, pods, volumes and everything else but options and services. */}}
{{- define "slipstream.checks.shared" -}}
{{- $draft := .Values.draft -}}
{{- $is := "draft.placement is target" -}}
{{- if or (not .Values.target.enabled) .Values.ray.enabled -}}
{{- fail (printf "%s, which needs target.enabled, and no ray.enabled: Ray runs drafts in pods of their own" $is) -}}
{{- end -}}
{{- if not (int .Values.target.gpu.count) -}}
{{- fail (printf "%s, but target.gpu.count is 0: on CPUs draft and target are pods of their own, whatever their node" $is) -}}
{{- end -}}
{{- if or (int $draft.gpu.count) (ne (int $draft.replicas) 1) $draft.autoscaling.hpa.enabled $draft.autoscaling.keda.enabled -}}
{{- fail (printf "%s, so draft.gpu.count must be 0, draft.replicas 1 and draft.autoscaling off: a draft comes and goes with its target" $is) -}}
{{- end -}}
{{- range $name := list "extraArgs" "extraEnv" "extraEnvFrom" "extraVolumes" "extraVolumeMounts" "extraInitContainers" "extraContainers" "annotations" "podAnnotations" "podLabels" "shmSize" "runtimeClassName" "priorityClassName" "schedulerName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" -}}
{{- if index $draft $name -}}
{{- fail (printf "%[1]s, so draft.%[2]s has no pod to go to: set target.%[2]s" $is $name) -}}
{{- end -}}
{{- end -}}
{{- if or $draft.image.registry $draft.image.tag $draft.image.digest $draft.image.pullPolicy $draft.networkPolicy.extraIngress $draft.networkPolicy.extraEgress -}}
{{- fail (printf "%s, so draft.image and draft.networkPolicy have no pod to go to: set target.image and target.networkPolicy" $is) -}}
{{- end -}}
{{- range $role := list "draft" "target" -}}
{{- $memory := default "auto" (index $.Values $role).config.kv_memory -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+ *[KMGT]iB| *([KMGT]iB|B)?)$" $memory) -}}
{{- fail (printf "%s, but %s.config.kv_memory is %s: both must be sizes such as 4GiB, for a share is of the memory that the other has not taken yet" $is $role $memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.tls" -}}
{{- $tls := .Values.tls -}}
{{- if not $tls.enabled -}}
{{- if or $tls.certManager.enabled $tls.secrets.router $tls.secrets.draft $tls.secrets.target $tls.secrets.http -}}
{{- fail "tls has certificates, but tls.enabled is false: nothing would use them" -}}
{{- end -}}
{{- else if $tls.certManager.enabled -}}
{{- if not $tls.certManager.issuerRef.name -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name, of an issuer that is there" -}}
{{- end -}}
{{- range $name, $secret := $tls.secrets -}}
{{- if $secret -}}
{{- fail (printf "tls.secrets.%s and tls.certManager.enabled exclude each other: who makes the certificates?" $name) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range $name := include "slipstream.tls.needed" . | fromJsonArray -}}
{{- if not (index $tls.secrets $name) -}}
{{- fail (printf "tls.enabled needs a certificate of %[1]s: name its secret in tls.secrets.%[1]s, or set tls.certManager.enabled" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whose certificates there must be, as a list in JSON. */}}
{{- define "slipstream.tls.needed" -}}
{{- $needed := list -}}
{{- range $role := include "slipstream.roles" . | fromJsonArray -}}
{{- if (index $.Values $role).enabled }}{{ $needed = append $needed $role }}{{ end -}}
{{- end -}}
{{- if .Values.redis.enabled }}{{ $needed = append $needed "redis" }}{{ end -}}
{{- if and .Values.tests.enabled .Values.router.enabled .Values.tls.requireClientCertificates }}{{ $needed = append $needed "client" }}{{ end -}}
{{- toJson $needed -}}
{{- end -}}

{{- define "slipstream.checks.auth" -}}
{{- $auth := .Values.auth -}}
{{- if and $auth.existingSecret $auth.keys -}}
{{- fail "auth.existingSecret and auth.keys exclude each other: keys come from one file" -}}
{{- end -}}
{{- if and $auth.enabled (not $auth.existingSecret) (not $auth.keys) -}}
{{- fail "auth.enabled needs keys: name a secret in auth.existingSecret, or give their digests in auth.keys" -}}
{{- end -}}
{{- if and (not $auth.enabled) (or $auth.existingSecret $auth.keys) -}}
{{- fail "auth has keys, but auth.enabled is false: everybody could call routers all the same" -}}
{{- end -}}
{{- if and $auth.enabled .Values.tests.enabled .Values.router.enabled (not .Values.tests.tokenSecret) -}}
{{- fail "auth.enabled needs tests.tokenSecret, a secret with a token for `helm test`, or tests.enabled=false" -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.http" -}}
{{- $http := .Values.http -}}
{{- if not (or .Values.router.enabled $http.config.router) -}}
{{- fail "http.enabled needs router.enabled, or routers elsewhere in http.config.router" -}}
{{- end -}}
{{- if and (not .Values.tls.enabled) (or .Values.auth.enabled $http.token.existingSecret $http.config.router) (not $http.config.plaintext_tokens) -}}
{{- fail "http.enabled needs tls.enabled where routers have API keys or are elsewhere: bearer tokens would travel in the clear; http.config.plaintext_tokens=true allows that" -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.inferenceGateway" -}}
{{- if not (and .Values.http.enabled .Values.metrics.enabled) -}}
{{- fail "inferenceGateway.enabled needs http.enabled, whose pods are its pool, and metrics.enabled, by which a picker chooses" -}}
{{- end -}}
{{- if not .Values.inferenceGateway.parentRefs -}}
{{- fail "inferenceGateway.enabled needs inferenceGateway.parentRefs: a route without a gateway serves no request" -}}
{{- end -}}
{{- if not .Values.inferenceGateway.endpointPicker.service -}}
{{- fail "inferenceGateway.enabled needs inferenceGateway.endpointPicker.service, the service of the endpoint picker" -}}
{{- end -}}
{{- end -}}

{{/* A container without a limit takes what its node has; a service goes by the limit when it reserves keys and values. */}}
{{- define "slipstream.checks.memory" -}}
{{- $all := dict "tests.resources" .Values.tests.resources -}}
{{- range include "slipstream.workloads" . | fromJsonArray -}}
{{- $values := get .values .part -}}
{{- if $values.enabled }}{{ $_ := set $all (printf "%s.resources" (include "slipstream.role.path" (dict "root" (dict "Values" .values) "part" .part))) $values.resources }}{{ end -}}
{{- end -}}
{{- if .Values.modelStore.pull.enabled }}{{ $_ := set $all "modelStore.pull.resources" .Values.modelStore.pull.resources }}{{ end -}}
{{- if .Values.redis.enabled }}{{ $_ := set $all "redis.resources" .Values.redis.resources }}{{ end -}}
{{- if .Values.ray.enabled }}{{ $_ := set $all "ray.head.resources" .Values.ray.head.resources }}{{ end -}}
{{- range $path, $resources := $all -}}
{{- $limit := dig "limits" "memory" "" (default dict $resources) -}}
{{- $request := dig "requests" "memory" "" (default dict $resources) -}}
{{- if not $limit -}}
{{- fail (printf "%s.limits.memory is not set: without it a pod may take all the memory of its node" $path) -}}
{{- end -}}
{{- if and $request (gt (include "slipstream.bytes" $request | float64) (include "slipstream.bytes" $limit | float64)) -}}
{{- fail (printf "%[1]s.requests.memory is %[2]v, more than the %[3]v of %[1]s.limits.memory" $path $request $limit) -}}
{{- end -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
{{- $limit := .Values.redis.resources.limits.memory -}}
{{- if ge (include "slipstream.bytes" .Values.redis.maxMemory | float64) (include "slipstream.bytes" $limit | float64) -}}
{{- fail (printf "redis.maxMemory is %s, but must be below the %v of redis.resources.limits.memory: the server would be killed before it is full" .Values.redis.maxMemory $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.role" -}}
{{- $values := index .root.Values .part -}}
{{- $path := include "slipstream.role.path" . -}}
{{- $grace := include "slipstream.role.grace" . | int -}}
{{- $longest := .root.Values.longestGenerationSeconds | int -}}
{{- if le $grace $longest -}}
{{- fail (printf "%s.drain.graceSeconds is %d, but must be above the %d of longestGenerationSeconds: a pod that stops would cut requests off" $path $grace $longest) -}}
{{- end -}}
{{- $needed := add $values.drain.preStopSeconds $grace -}}
{{- $termination := include "slipstream.role.termination" . | int -}}
{{- if le $termination (int $needed) -}}
{{- fail (printf "%s.drain.terminationGracePeriodSeconds is %d, but must be above the %d of preStopSeconds and graceSeconds together: a pod that stops would be killed before it is done" $path $termination (int $needed)) -}}
{{- end -}}
{{- $ports := list (include "slipstream.role.metricsPort" . | int) -}}
{{- range $values.ports }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- if and (eq .part "target") (include "slipstream.draft.shared" .root) -}}
{{- $ports = append $ports (int .root.Values.draft.ports.grpc) | concat (list (include "slipstream.role.metricsPort" (dict "root" .root "part" "draft") | int)) -}}
{{- end -}}
{{- if lt (len (uniq $ports)) (len $ports) -}}
{{- fail (printf "%s.ports and metrics.port must differ: each is a port of the same pod" $path) -}}
{{- end -}}
{{- if and $values.pdb.enabled (eq (toString $values.pdb.minAvailable) "") (eq (toString $values.pdb.maxUnavailable) "") -}}
{{- fail (printf "%s.pdb needs minAvailable or maxUnavailable" $path) -}}
{{- end -}}
{{- if and (eq $values.strategy.type "RollingUpdate") (has (toString $values.strategy.maxSurge) (list "0" "0%")) (has (toString $values.strategy.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s.strategy.maxSurge and maxUnavailable are both 0, so that no pod could ever be replaced" $path) -}}
{{- end -}}
{{- include "slipstream.checks.gpu" . -}}
{{- if and (eq .part "router") (not .root.Values.target.enabled) (eq (include "slipstream.discovery" .root) "dns") (not $values.config.targets) -}}
{{- fail "target.enabled is false, so routers need a Redis that targets announce themselves in, or router.config.targets" -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.checks.gpu" -}}
{{- $values := index .root.Values .part -}}
{{- $path := include "slipstream.role.path" . -}}
{{- $count := int $values.gpu.count -}}
{{- $device := default "" $values.config.device -}}
{{- if and $count (not (include "slipstream.role.isEngine" .)) -}}
{{- fail (printf "%[1]s.gpu.count is %[2]d, but must be 0: %[1]s loads no model" $path $count) -}}
{{- end -}}
{{- if and (eq .part "draft") (gt $count 1) -}}
{{- fail (printf "%[1]s.gpu.count is %[2]d, but a draft uses one GPU: raise %[1]s.replicas" $path $count) -}}
{{- end -}}
{{- if and (hasPrefix "cuda" $device) (not $count) -}}
{{- fail (printf "%[1]s.config.device is %[2]s, but %[1]s.gpu.count is 0" $path $device) -}}
{{- end -}}
{{- if and (eq $device "cpu") $count -}}
{{- fail (printf "%[1]s.config.device is cpu, but %[1]s.gpu.count is %[2]d: GPUs would stand idle" $path $count) -}}
{{- end -}}
{{- $parallel := int (default 0 $values.config.tensor_parallel) -}}
{{- if and $parallel $count (ne $parallel $count) -}}
{{- fail (printf "%[1]s.config.tensor_parallel is %[2]d, but %[1]s.gpu.count is %[3]d: a process has one GPU, and none may stand idle" $path $parallel $count) -}}
{{- end -}}
{{- end -}}

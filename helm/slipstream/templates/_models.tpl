{{/* The models, and the values that the pods of each have: those of the role, and the model's overrides of them. */}}

{{/* Name that clients send: that of services, which know a path by its last part, a hub id without a revision. */}}
{{- define "slipstream.model.served" -}}
{{- $known := dict "smollm2-135m-q4_1" "smollm2-135m" "HuggingFaceTB/SmolLM2-135M-Instruct" "smollm2-135m" -}}
{{- $name := ternary (regexReplaceAll "@.*$" . "") (base .) (not (empty (include "slipstream.models.fetchable" .))) -}}
{{- default $name (get $known $name) -}}
{{- end -}}

{{/* The same in names of objects and in labels. */}}
{{- define "slipstream.model.object" -}}
{{- $last := include "slipstream.model.served" . | base | lower -}}
{{- include "slipstream.short" (dict "text" (regexReplaceAll "[^a-z0-9]+" $last "-" | trimAll "-") "most" 40) -}}
{{- end -}}

{{/* A value (.base) with what overrides it (.over), as `value` of an object in JSON: objects key by key, where null
takes a key away, and anything else as a whole. Not by merge, to which false and 0 are nothing. */}}
{{- define "slipstream.overridden" -}}
{{- $whole := .over -}}
{{- if and (kindIs "map" .base) (kindIs "map" .over) -}}
{{- $whole = deepCopy .base -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $whole $key -}}
{{- else -}}
{{- $_ := set $whole $key (include "slipstream.overridden" (dict "base" (get $whole $key) "over" $value) | fromJson).value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "value" $whole) -}}
{{- end -}}

{{/* The values of the release as the pods of each model have them, as a list in JSON: `model` has its
name, its draft, its name in objects, and where it overrides values of a role. */}}
{{- define "slipstream.models" -}}
{{- $all := list -}}
{{- range $i, $model := .Values.models -}}
{{- $values := omit $.Values "models" -}}
{{- $object := include "slipstream.model.object" $model.name -}}
{{- $paths := dict -}}
{{- range $role := list "draft" "target" -}}
{{- $over := get (default dict $model.overrides) $role | default dict -}}
{{- $_ := set $values $role (include "slipstream.overridden" (dict "base" (get $.Values $role) "over" $over) | fromJson).value -}}
{{- if $over }}{{ $_ := set $paths $role (printf "models[%d].overrides.%s" $i $role) }}{{ end -}}
{{- end -}}
{{- $_ := set $values "model" (dict "name" $model.name "draft" (default "glide" $model.draft) "object" $object "paths" $paths) -}}
{{- $all = append $all $values -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* What has pods of its own, as a list in JSON: a role (.part) with the values of its pods (.values); engines once for
each model. */}}
{{- define "slipstream.workloads" -}}
{{- $all := list -}}
{{- $models := include "slipstream.models" . | fromJsonArray -}}
{{- range $role := include "slipstream.roles" . | fromJsonArray -}}
{{- if include "slipstream.role.isEngine" (dict "part" $role) -}}
{{- range $values := $models }}{{ $all = append $all (dict "part" $role "values" $values) }}{{ end -}}
{{- else -}}
{{- $all = append $all (dict "part" $role "values" $.Values) -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* Names of the models that a role's pods fetch, as a list in JSON. */}}
{{- define "slipstream.role.models" -}}
{{- $model := .root.Values.model -}}
{{- $names := list -}}
{{- range $role := include "slipstream.role.residents" . | fromJsonArray -}}
{{- if eq $role "target" -}}
{{- $names = append $names $model.name -}}
{{- else if eq $role "draft" -}}
{{- $names = append $names (ternary (trimPrefix "vanilla:" $model.draft) $model.name (hasPrefix "vanilla:" $model.draft)) -}}
{{- if and (hasPrefix "eagle3:" $model.draft) (include "slipstream.models.fetchable" (trimPrefix "eagle3:" $model.draft)) }}{{ $names = append $names $model.draft }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $fetched := list -}}
{{- range uniq $names -}}
{{- if include "slipstream.models.fetchable" . }}{{ $fetched = append $fetched . }}{{ end -}}
{{- end -}}
{{- toJson $fetched -}}
{{- end -}}

{{/* Whether a text names a model that can be fetched: not a path. */}}
{{- define "slipstream.models.fetchable" -}}
{{- if not (or (hasPrefix "/" .) (hasPrefix "." .) (hasPrefix "~" .)) -}}yes{{- end -}}
{{- end -}}

{{/* Bytes of the models that are fetched for the drafts and targets of a list of values (.models), 2 for each parameter
in their names; 0 for a name that has none, says that it is quantized, or is that of a head for such a model. */}}
{{- define "slipstream.models.leastBytes" -}}
{{- $all := list -}}
{{- range $values := .models -}}
{{- range $role := list "target" "draft" -}}
{{- if (get $values $role).enabled }}{{ $all = concat $all (include "slipstream.role.models" (dict "root" (dict "Values" $values) "part" $role) | fromJsonArray) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $bytes := 0.0 -}}
{{- range uniq $all -}}
{{- if not (regexMatch "(?i)awq|gptq|gguf|bnb|fp[48]|int[48]|w[48]a|[2-8]-?bit|^eagle3:" .) -}}
{{- $billions := regexFind "[-_][0-9]+([.][0-9]+)?[bB]([-_@]|$)" . | regexFind "[0-9.]+" | default "0" -}}
{{- $bytes = addf $bytes (mulf (float64 $billions) 2e9) -}}
{{- end -}}
{{- end -}}
{{- printf "%.0f" $bytes -}}
{{- end -}}

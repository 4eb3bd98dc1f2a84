{{- /*
Pieces that more than one object has. Every one takes a list whose first item is the root context. `component` is gateway,
triton, sync, controller or controlplane. Comments that begin with # reach whoever reads the rendered objects; these do not.
*/ -}}

{{- /* What the objects of a release begin with. 40 characters leave room for `-triton-POOL` in the name of a Service. */ -}}
{{- define "triton-gateway.fullname" -}}
{{- $ := index . 0 -}}
{{- $own := $.Release.Name -}}
{{- if not (contains $.Chart.Name $own) -}}
{{- $own = printf "%s-%s" $own $.Chart.Name -}}
{{- end -}}
{{ default $own $.Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /*
Name of an object: (list $ component), or (list $ "triton" pool). The gateway's is the release's; where that is
`triton-gateway`, the others have short names: triton, sync, controller, controlplane.
*/ -}}
{{- define "triton-gateway.name" -}}
{{- $full := include "triton-gateway.fullname" . -}}
{{- $component := index . 1 -}}
{{- $name := $component -}}
{{- if eq $component "gateway" -}}
{{- $name = $full -}}
{{- else if ne $full "triton-gateway" -}}
{{- $name = printf "%s-%s" $full $component -}}
{{- end -}}
{{- if and (gt (len .) 2) (ne (index . 2) "default") -}}
{{- $name = printf "%s-%s" $name (index . 2) -}}
{{- end -}}
{{ $name }}
{{- end }}

{{- /* What never changes: (list $ component), or (list $ "triton" pool). */ -}}
{{- define "triton-gateway.selectorLabels" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- if gt (len .) 2 }}
triton-gateway/pool: {{ index . 2 }}
{{- end }}
{{- end }}

{{- define "triton-gateway.labels" -}}
{{- $ := index . 0 -}}
{{ include "triton-gateway.selectorLabels" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The headless Service by which gateways count themselves; empty if the values set their number. */ -}}
{{- define "triton-gateway.peers" -}}
{{- $ := index . 0 -}}
{{- $set := keys $.Values.gateway.env -}}
{{- range $.Values.gateway.extraEnv }}{{ $set = append $set .name }}{{ end -}}
{{- if not (has "TRITON_GATEWAY_REPLICAS" $set) -}}
{{ include "triton-gateway.name" (list $ "gateway") }}-peers
{{- end }}
{{- end }}

{{- define "triton-gateway.selector" -}}
matchLabels: {{ include "triton-gateway.selectorLabels" . | nindent 2 }}
{{- end }}

{{- /* (list values of the component, what finds its pods, e.g. (list $ component), topologyKey…) */ -}}
{{- define "triton-gateway.spread" -}}
{{- $pods := index . 1 -}}
{{- if kindIs "slice" (index . 0).topologySpreadConstraints }}
{{- with (index . 0).topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml . | nindent 2 }}
{{- end }}
{{- else -}}
topologySpreadConstraints:
  {{- range rest (rest .) }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {{ include "triton-gateway.selector" $pods | nindent 6 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "triton-gateway.serviceAccountName" -}}
{{- $account := (index . 0).Values.serviceAccount -}}
{{ default (ternary (include "triton-gateway.fullname" .) "default" $account.create) $account.name }}
{{- end }}

{{- /* What every pod says first. */ -}}
{{- define "triton-gateway.pod" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ include "triton-gateway.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false # Kubernetes' TRITON_* variables are not needed
{{- with $.Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ toYaml $.Values.podSecurityContext | nindent 2 }}
{{- end }}

{{- /* JSON of a map laid over another one, as Helm does it with values: (list under over). */ -}}
{{- define "triton-gateway.over" -}}
{{- $found := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $found $key -}}
{{- else -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $found $key)) -}}
{{- $value = include "triton-gateway.over" (list (get $found $key) $value) | fromJson -}}
{{- end -}}
{{- $_ := set $found $key $value -}}
{{- end -}}
{{- end -}}
{{ $found | toJson }}
{{- end }}

{{- /*
JSON of every pool of Tritons that this release runs: {name: default} is what `triton` says, then each of `triton.pools` laid
over it. Who needs one object per pool loops over it: {{ range include "triton-gateway.pools" (list $) | fromJsonArray }}
*/ -}}
{{- define "triton-gateway.pools" -}}
{{- $ := index . 0 -}}
{{- $found := list -}}
{{- if $.Values.triton.enabled -}}
{{- $own := dict "name" "default" "autoscaling" $.Values.autoscaling.triton -}}
{{- $default := merge $own (omit $.Values.triton "pools") -}}
{{- $found = list $default -}}
{{- range $.Values.triton.pools -}}
{{- $name := .name -}}
{{- range $found -}}
{{- if eq .name $name -}}
{{- fail (printf "triton.pools: two pools are called %s (`default` is the pool of `triton` itself)" $name) -}}
{{- end -}}
{{- end -}}
{{- $found = append $found (include "triton-gateway.over" (list $default .) | fromJson) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.triton.pools (not $found) -}}
{{- fail "triton.pools: needs triton.enabled" -}}
{{- end -}}
{{ $found | toJson }}
{{- end }}

{{- /* Where gateways find the pools that endpoints name: POOL=ADDRESS…, without the default one. */ -}}
{{- define "triton-gateway.poolAddresses" -}}
{{- $ := index . 0 -}}
{{- $found := list -}}
{{- range include "triton-gateway.pools" . | fromJsonArray | rest -}}
{{- $found = append $found (printf "%s=dns:///%s:8001" .name (include "triton-gateway.name" (list $ "triton" .name))) -}}
{{- end -}}
{{ join " " $found }}
{{- end }}

{{- /* What a pod is told about itself: (list $ labels, values of the component). New settings make new pods. */ -}}
{{- define "triton-gateway.podMetadata" -}}
{{- $ := index . 0 -}}
labels: {{ index . 1 | nindent 2 }}
  {{- with (index . 2).podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ include "triton-gateway.settingsData" (list $) | sha256sum | trunc 16 | quote }}
  {{- with (index . 2).podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* Where a pod may run: (list $ values of the component). */ -}}
{{- define "triton-gateway.placement" -}}
{{- with (index . 1).nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := (index . 1).tolerations -}}
{{- if get (index . 1) "gpus" -}}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- with $tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with (index . 1).runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with (index . 1).initContainers }}
initContainers: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* (list $ what follows the repository's name), and another image, which replaces all of it unless it is empty. */ -}}
{{- define "triton-gateway.image" -}}
{{- $ := index . 0 -}}
{{- $image := $.Values.image -}}
{{- $own := printf "%s%s:%s" $image.repository (index . 1) (default $.Chart.AppVersion $image.tag) -}}
{{- with $image.registry }}{{ $own = printf "%s/%s" (trimSuffix "/" .) $own }}{{ end -}}
{{- if gt (len .) 2 }}{{ $own = default $own (index . 2) }}{{ end -}}
image: {{ $own }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- /* Memory is guaranteed; no CPU limit: being throttled shows as p99. */ -}}
{{- define "triton-gateway.resources" -}}
{{- $ := index . 0 -}}
{{- $resources := deepCopy (index . 1) -}}
{{- /* What its emptyDirs may hold, so that a pod starts on a node that has it; for development a node may be small. */ -}}
{{- if and (gt (len .) 2) (not $.Values.controlplane.enabled) (not (hasKey $resources.requests "ephemeral-storage")) -}}
{{- $_ := set $resources.requests "ephemeral-storage" (index . 2) -}}
{{- end -}}
requests: {{ include "triton-gateway.flow" $resources.requests }}
limits: {{ include "triton-gateway.flow" $resources.limits }}
{{- end }}

{{- /* A map on one line. */ -}}
{{- define "triton-gateway.flow" -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ $key }}: {{ get $ $key | toJson }}{{ end -}} }
{{- end }}

{{- /* (list $ path port period timeout failures), with "HTTPS" behind it if that is spoken */ -}}
{{- define "triton-gateway.probe" -}}
httpGet: {path: {{ index . 1 }}, port: {{ index . 2 }}{{ if gt (len .) 6 }}, scheme: {{ index . 6 }}{{ end }}}
periodSeconds: {{ index . 3 }}
timeoutSeconds: {{ index . 4 }}
failureThreshold: {{ index . 5 }}
{{- end }}

{{- /* JSON of the ClearML server's addresses: the embedded control plane's, or what is said. */ -}}
{{- define "triton-gateway.server" -}}
{{- $ := index . 0 -}}
{{- $server := pick $.Values.clearml "apiHost" "filesHost" "webHost" -}}
{{- if not (or $server.apiHost $.Values.controlplane.enabled) -}}
{{- fail "clearml.apiHost, clearml.credentialsSecret: set the API of your ClearML server and the Secret with CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY; or controlplane.enabled=true for a trial without one" -}}
{{- end -}}
{{- range $key, $to := dict "filesHost" (list "files" "8081" "-fileserver") "webHost" (list "app" "8080" "-webserver") -}}
{{- if not (get $server $key) -}}
{{- $_ := set $server $key ($server.apiHost | replace "//api." (printf "//%s." (first $to)) | replace ":8008" (printf ":%s" (index $to 1)) | replace "-apiserver" (last $to)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $server.filesHost $server.apiHost) (not $.Values.controlplane.enabled) -}}
{{- fail "clearml.filesHost: set it, because it does not follow from clearml.apiHost" -}}
{{- end -}}
{{- if $.Values.controlplane.enabled -}}
{{- $own := printf "http://%s:8008" (include "triton-gateway.name" (list $ "controlplane")) -}}
{{- $server = dict "apiHost" $own "filesHost" (printf "%s/files" $own) "webHost" $own -}}
{{- end -}}
{{ $server | toJson }}
{{- end }}

{{- define "triton-gateway.settingsData" -}}
{{- $server := include "triton-gateway.server" . | fromJson -}}
CLEARML_API_HOST: {{ $server.apiHost | quote }}
CLEARML_FILES_HOST: {{ $server.filesHost | quote }}
CLEARML_WEB_HOST: {{ $server.webHost | quote }}
{{- with (index . 0).Values.clearml.servingTaskId }}
CLEARML_SERVING_TASK_ID: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* The Secret with the keys of ClearML: yours, or what the chart makes for its own control plane. */ -}}
{{- define "triton-gateway.credentialsSecret" -}}
{{- $ := index . 0 -}}
{{- if not (or $.Values.clearml.credentialsSecret $.Values.controlplane.enabled) -}}
{{- fail "clearml.credentialsSecret: the Secret with CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY of your ClearML server" -}}
{{- end -}}
{{ default (printf "%s-clearml" (include "triton-gateway.fullname" .)) $.Values.clearml.credentialsSecret }}
{{- end }}

{{- /* The Secret with the key of Triton's control APIs: yours, what the chart makes for its own Triton, or none. */ -}}
{{- define "triton-gateway.tritonKeySecret" -}}
{{- $ := index . 0 -}}
{{- $own := ternary (printf "%s-triton-key" (include "triton-gateway.fullname" .)) "" $.Values.triton.enabled -}}
{{ default $own $.Values.triton.keySecret }}
{{- end }}

{{- /* The two keys of ClearML, in variables that begin with a word. */ -}}
{{- define "triton-gateway.credentials" -}}
{{- $ := index . 0 -}}
{{- $prefix := index . 1 -}}
{{- $api := ternary "_API" "" (eq $prefix "CLEARML") -}}
- name: {{ $prefix }}{{ $api }}_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ include "triton-gateway.credentialsSecret" (list $) }}, key: CLEARML_API_ACCESS_KEY}}
- name: {{ $prefix }}{{ $api }}_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ include "triton-gateway.credentialsSecret" (list $) }}, key: CLEARML_API_SECRET_KEY}}
{{- end }}

{{- /* The Secret with the key of Triton's control APIs as a volume; `optional` where Triton may have none. */ -}}
{{- define "triton-gateway.tritonKey" -}}
{{- with include "triton-gateway.tritonKeySecret" . -}}
- name: triton-key
  secret:
    secretName: {{ . }}
    defaultMode: 288
    items: [{key: key, path: triton}]
    {{- if index $ 1 }}
    optional: true
    {{- end }}
{{- end }}
{{- end }}

{{- /* TLS to Triton for its clients, gateways and model sync: (list $ name in the certificate, or empty: the address's host). */ -}}
{{- define "triton-gateway.tritonTlsEnv" -}}
{{- $tls := (index . 0).Values.triton.tls -}}
{{- if and $tls.clientSecret (not $tls.secret) -}}
{{- fail "triton.tls.clientSecret: set triton.tls.secret too; without it there is no TLS to Triton" -}}
{{- end -}}
{{- if $tls.secret }}
- {name: TRITON_GATEWAY_TRITON_TLS, value: /triton-tls} # read again when the Secrets change
{{- with index . 1 }}
- {name: TRITON_GATEWAY_TRITON_TLS_NAME, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "triton-gateway.tritonTlsMounts" -}}
{{- $tls := (index . 0).Values.triton.tls -}}
{{- if $tls.secret -}}
- {name: triton-tls, mountPath: /triton-tls, readOnly: true}
{{- end }}
{{- end }}

{{- /* Clients see Triton's authority, not its key. */ -}}
{{- define "triton-gateway.tritonTlsVolumes" -}}
{{- $tls := (index . 0).Values.triton.tls -}}
{{- if $tls.secret -}}
- name: triton-tls
  projected:
    defaultMode: 288
    sources:
      - secret: {name: {{ $tls.secret }}, items: [{key: ca.crt, path: ca.crt}]}
      {{- with $tls.clientSecret }}
      - secret: {name: {{ . }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
      {{- end }}
{{- end }}
{{- end }}

{{- /* Arguments of tritonserver. */ -}}
{{- define "triton-gateway.tritonTlsArgs" -}}
{{- $tls := (index . 0).Values.triton.tls -}}
{{- if $tls.secret -}}
- {{ ternary "--grpc-use-ssl-mutual=true" "--grpc-use-ssl=true" (ne $tls.clientSecret "") }}
- --grpc-server-cert=/triton-server-tls/tls.crt
- --grpc-server-key=/triton-server-tls/tls.key
- --grpc-root-cert=/triton-server-tls/ca.crt
{{- end }}
{{- end }}

{{- /* Where gateways find Triton: by its headless Service, or the address that is said. */ -}}
{{- define "triton-gateway.tritonAddress" -}}
{{- $ := index . 0 -}}
{{- $service := include "triton-gateway.name" (list $ "triton") -}}
{{- if not (or $.Values.triton.enabled $.Values.triton.address) -}}
{{- fail "triton.address: set the address of your Triton, as dns:///host:port" -}}
{{- end -}}
{{ default (printf "dns:///%s:8001" $service) $.Values.triton.address }}
{{- end }}

{{- /* Ports on one line, each with the protocol that the server would write: numbers or names. */ -}}
{{- define "triton-gateway.ports" -}}
[{{ range $index, $port := . }}{{ if $index }}, {{ end }}{protocol: TCP, port: {{ $port }}}{{ end }}]
{{- end }}

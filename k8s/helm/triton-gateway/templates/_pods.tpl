{{- /* The pods of gateway, Triton and model sync: what a Deployment holds. */ -}}

{{- define "triton-gateway.gatewayEnv" -}}
{{- $ := index . 0 -}}
{{- $gateway := $.Values.gateway -}}
- {name: TRITON_GATEWAY_HOST, value: 0.0.0.0}
- {name: TRITON_GATEWAY_PORT, value: "8080"}
{{- if not (or $gateway.allowAnonymous $gateway.keysSecret) }}
{{- fail "gateway: set keysSecret, or allowAnonymous=true if a proxy in front decides who may call; without either a gateway does not start" }}
{{- end }}
{{- if $gateway.allowAnonymous }}
- {name: TRITON_GATEWAY_ALLOW_ANONYMOUS, value: "true"} # a proxy, a mesh or a policy in front decides who may call; otherwise keys (docs/security.md)
{{- end }}
{{- if $gateway.keysSecret }}
- {name: TRITON_GATEWAY_KEYS_FILE, value: /callers/keys.json} # read again when the Secret changes
{{- end }}
{{- with include "triton-gateway.peers" (list $) }}
- {name: TRITON_GATEWAY_REPLICAS, value: {{ . }}} # the ready pods behind this name share the quotas and the calls to Triton
{{- end }}
- {name: TRITON_GATEWAY_TRITON_GRPC, value: {{ include "triton-gateway.tritonAddress" (list $) | quote }}} # the gateway spreads its calls over all Triton pods
{{- with include "triton-gateway.poolAddresses" (list $) }}
- {name: TRITON_GATEWAY_POOLS, value: {{ . | quote }}} # addresses of the pools that endpoints name
{{- end }}
{{- include "triton-gateway.tritonTlsEnv" (list $ $.Values.triton.tls.name) }}
- {name: TRITON_GATEWAY_POLL_FREQUENCY, value: {{ $gateway.pollFrequency }}}
- {name: TRITON_GATEWAY_CONNECTION_AGE, value: 60s} # makes callers that keep connections find new pods
- {name: TRITON_GATEWAY_DRAIN_DELAY, value: 2s} # time in which answers tell callers that the pod ends
- {name: TRITON_GATEWAY_DRAIN_TIMEOUT, value: {{ $gateway.drainTimeout }}}
- {name: TRITON_GATEWAY_LOG_FORMAT, value: json}
{{- if $gateway.tls.secret }}
- {name: TRITON_GATEWAY_TLS, value: /tls} # read again when the Secret changes
{{- end }}
{{- if $gateway.grpcPort }}
- {name: TRITON_GATEWAY_GRPC_PORT, value: {{ $gateway.grpcPort | quote }}}
{{- end }}
{{ include "triton-gateway.credentials" (list $ "CLEARML") }}
{{- end }}

{{- /* (list value entries others): no entry may have the name of one of the others, which it would hide without a word. */ -}}
{{- define "triton-gateway.refuseTwice" -}}
{{- $names := list -}}
{{- range index . 2 }}{{ $names = append $names .name }}{{ end -}}
{{- $value := index . 0 -}}
{{- range index . 1 -}}
{{- if has .name $names -}}
{{- fail (printf "%s: %s is set by the chart itself, or twice; set the chart value instead" $value .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end }}

{{- define "triton-gateway.gatewayPod" -}}
{{- $ := index . 0 -}}
{{- $gateway := $.Values.gateway -}}
{{- $scheme := ternary (list "HTTPS") list (ne $gateway.tls.secret "") -}}
{{- $unit := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) (regexFind "[a-z]+$" $gateway.drainTimeout) -}}
{{- $drain := mulf $unit (regexFind "^[0-9.]+" $gateway.drainTimeout | float64) -}}
{{- $least := addf $gateway.preStopSeconds 2 $drain 5 | ceil | int -}}
{{- if lt (int $gateway.terminationGracePeriodSeconds) $least -}}
{{- fail (printf "gateway.terminationGracePeriodSeconds: at least %d, so that a pod is not killed while it drains: preStopSeconds + 2 + drainTimeout + 5" $least) -}}
{{- end -}}
{{ include "triton-gateway.pod" (list $) }}
# preStop 10 s + drain delay 2 s + time of requests in flight (TRITON_GATEWAY_DRAIN_TIMEOUT) + 8 s
terminationGracePeriodSeconds: {{ $gateway.terminationGracePeriodSeconds }}
{{- include "triton-gateway.placement" (list $ $gateway) }}
{{ include "triton-gateway.spread" (list $gateway (list $ "gateway") "topology.kubernetes.io/zone" "kubernetes.io/hostname") }}
containers:
  - name: gateway
    {{- include "triton-gateway.image" (list $ "") | nindent 4 }}
    args: [serve]
    envFrom: [{configMapRef: {name: {{ include "triton-gateway.fullname" (list $) }}}}]
    env:
      {{- $written := include "triton-gateway.gatewayEnv" (list $) }}
      {{- $names := list }}
      {{- range fromYamlArray $written }}{{ $names = append $names .name }}{{ end }}
      {{- $names = concat $names (keys (include "triton-gateway.settingsData" (list $) | fromYaml)) }}
      {{- $written | nindent 6 }}
      {{- $more := list }}
      {{- range $name, $value := $gateway.env }}
      {{- $more = append $more (dict "name" $name) }}
      {{- if has $name $names }}
      {{- fail (printf "gateway.env.%s: the chart sets this variable itself; set the chart value instead" $name) }}
      {{- end }}
      - {name: {{ $name }}, value: {{ $value | quote }}}
      {{- end }}
      {{- include "triton-gateway.refuseTwice" (list "gateway.extraEnv" $gateway.extraEnv (concat (fromYamlArray $written) $more)) }}
      {{- with $gateway.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: http, containerPort: 8080, protocol: TCP}
      {{- if $gateway.grpcPort }}
      - {name: grpc, containerPort: {{ $gateway.grpcPort }}, protocol: TCP}
      {{- end }}
    # two minutes for loading models, tokenizers and hooks before liveness counts
    startupProbe: {{ include "triton-gateway.probe" (concat (list $ "/livez" "http" 2 2 60) $scheme) | nindent 6 }}
    # whether the gateway can answer requests; depends on Triton
    readinessProbe: {{ include "triton-gateway.probe" (concat (list $ "/readyz" "http" 3 2 2) $scheme) | nindent 6 }}
    # whether the process answers, and nothing else: restarting a gateway repairs neither ClearML nor Triton
    livenessProbe: {{ include "triton-gateway.probe" (concat (list $ "/livez" "http" 10 5 3) $scheme) | nindent 6 }}
    lifecycle:
      # still answer: new requests come until every node knows that the pod ends
      preStop: {exec: {command: [sleep, {{ $gateway.preStopSeconds | quote }}]}}
    resources: {{ include "triton-gateway.resources" (list $ $gateway.resources $gateway.stateSize) | nindent 6 }}
    securityContext: {{ toYaml $.Values.securityContext | nindent 6 }}
    volumeMounts:
      - {name: state, mountPath: /var/lib/triton-gateway}
      - {name: tmp, mountPath: /tmp}
      {{- if $gateway.keysSecret }}
      - {name: callers, mountPath: /callers, readOnly: true}
      {{- end }}
      {{- if $gateway.tls.secret }}
      - {name: tls, mountPath: /tls, readOnly: true}
      {{- end }}
      {{- include "triton-gateway.tritonTlsMounts" (list $) | nindent 6 | trimSuffix "\n      " }}
      {{- with $gateway.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  {{- if $gateway.keysSecret }}
  - name: callers
    secret:
      secretName: {{ $gateway.keysSecret }}
      items: [{key: keys.json, path: keys.json}]
  {{- end }}
  {{- with $gateway.tls.secret }}
  - {name: tls, secret: {secretName: {{ . }}}}
  {{- end }}
  {{- include "triton-gateway.tritonTlsVolumes" (list $) | nindent 2 | trimSuffix "\n  " }}
  {{- with $gateway.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  - {name: state, emptyDir: {sizeLimit: {{ $gateway.stateSize }}}}
  - {name: tmp, emptyDir: {sizeLimit: 1Gi}}
{{- end }}

{{- /* (list $ pool) */ -}}
{{- define "triton-gateway.rollingUpdate" -}}
{{- $triton := index . 1 -}}
type: RollingUpdate
{{- if $triton.rollingUpdate }}
rollingUpdate: {{ include "triton-gateway.flow" $triton.rollingUpdate }}
{{- else if $triton.gpus }}
# an old pod ends first, to free its GPU: one more pod would wait forever if every GPU is in use
rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- else }}
# the new pod starts first
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end }}
{{- end }}

{{- /* (list $ pool) */ -}}
{{- define "triton-gateway.tritonPod" -}}
{{- $ := index . 0 -}}
{{- $triton := index . 1 -}}
{{- $least := add $triton.preStopSeconds 30 5 | int -}}
{{- if lt (int $triton.terminationGracePeriodSeconds) $least -}}
{{- $value := eq $triton.name "default" | ternary "triton" (printf "triton.pools: %s" $triton.name) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: at least %d, so that a Triton is not killed while it finishes its calls: preStopSeconds + 30 + 5" $value $least) -}}
{{- end -}}
{{- $resources := deepCopy $triton.resources -}}
{{- if $triton.gpus -}}
{{- $_ := set $resources.limits "nvidia.com/gpu" (toString $triton.gpus) -}}
{{- end -}}
{{ include "triton-gateway.pod" (list $) }}
{{- if eq $triton.engine "python" }}
shareProcessNamespace: true # model sync watches the python backend's processes: Triton does not notice if one is killed
{{- end }}
terminationGracePeriodSeconds: {{ $triton.terminationGracePeriodSeconds }}
{{- include "triton-gateway.placement" (list $ $triton) }}
{{ include "triton-gateway.spread" (list $triton (list $ "triton" $triton.name) "kubernetes.io/hostname") }}
containers:
  - name: triton
    {{- include "triton-gateway.image" (list $ (ternary "-triton-cpu" "-triton" (eq $triton.engine "python")) $triton.image) | nindent 4 }}
    {{- with concat (include "triton-gateway.tritonTlsArgs" (list $) | fromYamlArray) $triton.extraArgs }}
    # NVIDIA's image has its arguments in the entrypoint; the CPU server's image has them in its command, which this replaces
    args: {{ concat (ternary (list "triton" "--repository" "/models" "--host" "0.0.0.0") list (eq $triton.engine "python")) . | toJson }}
    {{- end }}
    {{- with $triton.extraEnv }}
    env: {{ toYaml . | nindent 6 }}
    {{- end }}
    ports:
      - {name: grpc, containerPort: 8001, protocol: TCP}
      - {name: http, containerPort: 8000, protocol: TCP}
      - {name: metrics, containerPort: 8002, protocol: TCP}
    startupProbe: {{ include "triton-gateway.probe" (list $ "/v2/health/live" "http" 2 2 150) | nindent 6 }}
    # whether the server answers; model sync's readiness says whether the models are loaded. A rollout needs both
    readinessProbe: {{ include "triton-gateway.probe" (list $ "/v2/health/ready" "http" 3 2 2) | nindent 6 }}
    livenessProbe: {{ include "triton-gateway.probe" (list $ "/v2/health/live" "http" 10 5 3) | nindent 6 }}
    lifecycle:
      # still answer: gateways learn from DNS that the pod ends
      preStop: {exec: {command: [sleep, {{ $triton.preStopSeconds | quote }}]}}
    # its model repository; model sync's container requests the other volume of models, its downloads
    resources: {{ include "triton-gateway.resources" (list $ $resources $triton.modelsSize) | nindent 6 }}
    securityContext: {{ toYaml $.Values.securityContext | nindent 6 }}
    volumeMounts:
      {{- if eq $triton.engine "python" }}
      - {name: triton-state, mountPath: /var/lib/triton-gateway}
      {{- end }}
      - {name: models, mountPath: /models, readOnly: true}
      - {name: shm, mountPath: /dev/shm}
      - {name: triton-tmp, mountPath: /tmp}
      - {name: triton-key, mountPath: /keys/triton, subPath: triton, readOnly: true}
      {{- if $triton.tls.secret }}
      - {name: triton-server-tls, mountPath: /triton-server-tls, readOnly: true}
      {{- end }}
      {{- with $triton.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  - {{ include "triton-gateway.syncContainer" (list $ "127.0.0.1:8001" $triton) | nindent 4 | trim }}
volumes:
  {{- if eq $triton.engine "python" }}
  - {name: triton-state, emptyDir: {sizeLimit: 1Gi}}
  {{- end }}
  {{- with $triton.tls.secret }}
  - {name: triton-server-tls, secret: {secretName: {{ . }}, defaultMode: 288}} # with the key; the others see only ca.crt
  {{- end }}
  {{- include "triton-gateway.tritonTlsVolumes" (list $) | nindent 2 | trimSuffix "\n  " }}
  {{- with $triton.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  - {name: models, emptyDir: {sizeLimit: {{ $triton.modelsSize }}}}
  - {name: sync-state, emptyDir: {sizeLimit: {{ $triton.modelsSize }}}}
  - {name: sync-tmp, emptyDir: {sizeLimit: 1Gi}}
  - {name: triton-tmp, emptyDir: {sizeLimit: 1Gi}}
  {{- include "triton-gateway.tritonKey" (list $ false) | nindent 2 }}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ $triton.shmSize }}}} # Triton's python backend and its stubs
{{- end }}

{{- /* (list $ host:port of its Triton, pool) */ -}}
{{- define "triton-gateway.syncEnv" -}}
{{- $ := index . 0 -}}
{{- $pool := index . 2 -}}
- {name: TRITON_GATEWAY_TRITON_GRPC, value: {{ index . 1 | quote }}}
- {name: TRITON_GATEWAY_TRITON_ENGINE, value: {{ $pool.engine }}}
{{- if ne $pool.name "default" }}
- {name: TRITON_GATEWAY_POOL, value: {{ $pool.name }}} # models of other pools are not loaded
{{- end }}
{{- /* By loopback there is no name that a certificate could have: it is the one by which gateways find this Triton. */ -}}
{{- $name := $.Values.triton.tls.name -}}
{{- if eq (index . 1) "127.0.0.1:8001" -}}
{{- $name = default (include "triton-gateway.name" (list $ "triton" $pool.name)) $name -}}
{{- end }}
{{- include "triton-gateway.tritonTlsEnv" (list $ $name) }}
- {name: TRITON_GATEWAY_MODEL_REPOSITORY, value: /models}
- {name: TRITON_GATEWAY_SYNC_HEALTH_PORT, value: "8081"}
- {name: TRITON_GATEWAY_POLL_FREQUENCY, value: {{ $.Values.gateway.pollFrequency }}}
- {name: TRITON_GATEWAY_LOG_FORMAT, value: json}
{{- include "triton-gateway.credentials" (list $ "CLEARML") | nindent 0 }}
{{- end }}

{{- /* (list $ host:port of its Triton, pool) */ -}}
{{- define "triton-gateway.syncContainer" -}}
{{- $ := index . 0 -}}
{{- $pool := index . 2 -}}
name: sync
{{ include "triton-gateway.image" (list $ "-sync") }}
args: {{ concat (list "sync") $.Values.sync.extraArgs | toJson }}
envFrom: [{configMapRef: {name: {{ include "triton-gateway.fullname" (list $) }}}}]
env:
  {{- $written := include "triton-gateway.syncEnv" . }}
  {{- $written | nindent 2 }}
  {{- include "triton-gateway.refuseTwice" (list "sync.extraEnv" $.Values.sync.extraEnv (fromYamlArray $written)) }}
  {{- with $.Values.sync.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: health, containerPort: 8081, protocol: TCP}
startupProbe: {{ include "triton-gateway.probe" (list $ "/livez" "health" 2 2 60) | nindent 2 }}
# ready when Triton holds every wanted model; until then an older pod may not end
readinessProbe: {{ include "triton-gateway.probe" (list $ "/readyz" "health" 3 2 2) | nindent 2 }}
livenessProbe: {{ include "triton-gateway.probe" (list $ "/livez" "health" 20 5 3) | nindent 2 }}
resources: {{ include "triton-gateway.resources" (list $ $.Values.sync.resources $pool.modelsSize) | nindent 2 }}
securityContext: {{ toYaml $.Values.securityContext | nindent 2 }}
volumeMounts:
  - {name: models, mountPath: /models}
  - {name: sync-state, mountPath: /var/lib/triton-gateway}
  - {name: sync-tmp, mountPath: /tmp}
  {{- if $.Values.triton.enabled }}
  # by subPath: both containers see a changed Secret at the same time, in the next pod
  - {name: triton-key, mountPath: /keys/triton, subPath: triton, readOnly: true}
  {{- else if $.Values.triton.keySecret }}
  - {name: triton-key, mountPath: /keys, readOnly: true}
  {{- end }}
  {{- include "triton-gateway.tritonTlsMounts" (list $) | nindent 2 | trimSuffix "\n  " }}
  {{- with $.Values.sync.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

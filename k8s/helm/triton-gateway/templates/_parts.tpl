{{- /* Pieces that more than one object has. `component` is gateway, triton, sync, controlplane or setup. */ -}}

{{- define "labels" -}}
app.kubernetes.io/name: triton-gateway
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "selector" -}}
matchLabels:
  app.kubernetes.io/name: triton-gateway
  app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "image" -}}
{{- $ := index . 0 -}}
image: {{ printf "%s%s:%s" $.Values.registry (index . 1) (toString $.Values.images.tag) | quote }}
imagePullPolicy: {{ $.Values.images.pullPolicy }}
{{- end }}

{{- define "clearml" -}}
- {name: CLEARML_API_HOST, value: {{ .Values.clearml.apiHost | quote }}}
- {name: CLEARML_FILES_HOST, value: {{ .Values.clearml.filesHost | quote }}}
- {name: CLEARML_WEB_HOST, value: {{ .Values.clearml.webHost | quote }}}
{{ include "credentials" (list . "CLEARML_API_ACCESS_KEY" "CLEARML_API_SECRET_KEY") }}
{{- end }}

{{- define "credentials" -}}
{{- $ := index . 0 -}}
- name: {{ index . 1 }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.clearml.credentialsSecret }}, key: CLEARML_API_ACCESS_KEY}}
- name: {{ index . 2 }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.clearml.credentialsSecret }}, key: CLEARML_API_SECRET_KEY}}
{{- end }}

{{- /* The Secret with the key of Triton's control APIs as a volume; `optional` where Triton may have none. */ -}}
{{- define "tritonKey" -}}
{{- $ := index . 0 -}}
- name: triton-key
  secret:
    secretName: {{ $.Values.triton.keySecret }}
    defaultMode: 288
    items: [{key: key, path: triton}]
    {{- if index . 1 }}
    optional: true
    {{- end }}
{{- end }}

{{- define "pod" -}}
{{- $ := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.Values.images.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "syncContainer" -}}
{{- $ := index . 0 -}}
name: sync
{{ include "image" (list $ $.Values.images.sync) }}
args: [sync]
env:
  - {name: TRITON_GATEWAY_TRITON_GRPC, value: {{ index . 1 | quote }}}
  - {name: TRITON_GATEWAY_TRITON_ENGINE, value: {{ $.Values.triton.engine }}}
  - {name: TRITON_GATEWAY_MODEL_REPOSITORY, value: /models}
  - {name: TRITON_GATEWAY_SYNC_HEALTH_PORT, value: "8081"}
  - {name: TRITON_GATEWAY_POLL_FREQUENCY, value: {{ $.Values.gateway.pollFrequency }}}
  - {name: TRITON_GATEWAY_LOG_FORMAT, value: json}
  {{- include "clearml" $ | nindent 2 }}
ports:
  - {name: health, containerPort: 8081}
startupProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 3
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
resources: {{ toYaml $.Values.sync.resources | nindent 2 }}
securityContext: {{ include "containerSecurity" $ | nindent 2 }}
volumeMounts:
  - {name: models, mountPath: /models}
  - {name: sync-state, mountPath: /var/lib/triton-gateway}
  - {name: sync-tmp, mountPath: /tmp}
  {{- if $.Values.triton.enabled }}
  - {name: triton-key, mountPath: /keys/triton, subPath: triton, readOnly: true}
  {{- else }}
  - {name: triton-key, mountPath: /keys, readOnly: true}
  {{- end }}
{{- end }}

{{- define "clearmlEgress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports: [{port: 443}, {port: 8008}, {port: 8081}]
{{- end }}

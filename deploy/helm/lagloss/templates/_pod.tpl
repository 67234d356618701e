{{- /* A pod of the chart: what all have in common.

Takes (dict "root" $ "name" COMPONENT "component" VALUES "command" LIST), and where they apply:
  "port" NUMBER, "ready" PATH     its port and its readiness
  "env", "files"                  more variables, more files of the volume of secrets (YAML)
  "volumes", "mounts"             more volumes and mounts (YAML)
  "ports"                         more ports (YAML)
  "drain"                         true: a Service leads clients to it
  "config"                        text whose change starts the pod anew
  "data"                          false: /data is given by a claim of the StatefulSet
  "token"                         true: the pod speaks to the API server
*/ -}}
{{- define "lagloss.pod" -}}
{{- $files := printf "%s\n%s" (include "lagloss.connectionFiles" .) (default "" .files) | trim -}}
metadata:
  labels:
    {{- include "lagloss.selector" . | nindent 4 }}
    {{- with .component.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- $annotations := deepCopy .component.podAnnotations }}
  {{- with .config }}{{ $_ := set $annotations "checksum/config" (sha256sum .) }}{{ end }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "lagloss.name" . }}
  automountServiceAccountToken: {{ default false .token }}
  # Else a Service that is called like the release sets LAGLOSS_COLLECTOR_PORT=tcp://…, which is a setting.
  enableServiceLinks: false
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- with .component.terminationGracePeriodSeconds }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ include "lagloss.image" . }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      securityContext:
        {{- toYaml .root.Values.securityContext | nindent 8 }}
      env:
        - {name: HOME, value: /data}
        - {name: LAGLOSS_DATA_DIR, value: /data}
        - {name: LAGLOSS_BIND_ADDRESS, value: {{ .root.Values.bindAddress | quote }}}
        {{- include "lagloss.connectionEnv" . | trim | nindent 8 }}
        {{- include "lagloss.addressEnv" .root | trim | nindent 8 }}
        - {name: LAGLOSS_CANARY, value: {{ .root.Values.canary.enabled | ternary "on" "off" | quote }}}
        {{- range $name, $value := mergeOverwrite (dict) .root.Values.settings .component.settings }}
        - {name: {{ $name }}, value: {{ toString $value | quote }}}
        {{- end }}
        {{- with .env }}{{ . | trim | nindent 8 }}{{ end }}
        {{- with concat .root.Values.extraEnv .component.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .port }}
      ports:
        - {name: http, containerPort: {{ . }}}
        {{- with $.ports }}{{ . | trim | nindent 8 }}{{ end }}
      startupProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: {{ $.ready | quote }}, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      {{- end }}
      {{- if .drain }}
      # Requests still come for as long as proxies take to hear that the pod ends.
      lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
      {{- end }}
      resources:
        {{- toYaml .component.resources | nindent 8 }}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        {{- if $files }}
        - {name: secrets, mountPath: {{ include "lagloss.secretsDir" . }}, readOnly: true}
        {{- end }}
        {{- with .mounts }}{{ . | trim | nindent 8 }}{{ end }}
  volumes:
    {{- if ne (toString .data) "false" }}
    - {name: data, emptyDir: {}}
    {{- end }}
    - {name: tmp, emptyDir: {}}
    {{- if $files }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- $files | nindent 10 }}
    {{- end }}
    {{- with .volumes }}{{ . | trim | nindent 4 }}{{ end }}
  {{- include "lagloss.scheduling" . | nindent 2 }}
{{- end -}}

{{- define "lagloss.scheduling" -}}
{{- $spread := .component.topologySpreadConstraints -}}
{{- with .component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if $spread }}
topologySpreadConstraints:
  {{- toYaml $spread | nindent 2 }}
{{- else if gt (int .component.replicas) 1 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "lagloss.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{- /* Where the services find each other; takes $. */ -}}
{{- define "lagloss.addressEnv" -}}
- {name: LAGLOSS_DASHBOARD_URL, value: {{ include "lagloss.dashboardUrl" . | quote }}}
{{- range $name := list "collector" "aggregator" "alerting" "taps" "canary" "dashboard" }}
{{- if (index $.Values $name).enabled }}
- name: LAGLOSS_{{ upper $name }}{{ if eq $name "dashboard" }}_HEALTH{{ end }}_URL
  value: http://{{ include "lagloss.name" (dict "root" $ "name" $name) }}.{{ $.Release.Namespace }}.svc:{{ (index $.Values $name).service.port }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* A Service of a component's port. */ -}}
{{- define "lagloss.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "lagloss.metadata" . | nindent 2 }}
  {{- with .component.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .component.service.type }}
  selector:
    {{- include "lagloss.selector" . | nindent 4 }}
  ports:
    - {name: http, port: {{ .component.service.port }}, targetPort: http}
{{- end -}}

{{- /* A dict as variables of a container; empty ones are not set. */ -}}
{{- define "lagloss.envOf" -}}
{{- range $name, $value := . }}{{ if $value }}
- {name: {{ $name }}, value: {{ toString $value | quote }}}
{{- end }}{{ end }}
{{- end -}}

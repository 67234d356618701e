{{- /* Names, labels and images. */ -}}

{{- define "lagloss.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Takes (dict "root" $ "name" COMPONENT), as all below. */ -}}
{{- define "lagloss.name" -}}
{{ include "lagloss.fullname" .root }}-{{ .name }}
{{- end -}}

{{- define "lagloss.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "lagloss.labels" -}}
{{ include "lagloss.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "lagloss.metadata" -}}
name: {{ include "lagloss.name" . }}{{ with .suffix }}-{{ . }}{{ end }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "lagloss.labels" . | nindent 2 }}
{{- end -}}

{{- define "lagloss.image" -}}
{{- $image := index .root.Values.image (has .name (list "aggregator" "taps" "dashboard") | ternary "aggregator" "services") -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .root.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{- /* Where browsers find the dashboard. */ -}}
{{- define "lagloss.dashboardUrl" -}}
{{- if .Values.dashboardUrl -}}
{{ .Values.dashboardUrl }}
{{- else if .Values.ingress.dashboard.enabled -}}
https://{{ .Values.ingress.dashboard.host }}
{{- else -}}
http://127.0.0.1:{{ .Values.dashboard.service.port }}
{{- end -}}
{{- end -}}

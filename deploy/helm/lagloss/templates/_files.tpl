{{- /* Secrets that a component's own file names, each as /run/secrets/NAME: volumes, and their mounts. */ -}}
{{- define "lagloss.secretVolumes" -}}
{{- range . }}
- {name: secret-{{ . }}, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end -}}
{{- define "lagloss.secretMounts" -}}
{{- range . }}
- {name: secret-{{ . }}, mountPath: /run/secrets/{{ . }}, readOnly: true}
{{- end }}
{{- end -}}

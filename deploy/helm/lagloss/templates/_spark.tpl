{{- /* Settings of Spark that lagloss_server/ops/spark_session.py does not make, one a line; `aggregator.spark.conf` wins. */ -}}
{{- define "lagloss.sparkConf" -}}
{{- $spark := .component.spark -}}
{{- $conf := dict -}}
{{- if ne $spark.master "local" -}}
{{- $conf = dict "spark.driver.bindAddress" .root.Values.bindAddress "spark.driver.port" "7078" "spark.driver.blockManager.port" "7079" -}}
{{- end -}}
{{- if eq $spark.master "kubernetes" -}}
{{- $executor := include "lagloss.name" (dict "root" .root "name" "executor") -}}
{{- $of := $conf -}}
{{- $_ := set $of "spark.kubernetes.namespace" .root.Release.Namespace -}}
{{- $_ := set $of "spark.kubernetes.container.image" (include "lagloss.image" .) -}}
{{- $_ := set $of "spark.kubernetes.container.image.pullPolicy" .root.Values.image.pullPolicy -}}
{{- with .root.Values.image.pullSecrets }}{{ $_ := set $of "spark.kubernetes.container.image.pullSecrets" (join "," .) }}{{ end -}}
{{- /* executors belong to the driver's pod, and end with it */ -}}
{{- $_ := set $of "spark.kubernetes.driver.pod.name" "${env:POD_NAME}" -}}
{{- $_ := set $of "spark.kubernetes.executor.podTemplateFile" "/etc/lagloss/spark/executor.yaml" -}}
{{- $_ := set $of "spark.kubernetes.authenticate.executor.serviceAccountName" $executor -}}
{{- /* nothing that needs more rights */ -}}
{{- $_ := set $of "spark.kubernetes.executor.disableConfigMap" "true" -}}
{{- $_ := set $of "spark.kubernetes.driver.service.deleteOnTermination" "false" -}}
{{- $_ := set $of "spark.authenticate" "true" -}}
{{- $_ := set $of "spark.network.crypto.enabled" "true" -}}
{{- $_ := set $of "spark.blockManager.port" "7079" -}}
{{- with $spark.executor -}}
{{- $_ := set $of "spark.dynamicAllocation.maxExecutors" (toString .maxExecutors) -}}
{{- $_ := set $of "spark.executor.cores" (toString .cores) -}}
{{- $_ := set $of "spark.executor.memory" .memory -}}
{{- $_ := set $of "spark.executor.memoryOverhead" .memoryOverhead -}}
{{- with .requestCores }}{{ $_ := set $of "spark.kubernetes.executor.request.cores" (toString .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := mergeOverwrite $conf $spark.conf }}
{{ $name }} {{ toString $value }}
{{- end }}
{{- end -}}

{{- /* The pod of an executor, which Spark completes. Its container is the first; its working directory is /data. */ -}}
{{- define "lagloss.executor" -}}
{{- $of := dict "root" .root "name" "executor" -}}
{{- with .component.spark.executor -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "lagloss.selector" $of | nindent 4 }}
    {{- with .podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- toYaml $of.root.Values.podSecurityContext | nindent 4 }}
  containers:
    - name: executor
      workingDir: /data
      securityContext:
        {{- toYaml $of.root.Values.securityContext | nindent 8 }}
      env:
        - {name: HOME, value: /data}
        {{- with $of.root.Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: data, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
  {{- include "lagloss.scheduling" (dict "root" $of.root "name" "executor" "component" .) | nindent 2 }}
{{- end -}}
{{- end -}}

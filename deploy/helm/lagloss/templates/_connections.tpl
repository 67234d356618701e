{{- /* Kafka and PostgreSQL as a component sees them: variables, and the files of one projected volume. */ -}}

{{- define "lagloss.secretsDir" -}}
/run/secrets/lagloss
{{- end -}}

{{- /* The alerter speaks to PostgreSQL alone. */ -}}
{{- define "lagloss.usesKafka" -}}
{{- ne .name "alerting" | ternary "yes" "" -}}
{{- end -}}

{{- /* Other clusters are for those who ask for consumer groups, or read their topics. */ -}}
{{- define "lagloss.usesClusters" -}}
{{- has .name (list "aggregator" "taps" "cli") | ternary "yes" "" -}}
{{- end -}}

{{- /* The component's own `kafka` laid over everyone's, as YAML; likewise its `database`. */ -}}
{{- define "lagloss.kafka" -}}
{{ mergeOverwrite (deepCopy .root.Values.kafka) (deepCopy (default dict .component.kafka)) | toYaml }}
{{- end -}}
{{- define "lagloss.database" -}}
{{ mergeOverwrite (deepCopy .root.Values.database) (deepCopy (default dict .component.database)) | toYaml }}
{{- end -}}

{{- /* Takes (dict "prefix" LAGLOSS_KAFKA_ "dir" FOLDER "kafka" VALUES). */ -}}
{{- define "lagloss.kafkaEnv" -}}
{{- $prefix := .prefix -}}
{{- $dir := .dir -}}
{{- $env := dict -}}
{{- with .kafka -}}
{{- $sasl := default dict .sasl -}}
{{- $oauth := default dict .oauthbearer -}}
{{- $certificate := default dict .certificate -}}
{{- $_ := set $env "BOOTSTRAP" .bootstrap -}}
{{- $_ := set $env "SECURITY_PROTOCOL" .securityProtocol -}}
{{- $_ := set $env "SASL_MECHANISM" $sasl.mechanism -}}
{{- $_ := set $env "SASL_USERNAME" $sasl.username -}}
{{- if (default dict $sasl.password).secret }}{{ $_ := set $env "SASL_PASSWORD_FILE" (printf "%s/password" $dir) }}{{ end -}}
{{- $_ := set $env "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL" $oauth.tokenEndpointUrl -}}
{{- $_ := set $env "SASL_OAUTHBEARER_CLIENT_ID" $oauth.clientId -}}
{{- if (default dict $oauth.clientSecret).secret }}{{ $_ := set $env "SASL_OAUTHBEARER_CLIENT_SECRET_FILE" (printf "%s/client-secret" $dir) }}{{ end -}}
{{- $_ := set $env "SASL_OAUTHBEARER_SCOPE" $oauth.scope -}}
{{- $ca := default dict .ca -}}
{{- if or $ca.secret $ca.configMap }}{{ $_ := set $env "SSL_CA_LOCATION" (printf "%s/ca.crt" $dir) }}{{ end -}}
{{- if $certificate.secret -}}
{{- $_ := set $env "SSL_CERTIFICATE_LOCATION" (printf "%s/tls.crt" $dir) -}}
{{- $_ := set $env "SSL_KEY_LOCATION" (printf "%s/tls.key" $dir) -}}
{{- end -}}
{{- if (default dict .keyPassword).secret }}{{ $_ := set $env "SSL_KEY_PASSWORD_FILE" (printf "%s/key-password" $dir) }}{{ end -}}
{{- if eq (toString .verifyHostname) "false" }}{{ $_ := set $env "SSL_ENDPOINT_IDENTIFICATION_ALGORITHM" "none" }}{{ end -}}
{{- range $name, $value := default dict .properties }}{{ $_ := set $env (printf "PROPERTY_%s" ($name | replace "." "_" | upper)) (toString $value) }}{{ end -}}
{{- range $name, $value := default dict .topics }}{{ $_ := set $env (printf "TOPIC_%s" (upper $name)) $value }}{{ end -}}
{{- end -}}
{{- range $name, $value := $env }}{{ if $value }}
- {name: {{ $prefix }}{{ $name }}, value: {{ $value | quote }}}
{{- end }}{{ end -}}
{{- end -}}

{{- /* Takes (dict "path" FOLDER "kafka" VALUES): sources of the projected volume. */ -}}
{{- define "lagloss.kafkaFiles" -}}
{{- $path := .path -}}
{{- with .kafka -}}
{{- include "lagloss.secretFile" (dict "key" (default dict .sasl).password "path" (printf "%s/password" $path)) -}}
{{- include "lagloss.secretFile" (dict "key" (default dict .oauthbearer).clientSecret "path" (printf "%s/client-secret" $path)) -}}
{{- include "lagloss.secretFile" (dict "key" .ca "path" (printf "%s/ca.crt" $path)) -}}
{{- include "lagloss.secretFile" (dict "key" .keyPassword "path" (printf "%s/key-password" $path)) -}}
{{- with .certificate }}{{ if .secret }}
- secret:
    name: {{ .secret }}
    items:
      - {key: {{ default "tls.crt" .certificateKey | quote }}, path: {{ $path }}/tls.crt}
      - {key: {{ default "tls.key" .privateKey | quote }}, path: {{ $path }}/tls.key}
{{- end }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* Takes (dict "key" (dict "secret"|"configMap" NAME "key" KEY) "path" PATH); nothing without a name. */ -}}
{{- define "lagloss.secretFile" -}}
{{- $path := .path -}}
{{- with .key }}{{ if or .secret .configMap }}
- {{ if .secret }}secret{{ else }}configMap{{ end }}:
    name: {{ default .configMap .secret }}
    items: [{key: {{ required (printf "the key of %s" (default .configMap .secret)) .key | quote }}, path: {{ $path }}}]
{{- end }}{{ end -}}
{{- end -}}

{{- /* The URL, never with a password. */ -}}
{{- define "lagloss.databaseUrl" -}}
{{- $dir := include "lagloss.secretsDir" . -}}
{{- with include "lagloss.database" . | fromYaml -}}
{{- $options := deepCopy (default dict .parameters) -}}
{{- $verify := not (empty (or .ca.secret .ca.configMap)) -}}
{{- with default ($verify | ternary "verify-full" "") .sslMode }}{{ $_ := set $options "sslmode" . }}{{ end -}}
{{- if $verify }}{{ $_ := set $options "sslrootcert" (printf "%s/database/ca.crt" $dir) }}{{ end -}}
postgresql://{{ .user | urlquery }}@{{ required "database.host: where is PostgreSQL?" .host }}/{{ .name | urlquery }}
{{- $between := "?" -}}
{{- range $name, $value := $options }}{{ $between }}{{ $name }}={{ toString $value | urlquery }}{{ $between = "&" }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* All of it for a component: variables. */ -}}
{{- define "lagloss.connectionEnv" -}}
{{- $dir := include "lagloss.secretsDir" . -}}
{{- if include "lagloss.usesKafka" . -}}
{{- $kafka := include "lagloss.kafka" . | fromYaml -}}
{{- $_ := required "kafka.bootstrap: where is Kafka?" $kafka.bootstrap -}}
{{- include "lagloss.kafkaEnv" (dict "prefix" "LAGLOSS_KAFKA_" "dir" (printf "%s/kafka" $dir) "kafka" $kafka) -}}
{{- range $name, $cluster := include "lagloss.usesClusters" $ | empty | ternary dict (default dict $kafka.clusters) -}}
{{- $prefix := printf "LAGLOSS_KAFKA_CLUSTER_%s_" (regexReplaceAll "[^A-Z0-9]" (upper $name) "_") -}}
{{- include "lagloss.kafkaEnv" (dict "prefix" $prefix "dir" (printf "%s/kafka-%s" $dir $name) "kafka" $cluster) -}}
{{- end -}}
{{- end }}
- {name: LAGLOSS_DATABASE_URL, value: {{ include "lagloss.databaseUrl" . | quote }}}
{{- if (include "lagloss.database" . | fromYaml).password.secret }}
- {name: LAGLOSS_DATABASE_PASSWORD_FILE, value: {{ $dir }}/database/password}
{{- end -}}
{{- end -}}

{{- /* And files. */ -}}
{{- define "lagloss.connectionFiles" -}}
{{- $database := include "lagloss.database" . | fromYaml -}}
{{- if include "lagloss.usesKafka" . -}}
{{- $kafka := include "lagloss.kafka" . | fromYaml -}}
{{- include "lagloss.kafkaFiles" (dict "path" "kafka" "kafka" $kafka) -}}
{{- range $name, $cluster := include "lagloss.usesClusters" $ | empty | ternary dict (default dict $kafka.clusters) -}}
{{- include "lagloss.kafkaFiles" (dict "path" (printf "kafka-%s" $name) "kafka" $cluster) -}}
{{- end -}}
{{- end -}}
{{- include "lagloss.secretFile" (dict "key" $database.password "path" "database/password") -}}
{{- include "lagloss.secretFile" (dict "key" $database.ca "path" "database/ca.crt") -}}
{{- end -}}

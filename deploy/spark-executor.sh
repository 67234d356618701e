#!/bin/bash
# The entrypoint that Spark's Kubernetes scheduler expects of an image: `executor` becomes an executor, whose settings
# are in SPARK_… variables; anything else is a command. The code of lagloss comes from the driver, as an archive.
set -eu
[ "${1:-}" = executor ] || exec "$@"

options=()
for ((at = 0; ; at++)); do
    name=SPARK_JAVA_OPT_$at
    [ -n "${!name+set}" ] || break
    options+=("${!name}")
done

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"

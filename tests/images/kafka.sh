#!/bin/bash
# What the image apache/kafka does at its start, by the class in Kafka's own jar that does it there: settings from KAFKA_…
# variables, and storage formatted for CLUSTER_ID.
set -eu
config=/tmp/kafka-config
mkdir -p "$config"
export KAFKA_LOG4J_OPTS=""
output=$(java -Xmx256m -cp '/opt/kafka/libs/*' kafka.docker.KafkaDockerWrapper setup \
    --default-configs-dir /etc/kafka/docker --mounted-configs-dir /mnt/shared/config --final-configs-dir "$config" 2>&1) ||
    grep --quiet "already formatted" <<< "$output" || { echo "$output"; exit 1; }
# shellcheck disable=SC2086
exec java $KAFKA_HEAP_OPTS -Dlog4j2.configurationFile="$config/log4j2.yaml" -cp '/opt/kafka/libs/*' \
    kafka.Kafka "$config/server.properties"

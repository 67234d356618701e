"""The topics of lagloss in Kafka, with the settings that its arithmetic relies on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.errors import KafkaUnreachable
from lagloss.wire.format import RETENTION_MS

BEACONS: Final = "lagloss.beacons"
REPORTS: Final = "lagloss.reports"
SAMPLING: Final = "lagloss.sampling"
"""Samples of pipelines: see `lagloss.broker.sampling_topic`."""
BEACONS_PARTITIONS: Final = 8
REPORTS_PARTITIONS: Final = 4
MAX_RECORD_BYTES: Final = 2 * 1024 * 1024
"""A block of 8,192 beacons at the first checkpoint, with ids of 200 bytes, is 1.8 MB."""
ADMIN_TIMEOUT_S: Final = 20.0


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the error that a client's exception carries."""
    cause = error.args[0]
    assert isinstance(cause, KafkaError)
    return cause


def topic_config(replication: int) -> dict[str, str]:
    """Return the settings of beacons and reports, with which an acknowledged block survives the loss of one broker."""
    return {
        # Progress, lateness and silence are judged by the log's append time, never by an emitter's clock.
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(RETENTION_MS),
        "max.message.bytes": str(MAX_RECORD_BYTES),
        "min.insync.replicas": str(max(1, replication - 1)),
    }


def sampling_config(replication: int) -> dict[str, str]:
    """Return the settings of the sampling topic, which keeps the newest record of each pipeline."""
    return {"cleanup.policy": "compact", "min.insync.replicas": str(max(1, replication - 1))}


def create_topics(
    cluster: Cluster,
    beacons_partitions: int = BEACONS_PARTITIONS,
    reports_partitions: int = REPORTS_PARTITIONS,
    replication: int = 1,
    *,
    beacons: str = BEACONS,
    reports: str = REPORTS,
    sampling: str = SAMPLING,
) -> None:
    """Create the topics; one that exists is left as it is (`doctor` reports wrong settings).

    Replication 0 stands for min(3, brokers). Raises KafkaUnreachable.
    """
    admin = AdminClient(KafkaConnection.of(cluster).client({"log_level": 0}))
    replication = replication or min(3, broker_count(admin, cluster))
    wanted = [
        NewTopic(name, num_partitions=partitions, replication_factor=replication, config=config)
        for name, partitions, config in (
            (beacons, beacons_partitions, topic_config(replication)),
            (reports, reports_partitions, topic_config(replication)),
            (sampling, 1, sampling_config(replication)),
        )
    ]
    try:
        create_missing(admin, wanted)
    except KafkaException as error:
        raise KafkaUnreachable(bootstrap=cluster, detail=kafka_error(error).str()) from error


def create_missing(admin: AdminClient, topics: Sequence[NewTopic]) -> None:
    """Create those topics that do not exist. Raises KafkaException."""
    for made in admin.create_topics(list(topics), operation_timeout=ADMIN_TIMEOUT_S).values():
        error = made.exception(ADMIN_TIMEOUT_S)  # raised by `result`, it would refer to the caller and its client
        is_there = isinstance(error, KafkaException) and kafka_error(error).code() == KafkaError.TOPIC_ALREADY_EXISTS
        if error is not None and not is_there:
            raise error


def broker_count(admin: AdminClient, cluster: Cluster) -> int:
    """Return the number of brokers in the cluster. Raises KafkaUnreachable."""
    try:
        return len(admin.list_topics(timeout=ADMIN_TIMEOUT_S).brokers)
    except KafkaException as error:
        raise KafkaUnreachable(bootstrap=cluster, detail=kafka_error(error).str()) from error


def relied_on(topic: str) -> dict[str, str]:
    """Return the settings of a topic that lagloss relies on."""
    config = sampling_config(1) if topic == SAMPLING else topic_config(1)
    return {key: config[key] for key in ("message.timestamp.type", "cleanup.policy") if key in config}


def wrong_settings(admin: AdminClient, topic: str) -> dict[str, str]:
    """Return those `relied_on` settings of a topic that are wrong, with their present values. Raises KafkaException."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(ADMIN_TIMEOUT_S)
    return {key: found[key].value for key, value in relied_on(topic).items() if found[key].value != value}

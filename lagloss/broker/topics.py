"""The topics of lagloss in Kafka, with the settings that its arithmetic relies on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lagloss.broker.connection import PREFIX, Cluster, KafkaConnection
from lagloss.broker.errors import BrokerRefusals, kafka_error, needs, unreachable
from lagloss.wire.format import RETENTION_MS

BEACONS: Final = os.environ.get(f"{PREFIX}TOPIC_BEACONS") or "lagloss.beacons"
REPORTS: Final = os.environ.get(f"{PREFIX}TOPIC_REPORTS") or "lagloss.reports"
SAMPLING: Final = os.environ.get(f"{PREFIX}TOPIC_SAMPLING") or "lagloss.sampling"
"""Samples of pipelines: see `lagloss.broker.sampling_topic`. The names are read once, like all of the environment."""
BEACONS_PARTITIONS: Final = 8
REPORTS_PARTITIONS: Final = 4
MAX_RECORD_BYTES: Final = 2 * 1024 * 1024
"""A block of 8,192 beacons at the first checkpoint, with ids of 200 bytes, is 1.8 MB."""
CANARY_RETENTION_MS: Final = 86_400_000
ADMIN_TIMEOUT_S: Final = 20.0
LOOK_S: Final = 2.0
"""Interval of checks for denied access, which waiting longer would not fix."""


def topic_config(replication: int) -> dict[str, str]:
    """Return the settings of beacons and reports, with which an acknowledged block survives the loss of one broker."""
    return {
        # Progress, lateness and silence are judged by the log's append time, never by an emitter's clock.
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(RETENTION_MS),
        "max.message.bytes": str(MAX_RECORD_BYTES),
        "min.insync.replicas": str(max(1, replication - 1)),
        "unclean.leader.election.enable": "false",
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
    admin, broker_count = connect(cluster)
    replication = replication or min(3, broker_count)
    topics = [
        NewTopic(name, num_partitions=partitions, replication_factor=replication, config=config)
        for name, partitions, config in (
            (beacons, beacons_partitions, topic_config(replication)),
            (reports, reports_partitions, topic_config(replication)),
            (sampling, 1, sampling_config(replication)),
        )
    ]
    _create(cluster, admin, topics)


def create_canary_topic(cluster: Cluster, name: str, replication: int = 1) -> None:
    """Create the topic that the canary writes and a tap reads, as `create_topics` creates its own."""
    admin, broker_count = connect(cluster)
    replication = replication or min(3, broker_count)
    config = {**topic_config(replication), "retention.ms": str(CANARY_RETENTION_MS)}
    _create(cluster, admin, [NewTopic(name, num_partitions=1, replication_factor=replication, config=config)])


def _create(cluster: Cluster, admin: AdminClient, topics: Sequence[NewTopic]) -> None:
    """Create those topics that do not exist. Raises KafkaUnreachable."""
    try:
        create_missing(admin, topics)
    except KafkaException as error:
        names = ", ".join(topic.topic for topic in topics)
        raise unreachable(cluster, needs(kafka_error(error), "CREATE", f"topics {names}")) from error


def create_missing(admin: AdminClient, topics: Sequence[NewTopic]) -> None:
    """Create those topics that do not exist. Raises KafkaException."""
    for topic in admin.create_topics(list(topics), operation_timeout=ADMIN_TIMEOUT_S).values():
        error = topic.exception(ADMIN_TIMEOUT_S)  # raised by `result`, it would refer to the caller and its client
        is_there = isinstance(error, KafkaException) and kafka_error(error).code() == KafkaError.TOPIC_ALREADY_EXISTS
        if error is not None and not is_there:
            raise error


def connect(cluster: Cluster, timeout_s: float = ADMIN_TIMEOUT_S) -> tuple[AdminClient, int]:
    """Return a client that a broker has answered, and the number of brokers.

    Raises:
        KafkaUnreachable: none did; KafkaRefuses if it was for who asked.
    """
    refusals = BrokerRefusals()
    deadline = time.monotonic() + timeout_s
    try:
        admin = AdminClient(KafkaConnection.of(cluster).client({"log_level": 0, "error_cb": refusals.take}))
    except KafkaException as error:
        raise unreachable(cluster, kafka_error(error)) from error
    while True:
        try:
            return admin, len(admin.list_topics(timeout=LOOK_S).brokers)
        except KafkaException as error:
            admin.poll(0)  # for the refusals
            if refusals.is_certain or time.monotonic() >= deadline:
                raise unreachable(cluster, refusals.explain(kafka_error(error))) from error


def relied_on(topic: str) -> dict[str, str]:
    """Return the settings of a topic that lagloss relies on."""
    config = sampling_config(1) if topic == SAMPLING else topic_config(1)
    keys = ("message.timestamp.type", "cleanup.policy", "unclean.leader.election.enable")
    return {key: config[key] for key in keys if key in config}


def allows_unclean_election(settings: Mapping[str, ConfigEntry]) -> bool:
    """Return whether a partition of a topic with these settings may get a leader that lacks acknowledged records."""
    setting = settings.get("unclean.leader.election.enable")
    return setting is not None and bool(setting.value == "true")


def wrong_settings(admin: AdminClient, topic: str) -> dict[str, str]:
    """Return those `relied_on` settings of a topic that are wrong, with their present values. Raises KafkaException."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(ADMIN_TIMEOUT_S)
    return {key: settings[key].value for key, value in relied_on(topic).items() if settings[key].value != value}

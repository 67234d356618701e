"""The pipeline's topics: created where they are missing, and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lagloss.broker.connection import KafkaConnection
from lagloss.broker.topics import create_missing
from pipeline_under_test.stream.topology import (
    ALL_CONSUMERS,
    EVENT_ROUTER,
    dead_topic,
    filtered_topic,
    routes_topic,
    schemas_topic,
    tier_topic,
    topic_of,
)

PARTITIONS: Final = 3
MAX_COPIES: Final = 3
ADMIN_TIMEOUT_S: Final = 15.0


def create_topics(bootstrap: str, pipeline: str, tiers_s: Iterable[float]) -> None:
    """Create the pipeline's topics where they are missing: each record on three brokers if there are three, and
    acknowledged by two of them.

    They are stamped with the append time: how far a lane has been taken in is measured in times of the broker's clock.

    Raises:
        KafkaException: if the broker cannot be reached or refuses.
    """
    create_streams(bootstrap, _streams(pipeline, tiers_s))
    _create(bootstrap, _tables(pipeline), 1, {"cleanup.policy": "compact"})


def create_shadow_topics(bootstrap: str, pipeline: str) -> None:
    """Create the topics that the shadow, of this name, writes to; likewise."""
    create_streams(bootstrap, [topic_of(pipeline, EVENT_ROUTER), dead_topic(pipeline), filtered_topic(pipeline)])


def create_streams(bootstrap: str, topics: Iterable[str]) -> None:
    """Create these topics of events where they are missing; likewise."""
    _create(bootstrap, topics, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})


def _create(bootstrap: str, names: Iterable[str], partitions: int, config: Mapping[str, str]) -> None:
    admin = AdminClient(KafkaConnection.of(bootstrap).client())
    copies = min(MAX_COPIES, len(admin.list_topics(timeout=ADMIN_TIMEOUT_S).brokers))
    config = {"min.insync.replicas": str(max(1, copies - 1)), **config}
    topics = [NewTopic(name, partitions, copies, config=config) for name in names]
    create_missing(admin, topics)


def delete_topics(bootstrap: str, pipeline: str, tiers_s: Iterable[float]) -> None:
    """Delete the topics that `create_topics` created, and all that is in them.

    Raises:
        KafkaException: if the broker cannot be reached or refuses.
    """
    names = [*_streams(pipeline, tiers_s), *_tables(pipeline)]
    admin = AdminClient(KafkaConnection.of(bootstrap).client())
    for future in admin.delete_topics(names, operation_timeout=ADMIN_TIMEOUT_S).values():
        future.result(ADMIN_TIMEOUT_S)


def _streams(pipeline: str, tiers_s: Iterable[float]) -> list[str]:
    topics = [topic_of(pipeline, node) for node in ALL_CONSUMERS] + [dead_topic(pipeline), filtered_topic(pipeline)]
    return topics + [tier_topic(pipeline, seconds) for seconds in tiers_s]


def _tables(pipeline: str) -> list[str]:
    return [routes_topic(pipeline), schemas_topic(pipeline)]

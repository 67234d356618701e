"""Topics of the reference pipeline, filled and read by tests: without the nodes, or beside them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.routes import DEFAULT_ROUTES
from pipeline_under_test.stream.events.schema import packaged
from pipeline_under_test.stream.events.table_topic import TableTopic
from pipeline_under_test.stream.kafka.clients import ReliableProducer
from pipeline_under_test.stream.kafka.offset_range_reader import OffsetRangeReader
from pipeline_under_test.stream.kafka.topics import PARTITIONS, create_topics
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import group_of, routes_topic, tier_topic, tiers_group, topic_of


def idle_pipeline(bootstrap: str, data_dir: Path, **more: Any) -> ReferenceSettings:
    """A pipeline of the test's own that has topics and no processes; `more` are further settings."""
    pipeline = f"clicks-{uuid.uuid4().hex[:8]}"
    settings = ReferenceSettings(data_dir=data_dir, bootstrap=bootstrap, pipeline=pipeline, **more)
    settings.save()
    create_topics(bootstrap, settings.pipeline, settings.tiers_s)
    return settings


def put(settings: ReferenceSettings, topic: str, events: Iterable[Event]) -> None:
    """Puts events into a topic."""
    producer = ReliableProducer.of(settings.bootstrap, "test")
    for event in events:
        producer.send(topic, event, lambda: None)
    while producer.in_flight:
        producer.poll(0.1)


def events_in(bootstrap: str, topic: str) -> list[Event]:
    """All events that are in a topic now."""
    with OffsetRangeReader(bootstrap, topic, "test") as whole:
        batches = whole.read(whole.committed(), whole.ends())
        return [Event.from_record(record) for records in batches for record in records]


def default_routes(settings: ReferenceSettings) -> None:
    """Gives event-router the routes that a new pipeline begins with."""
    table = TableTopic(settings.bootstrap, routes_topic(settings.pipeline))
    for name, route in DEFAULT_ROUTES.items():
        table.write(name, route.model_dump_json().encode())
    table.close()


def names_in(settings: ReferenceSettings, topic: str) -> set[str]:
    """The ids of all events that are in a topic now."""
    return {event.id for event in events_in(settings.bootstrap, topic)}


def names_committed(settings: ReferenceSettings, node: str) -> set[str]:
    """The ids of the events that a node has committed: it may never take them in again."""
    with OffsetRangeReader(
        settings.bootstrap, topic_of(settings.pipeline, node), group_of(settings.pipeline, node)
    ) as taken:
        batches = taken.read(dict.fromkeys(range(PARTITIONS), 0), taken.committed())
        return {Event.from_record(record).id for records in batches for record in records}


def backlog(settings: ReferenceSettings, node: str) -> int:
    """Records in a node's topic that it has not committed."""
    return _left(settings, topic_of(settings.pipeline, node), group_of(settings.pipeline, node))


def waiting(settings: ReferenceSettings, tier_s: float) -> int:
    """Records that wait in a tier of the global retrier."""
    return _left(settings, tier_topic(settings.pipeline, tier_s), tiers_group(settings.pipeline))


def _left(settings: ReferenceSettings, topic: str, group: str) -> int:
    with OffsetRangeReader(settings.bootstrap, topic, group) as whole:
        return sum(whole.ends().values()) - sum(whole.committed().values())


def clicks(prefix: str, count: int, **content: Any) -> list[Event]:
    """Events that every node takes: PREFIX-0, PREFIX-1, ..."""
    body = packaged().encode({"url": "https://shop.example/cart", "kind": "click", **content})
    now_ms = int(time.time() * 1000)
    return [Event(f"{prefix}-{number}", now_ms, body) for number in range(count)]


def configure(bootstrap: str, topic: str, **config: str) -> None:
    """Changes a topic's configuration; `_` stands for `.`."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)

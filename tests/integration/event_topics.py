"""Topics of the reference pipeline, filled and read by tests: without the nodes, or beside them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pipeline_under_test.event import Event
from pipeline_under_test.kafka import ReliableProducer, create_topics
from pipeline_under_test.settings import Settings
from pipeline_under_test.stretch import Stretch


def idle_pipeline(bootstrap: str, data_dir: Path) -> Settings:
    """A pipeline of the test's own that has topics and no processes."""
    settings = Settings(data_dir=data_dir, bootstrap=bootstrap, pipeline=f"clicks-{uuid.uuid4().hex[:8]}")
    settings.save()
    create_topics(bootstrap, settings.pipeline, settings.tiers_s)
    return settings


def put(settings: Settings, topic: str, events: Iterable[Event]) -> None:
    """Puts events into a topic."""
    producer = ReliableProducer(settings.bootstrap, "test")
    for event in events:
        producer.send(topic, event, lambda: None)
    while producer.in_flight:
        producer.poll(0.1)


def events_in(bootstrap: str, topic: str) -> list[Event]:
    """All events that are in a topic now."""
    with Stretch(bootstrap, topic, "test") as whole:
        batches = whole.read(whole.committed(), whole.ends())
        return [Event.from_record(record) for records in batches for record in records]


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

"""Where landing takes events from: the stream's load, made here at a rate, or the stream's own last topic."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaError, TopicPartition

from lagloss_server.base.settings import Settings as LaglossSettings
from pipeline_under_test.batch.events import USERS, ScoreEvent, ScoreMaker, of_click
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import LANDING
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.events.schema import SchemaReader, Unreadable, reader_of
from pipeline_under_test.stream.kafka.clients import consumer_for
from pipeline_under_test.stream.topology import topic_of

log = logging.getLogger(__name__)

AT_ONCE: Final = 1000
"""Records in one answer of the consumer, at most."""
Position = Mapping[tuple[str, int], int]
"""How far a source was read: the next offset by topic and partition; empty for one that is not read again."""


class EventSource(Protocol):
    """Events in the order in which they are to be stored, each at least once."""

    def take(self) -> Iterator[ScoreEvent]:
        """Return the events that are due; never waits."""
        ...

    def position(self) -> Position:
        """Return how far it was read, as of the event that `take` returned last."""
        ...

    def stored(self, position: Position) -> None:
        """Note that all events up to this position are stored."""
        ...

    def close(self) -> None: ...


class LoadSource:
    """Makes events at a rate."""

    def __init__(self, maker: ScoreMaker, rate: float) -> None:
        self._maker = maker
        self._interval_s = 1 / rate
        self._next_s = time.time()

    def take(self) -> Iterator[ScoreEvent]:
        while self._next_s <= time.time():
            yield self._maker.make(int(self._next_s * 1000))
            self._next_s += self._interval_s

    def position(self) -> Position:
        return {}

    def stored(self, position: Position) -> None:
        pass

    def close(self) -> None:
        pass


class TopicSource:
    """Reads the events that the stream hands to a vendor's connector, with their ids and times."""

    def __init__(self, consumer: Consumer, topic: str, reader: SchemaReader) -> None:
        self._consumer = consumer
        self._reader = reader
        self._position: dict[tuple[str, int], int] = {}
        consumer.subscribe([topic])

    def take(self) -> Iterator[ScoreEvent]:
        for record in self._consumer.consume(AT_ONCE, 0):
            if (error := record.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    log.warning("cannot read a record: %s", error)
                continue
            try:
                event = Event.from_record(record)
                content = self._reader.decode(event.body)
            except (NoIdentity, Unreadable) as problem:  # the stream's own nodes account for it
                log.warning("skipped an event: %s", problem)
                continue
            self._position[record.topic() or "", record.partition() or 0] = (record.offset() or 0) + 1
            yield scored(event, content)

    def position(self) -> Position:
        return dict(self._position)

    def stored(self, position: Position) -> None:
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in position.items()]
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


def scored(event: Event, content: Mapping[str, object]) -> ScoreEvent:
    """Return an event of the stream as one of this pipeline, the same each time that it is read."""
    draw = random.Random(event.id)
    click = {**content, "event_id": event.id, "event_time": event.event_time_ms}
    return of_click(click, f"u-{draw.randrange(USERS):04d}", round(draw.uniform(0, 100), 2))


def source_of(settings: BatchSettings, maker: ScoreMaker) -> EventSource:
    """Return the source that the settings name."""
    if not settings.stream_node:
        return LoadSource(maker, settings.rate)
    bootstrap = LaglossSettings.load().require_kafka()
    pipeline = settings.stream_pipeline
    consumer = consumer_for(bootstrap, f"{settings.pipeline}.{LANDING}", LANDING)
    return TopicSource(consumer, topic_of(pipeline, settings.stream_node), reader_of(bootstrap, pipeline))

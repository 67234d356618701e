"""Reads lagloss's own topics to their end, for tests that look at what an emitter left there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep

from confluent_kafka import Consumer, TopicPartition

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import BeaconBlock, EmitterReport, OffsetRange, Tally, decode_block, decode_report

PATIENCE = float(os.environ.get("LAGLOSS_PATIENCE") or 1)
"""How many times as long as on a developer's machine tests wait: `.ci/run` says 2, since its machine may be slow."""


@dataclass(frozen=True)
class Stored:
    """A block and where it lies."""

    partition: int
    offset: int
    key: bytes
    block: BeaconBlock


@contextmanager
def consumer_of(bootstrap: str, **config: object) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"test-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **config,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read_all(bootstrap: str, topic: str) -> list[tuple[int, int, bytes, bytes]]:
    """(partition, offset, key, value) of all that is in the topic now, by partition and offset."""
    with consumer_of(bootstrap) as consumer:
        ends = {}
        for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            if high > low:
                ends[partition] = high
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        found = []
        deadline = monotonic() + 30
        while any(end > 0 for end in ends.values()):
            assert monotonic() < deadline, f"{topic} could not be read to its end"
            message = consumer.poll(1)
            if message is None or message.error():
                continue
            at, offset = message.partition() or 0, message.offset() or 0
            found.append((at, offset, message.key() or b"", message.value() or b""))
            if offset + 1 >= ends[at]:
                ends[at] = 0
    return sorted(found)


def blocks_of(bootstrap: str, emitter: bytes, topic: str = BEACONS) -> list[Stored]:
    """Every block of this emitter, by partition and offset."""
    stored = (
        Stored(at, offset, key, decode_block(value))
        for at, offset, key, value in read_all(bootstrap, topic)
        if emitter in value  # blocks of others, of which there are many in a topic that tests share, stay as they are
    )
    return [found for found in stored if found.block.emitter == emitter]


def reports_of(bootstrap: str, emitter: bytes) -> list[EmitterReport]:
    """Its reports in the order of the log."""
    return [decode_report(value) for _, _, key, value in read_all(bootstrap, REPORTS) if key == emitter]


def newest_tallies(reports: list[EmitterReport]) -> dict[tuple[str, str | None, int], Tally]:
    """What somebody who follows the reports knows: the newest tally of each name."""
    return {(t.checkpoint, t.replay, t.window_start): t for report in reports for t in report.tallies}


def in_ranges(ranges: tuple[OffsetRange, ...], partition: int, offset: int) -> bool:
    return any(place.partition == partition and place.first <= offset <= place.last for place in ranges)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20, what: str = "the condition") -> None:
    began = monotonic()
    while not condition():
        waited_s = monotonic() - began
        assert waited_s < timeout_s, f"{what} did not come true within {timeout_s} s"
        sleep(pause_s(waited_s))


def pause_s(waited_s: float) -> float:
    """Return how long to pause between two looks at a condition: longer the longer it takes, since looks are queries.
    What is true for a moment only, such as a task that runs, must still be seen."""
    return min(0.1, 0.02 + waited_s / 20)

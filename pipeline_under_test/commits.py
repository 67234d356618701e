"""Which offsets may be committed: those up to which everything is finished, once the beacons that say so are safe."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from lagloss.emitter import Emitter

log = logging.getLogger(__name__)

MARK_EVERY_S: Final = 0.25
SETTLE_TIMEOUT_S: Final = 5.0

Partition = tuple[str, int]
"""Topic and partition number."""


class OffsetTracker:
    """Per partition: the records taken in and not yet passed by `advance`, finished in whatever order."""

    def __init__(self) -> None:
        self._open: dict[Partition, deque[int]] = {}
        self._done: dict[Partition, set[int]] = {}

    def taken(self, partition: Partition, offset: int) -> None:
        """A record has been read. Offsets of a partition come in ascending order, with gaps where the log has some."""
        self._open.setdefault(partition, deque()).append(offset)
        self._done.setdefault(partition, set())

    def done(self, partition: Partition, offset: int) -> None:
        """That record is finished. One of a partition that was dropped is somebody else's by now: ignored."""
        if partition in self._done:
            self._done[partition].add(offset)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """These partitions are no longer ours."""
        for partition in partitions:
            self._open.pop(partition, None)
            self._done.pop(partition, None)

    def advance(self) -> dict[Partition, int]:
        """The offset to commit (the next to read) of each partition that has come further since the last call."""
        moved = {}
        for partition, waiting in self._open.items():
            done = self._done[partition]
            while waiting and waiting[0] in done:
                offset = waiting.popleft()
                done.remove(offset)
                moved[partition] = offset + 1
        return moved


class Commits:
    """Commits for one consumer, holding each offset back until the emitter's beacons so far are acknowledged."""

    def __init__(self, consumer: Consumer, emitter: Emitter) -> None:
        self._consumer = consumer
        self._emitter = emitter
        self._tracker = OffsetTracker()
        self._unconfirmed: deque[tuple[int, dict[Partition, int]]] = deque()
        self._next_mark = 0.0

    def taken(self, record: Message) -> None:
        self._tracker.taken(*_place(record))

    def done(self, record: Message) -> None:
        """All that became of `record` is acknowledged by the next hop, and its beacons are with the emitter."""
        self._tracker.done(*_place(record))

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions that another consumer has now: committing there would set it back."""
        gone = {(place.topic, place.partition) for place in partitions}
        self._tracker.drop(gone)
        for _, offsets in self._unconfirmed:
            for partition in gone:
                offsets.pop(partition, None)

    def commit_confirmed(self) -> None:
        """Commits what has become safe; never waits. A commit that fails makes duplicates after a crash, no more."""
        self._mark()
        self._commit(wait=False)

    def settle(self) -> None:
        """Commits all that is finished, waiting for beacons and broker for some seconds at most."""
        self._next_mark = 0.0
        self._mark()
        if self._unconfirmed:
            self._emitter.flush(SETTLE_TIMEOUT_S)
        self._commit(wait=True)

    def _mark(self) -> None:
        now = time.monotonic()
        if now >= self._next_mark:
            self._next_mark = now + MARK_EVERY_S
            moved = self._tracker.advance()
            if moved:
                self._unconfirmed.append((self._emitter.mark(), moved))

    def _commit(self, *, wait: bool) -> None:
        safe: dict[Partition, int] = {}
        while self._unconfirmed and self._emitter.acknowledged(self._unconfirmed[0][0]):
            safe.update(self._unconfirmed.popleft()[1])
        if not safe:
            return
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in safe.items()]
        try:
            if wait:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.warning("offsets not committed: %s", error)


def _place(record: Message) -> tuple[Partition, int]:
    topic, number, offset = record.topic(), record.partition(), record.offset()
    if topic is None or number is None or offset is None:
        raise ValueError("expected a record that was read from a topic")
    return (topic, number), offset

"""Offsets that can be committed: those before which everything is finished and the beacons are acknowledged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from lagloss.sdk.emitter import Emitter

log = logging.getLogger("lagloss")

MARK_EVERY_S: Final = 0.25
SETTLE_TIMEOUT_S: Final = 5.0
AGAIN_S: Final = 10.0
"""Interval of repeated commits: no client reports a commit that was lost with its broker, and without new records
there is no later commit to make up for it."""
COMPACT_AT: Final = 4_096
"""Records of a partition behind an unfinished one from which on finished neighbours are merged into one."""

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(slots=True, eq=False)
class Taken:
    """A record that was taken in. `done` can be called from any thread."""

    offset: int
    is_done: bool = False

    def done(self) -> None:
        """Mark the record as finished: its outputs are acknowledged, and its beacons are with the emitter.

        No effect for a record of a partition that was dropped.
        """
        self.is_done = True


class OffsetTracker:
    """Records taken in per partition and not yet passed by `advance`, finished in any order."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, deque[Taken]] = {}
        self._compact_at: dict[Partition, int] = {}

    def taken(self, partition: Partition, offset: int) -> Taken:
        """Add a record that was read. Offsets of a partition ascend, with the gaps of the log, except after a seek."""
        record = Taken(offset)
        waiting = self._waiting.setdefault(partition, deque())
        waiting.append(record)
        if len(waiting) >= self._compact_at.get(partition, COMPACT_AT):
            waiting = self._waiting[partition] = _compacted(waiting)
            self._compact_at[partition] = max(COMPACT_AT, 2 * len(waiting))
        return record

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that are no longer assigned."""
        for partition in partitions:
            self._waiting.pop(partition, None)
            self._compact_at.pop(partition, None)

    def rewind(self, partition: Partition, offset: int) -> None:
        """Forget what was taken in from this offset on, which is read again."""
        waiting = self._waiting.get(partition)
        while waiting and waiting[-1].offset >= offset:
            waiting.pop()

    def advance(self) -> dict[Partition, int]:
        """Return the offset to commit (the next to read) of each partition that has advanced since the last call."""
        moved = {}
        for partition, waiting in self._waiting.items():
            while waiting and waiting[0].is_done:
                moved[partition] = waiting.popleft().offset + 1
        return moved


def _compacted(waiting: Iterable[Taken]) -> deque[Taken]:
    """Merge runs of finished records into their last, which stands for all of them."""
    ranges: deque[Taken] = deque()
    for record in waiting:
        if ranges and ranges[-1].is_done and record.is_done:
            ranges.pop()
        ranges.append(record)
    return ranges


class Commits:
    """Commits for one consumer, holding each offset back until the emitter's beacons so far are acknowledged.

    Used on the consumer's thread, except for the result of `taken`.
    """

    def __init__(self, consumer: Consumer, emitter: Emitter) -> None:
        self._consumer = consumer
        self._emitter = emitter
        self._tracker = OffsetTracker()
        self._unconfirmed: deque[tuple[int, dict[Partition, int]]] = deque()
        self._next_mark = 0.0
        self._committed: dict[Partition, int] = {}
        self._next_again = 0.0

    def taken(self, record: Message) -> Taken:
        """Add a record that was read; its offset waits for the result's `done`."""
        partition, offset = place_of(record)
        return self._tracker.taken(partition, offset)

    def at_end(self, end: Message) -> None:
        """Commit past an end-of-partition message, all before which has been read.

        Offsets without readable records, such as the markers of transactions, are committed along with the record
        before them.
        """
        partition, offset = place_of(end)
        if offset > 0:
            self._tracker.taken(partition, offset - 1).done()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that another consumer holds now: committing there would set it back."""
        gone = {(place.topic, place.partition) for place in partitions}
        self._tracker.drop(gone)
        for partition in gone:
            self._committed.pop(partition, None)
        for _, offsets in self._unconfirmed:
            for partition in gone:
                offsets.pop(partition, None)

    def rewind(self, place: TopicPartition) -> None:
        """Commit nothing past this offset until it is read again; what was committed stays so until then."""
        partition = place.topic, place.partition
        self._tracker.rewind(partition, place.offset)
        for _, offsets in self._unconfirmed:
            if offsets.get(partition, 0) > place.offset:
                del offsets[partition]

    def commit_confirmed(self) -> None:
        """Commit offsets that have become safe; never waits.

        A commit that fails is repeated, with a later one or after `AGAIN_S`; until then a crash only makes duplicates.
        """
        self._mark()
        now = time.monotonic()
        is_again = now >= self._next_again
        if is_again:
            self._next_again = now + AGAIN_S
        self._commit(dict(self._committed) if is_again else {}, wait=False)

    def settle(self) -> list[TopicPartition]:
        """Commit all finished records, waiting for beacons and broker for some seconds at most; return the committed
        offsets.
        """
        self._next_mark = 0.0
        self._mark()
        if self._unconfirmed:
            self._emitter.flush(SETTLE_TIMEOUT_S)
        return self._commit({}, wait=True)

    def _mark(self) -> None:
        now = time.monotonic()
        if now >= self._next_mark:
            self._next_mark = now + MARK_EVERY_S
            moved = self._tracker.advance()
            if moved:
                self._unconfirmed.append((self._emitter.mark(), moved))

    def _commit(self, safe: dict[Partition, int], *, wait: bool) -> list[TopicPartition]:
        while self._unconfirmed and self._emitter.acknowledged(self._unconfirmed[0][0]):
            safe.update(self._unconfirmed.popleft()[1])
        if not safe:
            return []
        self._committed.update(safe)
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in safe.items()]
        # The method of the class: the one of a consumer made by KafkaNode leads here.
        try:
            if wait:
                return Consumer.commit(self._consumer, offsets=offsets, asynchronous=False) or []
            Consumer.commit(self._consumer, offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.warning("lagloss: cannot commit offsets: %s", error)
        return []


def place_of(record: Message) -> tuple[Partition, int]:
    """Return the topic and partition, and the offset, of a record that was read.

    Raises:
        ValueError: for a message that was not read from a topic.
    """
    topic, number, offset = record.topic(), record.partition(), record.offset()
    if topic is None or number is None or offset is None:
        raise ValueError("expected a record that was consumed from a topic")
    return (topic, number), offset

"""Offsets that can be committed: those before which everything is finished and the beacons are acknowledged.

`SafeOffsets` has them for any client, `Commits` commits them with confluent_kafka's.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

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

MOST_WAITING: Final = 1_000
"""Sets of offsets that wait for their beacons; of more, the newest are joined, and wait for the newest of them."""

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


class HeldPartition(Protocol):
    """A topic's partition, as Kafka clients name it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


class SafeOffsets:
    """Offsets of one consumer that can be committed, each held back until the emitter's beacons so far are
    acknowledged.

    Used on the consumer's thread, except for the result of `track`.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._tracker = OffsetTracker()
        self._unconfirmed: deque[tuple[int, dict[Partition, int]]] = deque()
        self._next_mark = 0.0
        self._committed: dict[Partition, int] = {}
        self._next_again = 0.0

    def track(self, partition: Partition, offset: int) -> Taken:
        """Add a record that was read; its offset waits for the result's `done`."""
        return self._tracker.taken(partition, offset)

    def reach(self, partition: Partition, offset: int) -> None:
        """Commit up to this offset, all before which has been read.

        Offsets without readable records, such as the markers of transactions, are committed along with the record
        before them.
        """
        if offset > 0:
            self._tracker.taken(partition, offset - 1).done()

    def drop(self, partitions: Iterable[HeldPartition]) -> None:
        """Forget partitions that another consumer holds now: committing there would set it back."""
        gone = {(place.topic, place.partition) for place in partitions}
        self._tracker.drop(gone)
        for partition in gone:
            self._committed.pop(partition, None)
        for _, offsets in self._unconfirmed:
            for partition in gone:
                offsets.pop(partition, None)

    def go_back(self, partition: Partition, offset: int) -> None:
        """Commit nothing past this offset until it is read again; what was committed stays so until then."""
        self._tracker.rewind(partition, offset)
        for _, offsets in self._unconfirmed:
            if offsets.get(partition, 0) > offset:
                del offsets[partition]

    def mark(self, *, at_once: bool = False) -> bool:
        """Let offsets that have advanced wait for the beacons so far, unless that was done a moment ago; return whether
        any wait."""
        now = time.monotonic()
        if at_once or now >= self._next_mark:
            self._next_mark = now + MARK_EVERY_S
            moved = self._tracker.advance()
            if moved and len(self._unconfirmed) >= MOST_WAITING:
                moved = self._unconfirmed.pop()[1] | moved
            if moved:
                self._unconfirmed.append((self._emitter.mark(), moved))
        return bool(self._unconfirmed)

    @property
    def are_confirmed(self) -> bool:
        """Whether the beacons of all that were marked are acknowledged."""
        return not self._unconfirmed or self._emitter.acknowledged(self._unconfirmed[-1][0])

    def confirmed(self, *, again: bool = True) -> dict[Partition, int]:
        """Return the offsets to commit: those that have become safe, and every `AGAIN_S` those returned before."""
        now = time.monotonic()
        safe: dict[Partition, int] = {}
        if again and now >= self._next_again:
            self._next_again = now + AGAIN_S
            safe.update(self._committed)
        while self._unconfirmed and self._emitter.acknowledged(self._unconfirmed[0][0]):
            safe.update(self._unconfirmed.popleft()[1])
        self._committed.update(safe)
        return safe


class Commits(SafeOffsets):
    """Commits for one confluent_kafka consumer."""

    def __init__(self, consumer: Consumer, emitter: Emitter) -> None:
        super().__init__(emitter)
        self._consumer = consumer

    def taken(self, record: Message) -> Taken:
        """Add a record that was read; its offset waits for the result's `done`."""
        return self.track(*place_of(record))

    def at_end(self, end: Message) -> None:
        """Commit past an end-of-partition message, all before which has been read."""
        self.reach(*place_of(end))

    def rewind(self, place: TopicPartition) -> None:
        """Commit nothing past this offset until it is read again."""
        self.go_back((place.topic, place.partition), place.offset)

    def commit_confirmed(self) -> None:
        """Commit offsets that have become safe; never waits.

        A commit that fails is repeated, with a later one or after `AGAIN_S`; until then a crash only makes duplicates.
        """
        self.mark()
        self._commit(self.confirmed(), wait=False)

    def settle(self) -> list[TopicPartition]:
        """Commit all finished records, waiting for beacons and broker for some seconds at most; return the committed
        offsets.
        """
        if self.mark(at_once=True):
            self._emitter.flush(SETTLE_TIMEOUT_S)
        return self._commit(self.confirmed(again=False), wait=True)

    def _commit(self, safe: dict[Partition, int], *, wait: bool) -> list[TopicPartition]:
        if not safe:
            return []
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in safe.items()]
        # The method of the class: the one of a consumer made by KafkaNode leads here.
        try:
            if wait:
                return Consumer.commit(self._consumer, offsets=offsets, asynchronous=False) or []
            Consumer.commit(self._consumer, offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.warning("lagloss: cannot commit offsets: %s", error)
        return []


class HostCommits:
    """Stands in for `Commits` if the host commits by itself: tracks nothing and commits nothing."""

    def taken(self, record: Message) -> Taken:
        return Taken(place_of(record)[1])

    def at_end(self, end: Message) -> None: ...

    def drop(self, partitions: Iterable[HeldPartition]) -> None: ...

    def rewind(self, place: TopicPartition) -> None: ...

    def commit_confirmed(self) -> None: ...

    def settle(self) -> list[TopicPartition]:
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

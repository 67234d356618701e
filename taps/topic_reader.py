"""A topic as its brokers hold it: looks at its partitions, and the records of planned spans."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from lagloss.broker.connection import Cluster
from lagloss.broker.errors import is_of_group, needs
from lagloss.broker.headers import headers_of
from lagloss_server.extraction import BROKEN_HEADERS, Records
from lagloss_server.extraction.spec import Headers
from taps.cluster_topics import TIMEOUT_S, ClusterTopics, SharedLook, TopicIs
from taps.consumers import SharedConsumers
from taps.plan import Look, OffsetSpan
from taps.records import SpanRecords

STALLED_S: Final = 30.0
"""Longest wait for the next record of a span that the broker holds."""
BATCH: Final = 10_000
MAX_EARLY: Final = 100_000
"""Records of one partition that are kept for later spans."""
LAST_OF: Final = 100
"""Offsets among which the last record before one is looked for: some are markers of transactions."""
PEEKING: Final = {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536}
"""Properties of consumers that read a single record."""


class _Nothing:
    """What a peek keeps of a consumer."""

    def deprived(self) -> None:
        """Forget nothing."""


class TopicReader:
    """Reads one topic as a committed reader that belongs to no group and commits nothing. Used by one thread.

    Methods raise KafkaException when the brokers do not answer, or refuse.

    Args:
        topics: of the same cluster, shared with other readers, as are `consumers`, and `peeks` for looks at single
            records.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        topics: ClusterTopics | None = None,
        consumers: SharedConsumers | None = None,
        peeks: SharedConsumers | None = None,
    ) -> None:
        self.topic = topic
        self._topics = ClusterTopics(cluster) if topics is None else topics
        self._looked_at = 0.0
        self._shared = consumers is not None
        self._consumers = SharedConsumers(cluster) if consumers is None else consumers
        self._peek_keeps = _Nothing()
        self._peeks = SharedConsumers(cluster, PEEKING, kept=1) if peeks is None else peeks
        self._next: dict[int, int] = {}
        """Where the next span begins if it goes on, by assigned partition."""
        self._reached: dict[int, int] = {}
        """Every record before this offset was delivered; those not handed out yet are `_early`."""
        self._early: dict[int, deque[Message]] = {}
        self._paused: set[int] = set()
        self._emptiness: dict[int, tuple[int, int, bool]] = {}

    def deprived(self) -> None:
        """Begin the next read anew: another reader has the consumer."""
        self._next, self._reached, self._early, self._paused = {}, {}, {}, set()

    def newest(self, after: float = 0.0, partitions: Collection[int] | None = None) -> SharedLook:
        """Return the newest look at the topic, which is later than those returned before and than `after`, and at most
        a turn old; see `ClusterTopics.newest`."""
        look = self._topics.newest(self.topic, max(after, self._looked_at), partitions)
        self._looked_at = look.asked_at
        return look

    def rest(self) -> None:
        """Ask for no more looks, until one is asked for again."""
        self._topics.rest(self.topic)

    def describe(self) -> TopicIs:
        """Return the topic's id and partitions."""
        return self._topics.describe(self.topic)

    def look(self, partitions: Iterable[int]) -> Look:
        """Return the offsets that these partitions hold now."""
        return self._topics.look(self.topic, partitions)

    def starts_at(self, moment_ms: int, partitions: Iterable[int]) -> dict[int, int]:
        """Return by partition the offset of the first record whose timestamp is at or after a moment; its end if there
        is none."""
        return self._topics.starts_at(self.topic, moment_ms, partitions)

    def appended_before(self, moment_ms: int, starts: Mapping[int, int], look: Look) -> set[int]:
        """Return the partitions in which all records before `starts` were appended before a moment, by the broker's own
        clock: the last of them says so. Partitions that by a look hold none before are left out, and those in which an
        open transaction keeps it from being read."""
        logs = look.logs
        before = [
            OffsetSpan(partition, max(logs[partition].start, start - LAST_OF), start)
            for partition, start in starts.items()
            if logs[partition].start < start <= logs[partition].stable_end
        ]
        records = self.read(before)
        return {
            partition
            for partition, read in records.items()
            if read.offsets.size and read.is_append_time[-1] and read.records.timestamp_ms[-1] < moment_ms
        }

    def has_none(self, partition: int, start: int, end: int) -> bool:
        """Return whether a committed reader finds no record in [start, end)."""
        cached = self._emptiness.get(partition)
        if cached is not None and cached[:2] == (start, end):
            return cached[2]
        if cached is None or cached[0] != start:  # moves: look again once it stands still
            self._emptiness[partition] = (start, -1, False)
            return False
        is_empty = self._peek(partition, start, end)
        self._emptiness[partition] = (start, end, is_empty)
        return is_empty

    def _peek(self, partition: int, start: int, end: int) -> bool:
        consumer = self._peeks.take(self._peek_keeps)
        try:
            consumer.assign([TopicPartition(self.topic, partition, start)])
            deadline = time.monotonic() + TIMEOUT_S
            while (left_s := deadline - time.monotonic()) > 0:
                message = consumer.poll(left_s)
                if message is None:
                    break
                error = message.error()
                if error is None:
                    return (message.offset() or 0) >= end
                if error.code() == KafkaError._PARTITION_EOF:
                    return (message.offset() or 0) >= end
                if not is_of_group(error):
                    return False
            return False
        finally:
            self._peeks.give_back(self._peek_keeps, consumer)
            self._peeks.leave(self._peek_keeps)

    def read(self, spans: Sequence[OffsetSpan]) -> dict[int, SpanRecords]:
        """Return the records of these spans by partition.

        Raises:
            KafkaException: the broker has sent nothing for `STALLED_S`.
        """
        if not spans:
            return {}
        gone = Counter[int]()
        consumer = self._consumers.take(self)
        try:
            self._assign(consumer, spans)
            heard = time.monotonic()
            while waiting := {span.partition: span for span in spans if self._reached[span.partition] < span.end}:
                messages = consumer.consume(BATCH, 0.1)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard > STALLED_S:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                for message in messages:
                    self._take(consumer, message, waiting, gone)
            taken = {span.partition: self._taken(span) for span in spans}
        finally:
            self._consumers.give_back(self, consumer)
        return {partition: columns(messages, gone[partition]) for partition, messages in taken.items()}

    def read_before(self, spans: Iterable[OffsetSpan], offsets: int) -> dict[int, SpanRecords]:
        """Return the records of so many offsets before each of these spans, as far as retention has left them. `read`
        then goes on with the spans."""
        before = [OffsetSpan(span.partition, max(span.start - offsets, 0), span.start) for span in spans if span.start]
        return self.read(before)

    def close(self) -> None:
        self._consumers.leave(self)
        if not self._shared:
            self._consumers.close()
            self._peeks.close()

    def _assign(self, consumer: Consumer, spans: Sequence[OffsetSpan]) -> None:
        """Have the consumer deliver these spans: go on where it stands, or begin anew."""
        for span in spans:
            place = TopicPartition(self.topic, span.partition, span.start)
            if self._next.get(span.partition) != span.start:
                self._begin(consumer, place)
            elif span.partition in self._paused:
                self._paused.discard(span.partition)
                consumer.resume([place])
            self._next[span.partition] = span.end

    def _begin(self, consumer: Consumer, place: TopicPartition) -> None:
        if place.partition in self._reached:
            consumer.incremental_unassign([place])
        self._paused.discard(place.partition)
        self._early[place.partition] = deque()
        self._reached[place.partition] = place.offset
        consumer.incremental_assign([place])

    def _taken(self, span: OffsetSpan) -> list[Message]:
        """Return the records of a span that was read, and keep those of later ones."""
        early, messages = self._early[span.partition], []
        while early and (early[0].offset() or 0) < span.end:
            messages.append(early.popleft())
        return messages

    def _take(
        self, consumer: Consumer, message: Message, waiting: Mapping[int, OffsetSpan], gone: Counter[int]
    ) -> None:
        if message.topic() not in (None, self.topic):
            return  # of the reader that had the consumer before
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None:
            if offset >= self._reached[partition]:  # not of an assignment that has ended
                self._keep(consumer, partition, message)
                self._reached[partition] = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._reached[partition] = max(self._reached[partition], offset)
        elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            if partition in waiting:
                self._skip_deleted(consumer, waiting[partition], gone)
        elif not is_of_group(error):
            raise KafkaException(needs(error, "READ", f"topic {self.topic}"))

    def _keep(self, consumer: Consumer, partition: int, message: Message) -> None:
        """Keep a record for its span; of a partition that is too far ahead of the others, fetch no more."""
        early = self._early[partition]
        early.append(message)
        if (
            len(early) >= MAX_EARLY
            and partition not in self._paused
            and self._next[partition] <= (message.offset() or 0)
        ):
            self._paused.add(partition)
            consumer.pause([TopicPartition(self.topic, partition)])

    def _skip_deleted(self, consumer: Consumer, span: OffsetSpan, gone: Counter[int]) -> None:
        """Go on at the first offset that retention has left."""
        reached = self._reached[span.partition]
        start = max(self.look([span.partition]).logs[span.partition].start, reached)
        gone[span.partition] += max(0, min(start, span.end) - reached)
        messages = self._early[span.partition]
        self._begin(consumer, TopicPartition(self.topic, span.partition, start))
        self._early[span.partition] = messages
        if start > max(reached, span.end):
            self._next[span.partition] = -1  # the next span begins anew: it has to count those of its own


def columns(messages: Sequence[Message], gone: int) -> SpanRecords:
    """Return messages of one partition as columns; `gone`: how many retention deleted meanwhile."""
    times = [message.timestamp() for message in messages]
    offsets = np.fromiter((message.offset() or 0 for message in messages), np.int64, len(messages))
    return SpanRecords(
        offsets,
        Records(
            np.fromiter((at_ms for _, at_ms in times), np.int64, len(messages)),
            [_bytes(message.key()) for message in messages],
            [_bytes(message.value()) for message in messages],
            [_headers(message) for message in messages],
            np.fromiter((message.partition() or 0 for message in messages), np.int64, len(messages)),
            offsets,
        ),
        np.fromiter((kind == TIMESTAMP_LOG_APPEND_TIME for kind, _ in times), np.bool_, len(times)),
        gone,
    )


def _headers(message: Message) -> Headers:
    headers = headers_of(message)
    return BROKEN_HEADERS if headers is None else headers


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value

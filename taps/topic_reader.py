"""A topic as its brokers hold it: looks at its partitions, and the records of planned spans."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import (
    OFFSET_END,
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
from taps.plan import Look, OffsetSpan, Suspect
from taps.records import SpanRecords

STALLED_S: Final = 30.0
"""Longest wait for the next record of a span that the broker holds."""
BATCH: Final = 10_000
PIECE_BYTES: Final = 64 << 20
"""Of the records of all partitions that are handed out together; as much is kept for later spans."""
MAX_EARLY: Final = 100_000
"""Records of one partition that are kept for later spans."""
RECORD_BYTES: Final = 200
"""What a record takes besides key, value and headers."""
LAST_OF: Final = 100
"""Offsets among which the last record before one is looked for: some are markers of transactions."""
PEEKING: Final = {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536}
"""Properties of consumers that read a single record."""


class Delivered(NamedTuple):
    """A record, its headers, which can be asked for once only, and about how many bytes it takes."""

    message: Message
    headers: Headers
    bytes: int

    @classmethod
    def of(cls, message: Message) -> Delivered:
        headers = headers_of(message)
        sizes = (len(name) + len(value or b"") for name, value in headers or ())
        size = RECORD_BYTES + len(message.key() or b"") + len(message.value() or b"") + sum(sizes)
        return cls(message, BROKEN_HEADERS if headers is None else headers, size)

    @property
    def offset(self) -> int:
        return self.message.offset() or 0


Pieces = Generator[tuple[int, SpanRecords], None, None]
"""Records of spans with their partitions, in the order of each."""


class _Piece:
    """Records of spans that are not handed out yet, by partition."""

    def __init__(self, spans: Iterable[OffsetSpan]) -> None:
        self.bytes = 0
        self._records: dict[int, list[Delivered]] = {span.partition: [] for span in spans}

    def add(self, partition: int, record: Delivered) -> None:
        self._records[partition].append(record)
        self.bytes += record.bytes

    def take(self) -> list[tuple[int, list[Delivered]]]:
        """Return the records of each partition, and hold them no longer."""
        taken = list(self._records.items())
        self._records, self.bytes = {partition: [] for partition, _ in taken}, 0
        return taken


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
        """Every record before this offset was delivered."""
        self._early: dict[int, deque[Delivered]] = {}
        """Those of later spans: a consumer fetches on behind the end of a span."""
        self._early_bytes = 0
        self._paused: set[int] = set()
        self._emptiness: dict[int, tuple[int, int, bool]] = {}

    def deprived(self) -> None:
        """Begin the next read anew: another reader has the consumer."""
        self._next, self._reached, self._early, self._early_bytes, self._paused = {}, {}, {}, 0, set()

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

    def allows_unclean_election(self) -> bool:
        """Return whether a partition may get a leader that lacks acknowledged records."""
        return self._topics.allows_unclean_election(self.topic)

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
        is_before: dict[int, bool] = {}
        with closing(self.pieces(before)) as pieces:
            for partition, read in pieces:
                if read.offsets.size:
                    is_before[partition] = bool(read.is_append_time[-1] and read.records.timestamp_ms[-1] < moment_ms)
        return {partition for partition, last_is in is_before.items() if last_is}

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

    def whole_until(self, suspects: Mapping[int, Suspect]) -> dict[int, int]:
        """Return up to which offset each partition is what it was: a later leader may have lost its tail, and may have
        put other records there since.

        Raises:
            KafkaException: the leader does not answer, or is not the newest.
        """
        whole: dict[int, int] = {}
        bounds = {partition: (suspect.start, suspect.position + 1) for partition, suspect in suspects.items()}
        asked = {partition: suspect.position for partition, suspect in suspects.items()}
        while asked:  # up to where, the client says in the text of an error only
            cut = self._are_cut(asked, suspects)
            for partition, offset in asked.items():
                low, high = bounds[partition]
                bounds[partition] = (low, offset) if partition in cut else (offset, high)
            whole |= {partition: low for partition, (low, high) in bounds.items() if low + 1 >= high}
            asked = {partition: sum(bounds[partition]) // 2 for partition in suspects.keys() - whole.keys()}
        return whole

    def _are_cut(self, asked: Mapping[int, int], suspects: Mapping[int, Suspect]) -> set[int]:
        """Return the partitions that are not whole up to these offsets."""
        consumer = self._peeks.fresh()  # librdkafka compares epochs only where it has just learnt who leads
        cut, waiting = set(), set(asked)
        try:
            consumer.assign(
                [
                    TopicPartition(self.topic, at, offset, leader_epoch=suspects[at].epoch)
                    for at, offset in asked.items()
                ]
            )
            deadline = time.monotonic() + TIMEOUT_S
            while waiting and (left_s := deadline - time.monotonic()) > 0:
                message = consumer.poll(left_s)
                error = None if message is None else message.error()
                if message is None or (error is not None and is_of_group(error)):
                    continue
                partition = message.partition() or 0
                if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    cut.add(partition)
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(needs(error, "READ", f"topic {self.topic}"))
                waiting.discard(partition)
            if waiting:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            ends = [TopicPartition(self.topic, partition, OFFSET_END) for partition in asked]
            for end in consumer.offsets_for_times(ends, timeout=TIMEOUT_S):
                if end.leader_epoch is None or end.leader_epoch < suspects[end.partition].newest:
                    raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        finally:
            consumer.close()
        starts = self.look(cut).logs if cut else {}  # what retention has deleted meanwhile is refused likewise
        return {partition for partition in cut if starts[partition].start <= asked[partition]}

    def read(self, spans: Sequence[OffsetSpan]) -> dict[int, SpanRecords]:
        """Return all records of these spans by partition. Raises KafkaException, as `pieces` does."""
        return dict(self.pieces(spans, piece_bytes=math.inf))

    def pieces(self, spans: Sequence[OffsetSpan], piece_bytes: float = PIECE_BYTES) -> Pieces:
        """Yield the records of each of these spans, in one or more pieces, so that no more than about `piece_bytes` are
        held. Close it if it is not read to its end.

        Raises:
            KafkaException: the broker has sent nothing for `STALLED_S`.
        """
        if not spans:
            return
        gone, piece, is_read = Counter[int](), _Piece(spans), False
        consumer = self._consumers.take(self)
        try:
            self._assign(consumer, spans, piece)
            heard = time.monotonic()
            while waiting := {span.partition: span for span in spans if self._reached[span.partition] < span.end}:
                if piece.bytes >= piece_bytes:
                    yield from ((partition, columns(records, 0)) for partition, records in piece.take() if records)
                    heard = time.monotonic()
                messages = consumer.consume(BATCH, 0.1)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard > STALLED_S:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                for message in messages:
                    self._take(consumer, message, waiting, gone, piece)
            is_read = True
        finally:
            if not is_read:  # what is missing of these spans must not come with the next ones
                self._next |= {span.partition: -1 for span in spans}
            self._consumers.give_back(self, consumer)
        yield from ((partition, columns(records, gone[partition])) for partition, records in piece.take())

    def pieces_before(self, spans: Iterable[OffsetSpan], offsets: int) -> Pieces:
        """Yield the records of so many offsets before each of these spans, as far as retention has left them, as
        `pieces` does, which then goes on with the spans."""
        return self.pieces(
            [OffsetSpan(span.partition, max(span.start - offsets, 0), span.start) for span in spans if span.start]
        )

    def close(self) -> None:
        self._consumers.leave(self)
        if not self._shared:
            self._consumers.close()
            self._peeks.close()

    def _assign(self, consumer: Consumer, spans: Sequence[OffsetSpan], piece: _Piece) -> None:
        """Have the consumer deliver these spans: go on where it stands, with what is there of them, or begin anew."""
        for span in spans:
            place = TopicPartition(self.topic, span.partition, span.start)
            if self._next.get(span.partition) != span.start:
                self._early_bytes -= sum(record.bytes for record in self._early.get(span.partition, ()))
                self._early[span.partition] = deque()
                self._begin(consumer, place)
            elif span.partition in self._paused:
                self._paused.discard(span.partition)
                consumer.resume([place])
            self._next[span.partition] = span.end
            early = self._early[span.partition]
            while early and early[0].offset < span.end:
                self._early_bytes -= early[0].bytes
                piece.add(span.partition, early.popleft())

    def _begin(self, consumer: Consumer, place: TopicPartition) -> None:
        if place.partition in self._reached:
            consumer.incremental_unassign([place])
        self._paused.discard(place.partition)
        self._reached[place.partition] = place.offset
        consumer.incremental_assign([place])
        consumer.resume([place])  # a pause outlives its assignment, also that of another reader

    def _take(
        self,
        consumer: Consumer,
        message: Message,
        waiting: Mapping[int, OffsetSpan],
        gone: Counter[int],
        piece: _Piece,
    ) -> None:
        if message.topic() not in (None, self.topic):
            return  # of the reader that had the consumer before
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None:
            if offset >= self._reached[partition]:  # not of an assignment that has ended
                self._reached[partition] = offset + 1
                if partition in waiting and offset < waiting[partition].end:
                    piece.add(partition, Delivered.of(message))
                else:
                    self._keep(consumer, partition, Delivered.of(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            self._reached[partition] = max(self._reached[partition], offset)
        elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            if partition in waiting:
                self._skip_deleted(consumer, waiting[partition], gone)
        elif not is_of_group(error):
            raise KafkaException(needs(error, "READ", f"topic {self.topic}"))

    def _keep(self, consumer: Consumer, partition: int, record: Delivered) -> None:
        """Keep a record for a later span; of a partition that is too far ahead of the others, fetch no more."""
        early = self._early[partition]
        early.append(record)
        self._early_bytes += record.bytes
        if (len(early) >= MAX_EARLY or self._early_bytes >= PIECE_BYTES) and partition not in self._paused:
            self._paused.add(partition)
            consumer.pause([TopicPartition(self.topic, partition)])

    def _skip_deleted(self, consumer: Consumer, span: OffsetSpan, gone: Counter[int]) -> None:
        """Go on at the first offset that retention has left."""
        reached = self._reached[span.partition]
        start = max(self.look([span.partition]).logs[span.partition].start, reached)
        gone[span.partition] += max(0, min(start, span.end) - reached)
        self._begin(consumer, TopicPartition(self.topic, span.partition, start))
        if start > max(reached, span.end):
            self._next[span.partition] = -1  # the next span begins anew: it has to count those of its own


def columns(delivered: Sequence[Delivered], gone: int) -> SpanRecords:
    """Return records of one partition as columns; `gone`: how many retention deleted meanwhile."""
    messages = [record.message for record in delivered]
    times = [message.timestamp() for message in messages]
    offsets = np.fromiter((record.offset for record in delivered), np.int64, len(messages))
    return SpanRecords(
        offsets,
        Records(
            np.fromiter((at_ms for _, at_ms in times), np.int64, len(messages)),
            [_bytes(message.key()) for message in messages],
            [_bytes(message.value()) for message in messages],
            [record.headers for record in delivered],
            np.fromiter((message.partition() or 0 for message in messages), np.int64, len(messages)),
            offsets,
        ),
        np.fromiter((kind == TIMESTAMP_LOG_APPEND_TIME for kind, _ in times), np.bool_, len(times)),
        gone,
    )


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value

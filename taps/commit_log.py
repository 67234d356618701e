"""Commits of consumer groups: read from the log in which brokers keep them, or polled where that cannot be read."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import takewhile
from math import nextafter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from lagloss.broker.connection import Cluster
from lagloss.broker.errors import NOT_ALLOWED, kafka_error
from lagloss.broker.partition_bounds import Key
from lagloss_server.groups.consumer_groups import ConsumerGroups
from taps.cluster_topics import TURN_S, WANTED_S, ClusterTopics, SharedLook, TopicEnds
from taps.consumers import SharedConsumers
from taps.plan import STANDING_MS, Look, Looks, Mark, OffsetSpan
from taps.planner import NewCommits
from taps.topic_reader import TopicReader

T = TypeVar("T")
OFFSETS_TOPIC: Final = "__consumer_offsets"
MAX_RECORDS: Final = 200_000
"""Records of a partition of the log of commits that are read in one turn."""
MAX_KEPT: Final = 1_000
"""Records of a partition that were read in earlier turns, for taps that have yet to take them."""
FORGET_S: Final = 60.0
"""After which a partition that no tap asks for is read no more."""
LOOK_AGAIN_S: Final = 60.0
"""Between two tries to read the log of commits where they are polled."""


class Commit(NamedTuple):
    """One commit of a group, of one partition. `at_ms`: when the coordinator took it (epoch ms)."""

    group: str
    topic: str
    partition: int
    offset: int
    at_ms: int


class LoggedRecord(NamedTuple, Generic[T]):
    """What a record of the log says, and its place in the log. `at_ms`: when the log had it (epoch ms), by the broker's
    clock or by the look that showed it first; `stamped_ms`: its own timestamp."""

    log_partition: int
    log_offset: int
    at_ms: int
    stamped_ms: int
    value: T


class LogRead(NamedTuple, Generic[T]):
    """Records of partitions of the log, each up to the offset `reached`. `look`: by which they were read."""

    look: SharedLook
    reached: Mapping[int, int]
    records: Sequence[LoggedRecord[T]]


class CommitReader(Protocol):
    """Commits of one reader in one topic."""

    @property
    def kind(self) -> str:
        """Return `log`, `polled` or `connect`; empty while that is not known."""

    @property
    def partition(self) -> int | None:
        """Return the partition of the log of groups that has them; None if they are not read there."""

    @property
    def is_level(self) -> bool:
        """Return whether there are no new commits, as far as this process has read that log; False if they are not
        read there."""

    def read(self, positions: Mapping[int, int], since_ms: int) -> NewCommits:
        """Return the commits after these positions of the log, by its partition; where there are none, those since a
        time, and the newest before it."""


class _Recent(Generic[T]):
    """The newest records of a partition of the log: those in [start, end)."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.used_at = time.monotonic()
        self._records: deque[LoggedRecord[T]] = deque()

    def add(self, end: int, records: Iterable[LoggedRecord[T]]) -> None:
        """Add the records up to `end`, and forget all but the newest of those before."""
        while len(self._records) > MAX_KEPT:
            self.start = self._records.popleft().log_offset + 1
        self._records.extend(records)
        self.end = end

    def since(self, position: int) -> Iterator[LoggedRecord[T]]:
        """Return the records from an offset on."""
        newest_first = takewhile(lambda logged: logged.log_offset >= position, reversed(self._records))
        return reversed(list(newest_first))


class CommitLog(Generic[T]):
    """A log of commits, read once for all readers of a process. Threads may share it.

    Args:
        parse: returns what the key and value of a record say; None if nothing.

    Raises:
        KafkaException: when the brokers do not answer, or do not let the log be read (see `is_unreadable`).
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: ClusterTopics,
        topic: str,
        parse: Callable[[bytes | None, bytes | None], T | None],
        consumers: SharedConsumers | None = None,
        peeks: SharedConsumers | None = None,
    ) -> None:
        self.topic = topic
        self._topics, self._parse = topics, parse
        self._using = threading.Lock()
        self._reader = TopicReader(cluster, topic, topics, consumers, peeks)
        self._recent: dict[int, _Recent[T]] = {}

    @classmethod
    def of_groups(
        cls,
        cluster: Cluster,
        topics: ClusterTopics,
        consumers: SharedConsumers | None = None,
        peeks: SharedConsumers | None = None,
    ) -> CommitLog[Commit]:
        """Return the log in which the brokers keep the commits of all groups."""
        return CommitLog(cluster, topics, OFFSETS_TOPIC, parse_commit, consumers, peeks)

    def partitions(self) -> tuple[int, ...]:
        """Return the partitions of the log."""
        partitions = self._topics.describe(self.topic).partitions
        with self._using:  # of a log that was created anew with fewer, no broker knows the others
            self._recent = {number: recent for number, recent in self._recent.items() if number in partitions}
        return partitions

    def starts_at(self, moment_ms: int, partition: int) -> int:
        """Return the offset of the first record whose timestamp is at or after a moment."""
        return self._topics.starts_at(self.topic, moment_ms, [partition])[partition]

    def read(self, positions: Mapping[int, int], after: float) -> LogRead[T]:
        """Return what the records of these partitions say, from their positions to their ends, or to `MAX_RECORDS`
        further.

        Args:
            after: monotonic s; ends are asked later than that.

        Raises:
            KafkaException: the broker does not respond, or a partition has no leader.
        """
        with self._using:
            now = time.monotonic()
            self._recent = {
                number: recent for number, recent in self._recent.items() if now - recent.used_at < FORGET_S
            }
            for partition, position in positions.items():
                self._recent.setdefault(partition, _Recent(position)).used_at = now
            shared = self._topics.newest(self.topic, after, sorted(self._recent))
            logs = shared.look.logs
            if not positions.keys() <= logs.keys():
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            for partition in positions:
                if self._recent[partition].end > logs[partition].end:  # the log was cut short, or created anew
                    self._recent[partition] = _Recent(logs[partition].end)
            if any(self._recent[partition].end < logs[partition].stable_end for partition in positions):
                self._go_on(shared.look)
            reached: dict[int, int] = {}
            records: list[LoggedRecord[T]] = []
            alone = []
            for partition, position in positions.items():
                recent, start = self._recent[partition], max(position, logs[partition].start)
                if recent.start <= start <= recent.end:
                    reached[partition] = recent.end
                    records += recent.since(start)
                    continue
                # A tap that was away for long, or is ahead of one that was: by itself, until it is level with others.
                reached[partition] = max(start, min(logs[partition].stable_end, start + MAX_RECORDS))
                if reached[partition] > start:
                    alone.append(OffsetSpan(partition, start, reached[partition]))
            for parsed in self._parsed(alone, shared.look).values() if alone else ():
                records += parsed
            return LogRead(shared, reached, records)

    def read_on(self, partitions: Collection[int], ends: TopicEnds) -> None:
        """Read the partitions that groups use on, unless these end where they were read to."""
        with self._using:
            if any(ends.offsets.get((self.topic, at)) != self.end_of(at) for at in partitions):
                self._go_on(self._topics.newest(self.topic, ends.asked_at, sorted(self._recent)).look)

    def end_of(self, partition: int) -> int | None:
        """Return the offset up to which a partition was read; None if it is not read at present."""
        recent = self._recent.get(partition)
        return None if recent is None else recent.end

    def close(self) -> None:
        with self._using:
            self._reader.close()

    def _go_on(self, look: Look) -> None:
        """Read all partitions that are used on to their ends."""
        spans = []
        for partition, recent in self._recent.items():
            if partition not in look.logs:
                continue
            start = max(recent.end, look.logs[partition].start)
            if start < look.logs[partition].stable_end:
                spans.append(OffsetSpan(partition, start, min(look.logs[partition].stable_end, start + MAX_RECORDS)))
        records = self._parsed(spans, look) if spans else {}
        for span in spans:
            self._recent[span.partition].add(span.end, records[span.partition])

    def _parsed(self, spans: Sequence[OffsetSpan], look: Look) -> dict[int, list[LoggedRecord[T]]]:
        """Return what the records of spans say, by partition; of those that were compacted away, a later one stays."""
        by_ms = max(look.at_ms, look.by_ms)
        parsed: dict[int, list[LoggedRecord[T]]] = {span.partition: [] for span in spans}
        try:
            with closing(self._reader.pieces(spans)) as pieces:
                for partition, read in pieces:
                    parsed[partition] += [
                        LoggedRecord(partition, offset, stamped_ms if is_append_time else by_ms, stamped_ms, value)
                        for offset, stamped_ms, is_append_time, value in zip(
                            read.offsets.tolist(),
                            read.records.timestamp_ms.tolist(),
                            read.is_append_time.tolist(),
                            map(self._parse, read.records.keys, read.records.values),
                            strict=True,
                        )
                        if value is not None
                    ]
        except KafkaException:
            self._reader.close()  # with what it has heard of other partitions: the next read begins anew
            raise
        return parsed


class LogCursor(Generic[T]):
    """One reader's way through a log. Used by one thread."""

    def __init__(self, log: CommitLog[T]) -> None:
        self._log = log
        self._looks = Looks()
        self.looked_at = 0.0
        """Monotonic s: the newest look was asked no earlier."""

    def read(self, positions: Mapping[int, int]) -> tuple[LogRead[T], int | None]:
        """Return the records after these positions, and the time (epoch ms) before which none is missing; None if that
        is not known yet."""
        read = self._log.read(positions, self.looked_at)
        self.looked_at = read.look.asked_at
        look = read.look.look
        self._looks.add(look.at_ms, {partition: look.logs[partition].end for partition in positions})
        return read, self._looks.passed(read.reached)


class Polled(NamedTuple):
    """Committed offsets of a group in a topic, by partition. `at_ms`, `asked_at`: epoch ms and monotonic s before the
    coordinator was asked; `answered_at`: monotonic s after it has answered."""

    at_ms: int
    asked_at: float
    answered_at: float
    marks: Mapping[int, Mark]


class PolledGroups:
    """Committed offsets of a cluster's groups, asked once a turn for all taps. Threads may share it.

    Raises:
        KafkaException: a coordinator does not answer, or refuses.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._groups = ConsumerGroups(cluster, "lagloss-taps")
        self._asking = threading.Lock()
        self._wanted: dict[str, float] = {}
        self._polled: dict[str, tuple[int, float, float, Mapping[Key, int]]] = {}
        self._all_asked_at = 0.0

    def newest(self, group: str, topic: str, after: float) -> Polled:
        """Return what a group has committed in a topic, asked after monotonic s `after` and at most `TURN_S` ago."""
        with self._asking:
            now = self._wanted[group] = time.monotonic()
            asked_at = self._polled[group][1] if group in self._polled else 0.0
            if asked_at <= after or now - asked_at > TURN_S:
                self._ask(group, now)
            at_ms, asked_at, answered_at, offsets = self._polled[group]
        marks = {partition: Mark(offset, at_ms) for (name, partition), offset in offsets.items() if name == topic}
        return Polled(at_ms, asked_at, answered_at, marks)

    def standing(self, group: str, topic: str) -> Mapping[int, Mark]:
        """Return what a group has committed in a topic, by partition."""
        at_ms = time.time_ns() // 1_000_000
        offsets = self._groups.committed([group]).get(group, {})
        return {partition: Mark(offset, at_ms) for (name, partition), offset in offsets.items() if name == topic}

    def close(self) -> None:
        self._groups.close()

    def _ask(self, group: str, now: float) -> None:
        """Ask for all groups of late, once a turn; for this one alone otherwise, or if that fails, since the reason may
        lie with another."""
        if now - self._all_asked_at > TURN_S:
            self._all_asked_at = now
            self._wanted = {name: at for name, at in self._wanted.items() if now - at < WANTED_S}
            with suppress(KafkaException):
                self._polled = self._ask_for(self._wanted)
                return
        self._polled |= self._ask_for([group])

    def _ask_for(self, groups: Collection[str]) -> dict[str, tuple[int, float, float, Mapping[Key, int]]]:
        at_ms, asked_at = time.time_ns() // 1_000_000, time.monotonic()
        committed = self._groups.committed(groups)
        answered_at = time.monotonic()
        return {group: (at_ms, asked_at, answered_at, committed.get(group, {})) for group in groups}


class LoggedCommits:
    """Commits of one group in one topic, from the log. Used by one thread."""

    kind = "log"

    def __init__(self, log: CommitLog[Commit], groups: PolledGroups, group: str, topic: str) -> None:
        self._log, self._groups, self._group, self._topic = log, groups, group, topic
        self.partition = partition_of_group(group, len(log.partitions()))
        self._cursor = LogCursor(log)
        self._reached = -1

    @property
    def is_level(self) -> bool:
        """Whether this process has read no commits since those that were returned."""
        return self._log.end_of(self.partition) == self._reached

    def read(self, positions: Mapping[int, int], since_ms: int) -> NewCommits:
        if not positions:
            return self._begin(since_ms)
        read, passed_ms = self._cursor.read(positions)
        self._reached = read.reached[self.partition]
        marks: dict[int, list[Mark]] = {}
        for logged in read.records:
            commit = logged.value
            if commit.group == self._group and commit.topic == self._topic:
                marks.setdefault(commit.partition, []).append(Mark(commit.offset, commit.at_ms))
        return NewCommits(passed_ms, read.reached, marks, topic_after=nextafter(self._cursor.looked_at, 0))

    def _begin(self, since_ms: int) -> NewCommits:
        """Return the commits since a time, and of partitions without any the one that stands, which is older."""
        standing = self._groups.standing(self._group, self._topic)
        self._cursor.looked_at = time.monotonic()  # the log is read to where it has these commits, with their own times
        commits = self.read({self.partition: self._log.starts_at(since_ms, self.partition)}, since_ms)
        marks = {partition: list(some) for partition, some in commits.marks.items()}
        while commits.at_ms is None:  # so far it has been read in part
            commits = self.read(commits.next, since_ms)
            for partition, some in commits.marks.items():
                marks.setdefault(partition, []).extend(some)
        for partition, mark in standing.items():
            marks.setdefault(partition, [Mark(mark.offset, STANDING_MS)])
        return replace(commits, marks=marks)


class PolledCommits:
    """Asks the coordinator for the group's committed offsets: their times are those of the request."""

    kind = "polled"

    def __init__(self, groups: PolledGroups, group: str, topic: str) -> None:
        self._groups, self._group, self._topic = groups, group, topic
        self._polled_at = 0.0

    def read(self, positions: Mapping[int, int], since_ms: int) -> NewCommits:
        polled = self._groups.newest(self._group, self._topic, self._polled_at)
        self._polled_at = polled.asked_at
        marks = {partition: [mark] for partition, mark in polled.marks.items()}
        return NewCommits(polled.at_ms, {}, marks, topic_after=polled.answered_at, is_polled=True)


class GroupCommits:
    """Commits of a group: from the log, or polled while brokers do not let it be read, or have none yet."""

    def __init__(self, log: CommitLog[Commit], groups: PolledGroups, group: str, topic: str) -> None:
        self._log = log
        self._source = groups, group, topic
        self._reader: LoggedCommits | PolledCommits | None = None
        self._look_at = 0.0

    @property
    def kind(self) -> str:
        return self._reader.kind if self._reader else ""

    @property
    def partition(self) -> int | None:
        return self._reader.partition if isinstance(self._reader, LoggedCommits) else None

    @property
    def is_level(self) -> bool:
        return isinstance(self._reader, LoggedCommits) and self._reader.is_level

    def read(self, positions: Mapping[int, int], since_ms: int) -> NewCommits:
        if not isinstance(self._reader, LoggedCommits) and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_AGAIN_S
            try:
                logged = LoggedCommits(self._log, *self._source)
            except KafkaException as error:
                if not is_unreadable(error):
                    raise
            else:
                self._reader = logged
        if self._reader is None:
            self._reader = PolledCommits(*self._source)
        try:
            return self._reader.read(positions, since_ms)
        except KafkaException as error:
            if isinstance(self._reader, LoggedCommits) and is_unreadable(error):
                self._reader = PolledCommits(*self._source)
                return self._reader.read({}, since_ms)
            raise


def is_unreadable(error: KafkaException) -> bool:
    """Return whether the log of commits is hidden from this client, or one of a broker that has none."""
    hidden = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
    return kafka_error(error).code() in NOT_ALLOWED | hidden


def partition_of_group(group: str, partitions: int) -> int:
    """Return the partition of the log that has a group's commits: Java's `String.hashCode`, absolute, modulo."""
    hash_ = 0
    raw = group.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", raw):
        hash_ = (31 * hash_ + unit) & 0xFFFFFFFF
    signed = hash_ - (1 << 32) if hash_ >= 1 << 31 else hash_
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def parse_commit(key: object, value: object) -> Commit | None:
    """Return the commit in a record of the log; None for other records, deletions, and versions not known.

    As OffsetCommitKey.json and OffsetCommitValue.json of Kafka's group coordinator: versions 0 and 1 of keys, 0 to 4 of
    values.
    """
    if not isinstance(key, bytes) or not isinstance(value, bytes):
        return None
    try:
        (version,) = struct.unpack_from(">h", key)
        if version not in (0, 1):
            return None
        group, position = _text(key, 2)
        topic, position = _text(key, position)
        (partition,) = struct.unpack_from(">i", key, position)
        version, offset = struct.unpack_from(">hq", value)
        position = 10 + (4 if version >= 3 else 0)  # leader epoch
        if version in (0, 1, 2, 3):
            _, position = _text(value, position)
        elif version == 4:
            position = _skip_compact_text(value, position)
        else:
            return None
        (at_ms,) = struct.unpack_from(">q", value, position)
    except (struct.error, UnicodeDecodeError, IndexError):
        return None
    return Commit(group, topic, partition, offset, at_ms)


def _text(raw: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", raw, position)
    end = position + 2 + max(size, 0)
    return raw[position + 2 : end].decode(), end


def _skip_compact_text(raw: bytes, position: int) -> int:
    size = 0
    for place in range(5):  # of a number of 32 bits, seven in each byte
        byte = raw[position + place]
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return position + place + 1 + max(size - 1, 0)
    raise IndexError(position)

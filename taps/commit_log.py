"""Commits of consumer groups: read from the log in which brokers keep them, or polled where that cannot be read."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from math import nextafter
from typing import Final, NamedTuple, Protocol

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

OFFSETS_TOPIC: Final = "__consumer_offsets"
MAX_RECORDS: Final = 200_000
"""Records of the log of commits that are read in one turn."""
MAX_KEPT: Final = 1_000
"""Commits of a partition that were read in earlier turns, for taps that have yet to take them."""
FORGET_S: Final = 60.0
"""After which a partition that no group's tap asks for is read no more."""
LOOK_AGAIN_S: Final = 60.0
"""Between two tries to read the log of commits where they are polled."""


class Commit(NamedTuple):
    """One commit of a group, of one partition. `at_ms`: when the coordinator took it (epoch ms)."""

    group: str
    topic: str
    partition: int
    offset: int
    at_ms: int


class LoggedCommit(NamedTuple):
    """A commit and its offset in the log."""

    at: int
    commit: Commit


class LogRead(NamedTuple):
    """Commits of all groups in a partition of the log, up to the offset `reached`. `look`: by which they were read."""

    look: SharedLook
    reached: int
    commits: Sequence[Commit]


class CommitReader(Protocol):
    """Commits of one group in one topic."""

    @property
    def kind(self) -> str:
        """Return `log` or `polled`; empty while that is not known."""

    @property
    def partition(self) -> int | None:
        """Return the partition of the log that has them; None if they are polled."""

    @property
    def is_level(self) -> bool:
        """Return whether there are no new commits, as far as this process has read their log; False if they are
        polled."""

    def read(self, position: int, since_ms: int) -> NewCommits:
        """Return the commits after this position of the log; of -1, those since a time, and the newest before it."""


class _Recent:
    """The newest commits of a partition of the log: those in [start, end), with their offsets in the log."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.used_at = time.monotonic()
        self._commits: deque[LoggedCommit] = deque()

    def add(self, end: int, commits: Iterable[LoggedCommit]) -> None:
        """Add the commits up to `end`, and forget all but the newest of those before."""
        while len(self._commits) > MAX_KEPT:
            self.start = self._commits.popleft().at + 1
        self._commits.extend(commits)
        self.end = end

    def since(self, position: int) -> Iterator[Commit]:
        """Return the commits from an offset on."""
        newest_first = takewhile(lambda logged: logged.at >= position, reversed(self._commits))
        return (logged.commit for logged in reversed(list(newest_first)))


class CommitLog:
    """The log of commits of a cluster, read once for all groups of a process. Threads may share it.

    Raises:
        KafkaException: when the brokers do not answer, or do not let the log be read (see `is_unreadable`).
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: ClusterTopics,
        consumers: SharedConsumers | None = None,
        peeks: SharedConsumers | None = None,
    ) -> None:
        self._topics = topics
        self._using = threading.Lock()
        self._reader = TopicReader(cluster, OFFSETS_TOPIC, topics, consumers, peeks)
        self._recent: dict[int, _Recent] = {}

    def partition_of(self, group: str) -> int:
        """Return the partition that has a group's commits."""
        return partition_of_group(group, len(self._topics.describe(OFFSETS_TOPIC).partitions))

    def starts_at(self, moment_ms: int, partition: int) -> int:
        """Return the offset of the first record whose timestamp is at or after a moment."""
        return self._topics.starts_at(OFFSETS_TOPIC, moment_ms, [partition])[partition]

    def read(self, partition: int, position: int, after: float) -> LogRead:
        """Return the commits of all groups in a partition, from `position` to its end, or to `MAX_RECORDS` further.

        Args:
            after: monotonic s; its end is asked later than that.

        Raises:
            KafkaException: the broker does not respond, or the partition has no leader.
        """
        with self._using:
            now = time.monotonic()
            self._recent = {
                number: recent for number, recent in self._recent.items() if now - recent.used_at < FORGET_S
            }
            recent = self._recent.setdefault(partition, _Recent(position))
            recent.used_at = now
            shared = self._topics.newest(OFFSETS_TOPIC, after, sorted(self._recent))
            log = shared.look.logs.get(partition)
            if log is None:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            if recent.end < log.stable_end:
                self._go_on(shared.look)
            position = max(position, log.start)
            if recent.start <= position <= recent.end:
                return LogRead(shared, recent.end, list(recent.since(position)))
            # A tap that was away for long, or is ahead of one that was: by itself, until it is level with the others.
            end = max(position, min(log.stable_end, position + MAX_RECORDS))
            commits = self._parsed([OffsetSpan(partition, position, end)]) if end > position else {}
            return LogRead(shared, end, [logged.commit for logged in commits.get(partition, ())])

    def read_on(self, partitions: Collection[int], ends: TopicEnds) -> None:
        """Read the partitions that groups use on, unless these end where they were read to."""
        with self._using:
            if any(ends.offsets.get((OFFSETS_TOPIC, at)) != self.end_of(at) for at in partitions):
                self._go_on(self._topics.newest(OFFSETS_TOPIC, ends.asked_at, sorted(self._recent)).look)

    def end_of(self, partition: int) -> int | None:
        """Return the offset up to which a partition was read; None if it is not read at present."""
        recent = self._recent.get(partition)
        return None if recent is None else recent.end

    def close(self) -> None:
        with self._using:
            self._reader.close()

    def _go_on(self, look: Look) -> None:
        """Read all partitions that groups use on to their ends."""
        spans = []
        for partition, recent in self._recent.items():
            if partition not in look.logs:
                continue
            start = max(recent.end, look.logs[partition].start)
            if start < look.logs[partition].stable_end:
                spans.append(OffsetSpan(partition, start, min(look.logs[partition].stable_end, start + MAX_RECORDS)))
        commits = self._parsed(spans) if spans else {}
        for span in spans:
            self._recent[span.partition].add(span.end, commits[span.partition])

    def _parsed(self, spans: Sequence[OffsetSpan]) -> dict[int, list[LoggedCommit]]:
        """Return the commits of spans by partition; of those that were compacted away, a later one stays."""
        try:
            records = self._reader.read(spans)
        except KafkaException:
            self._reader.close()  # with what it has heard of other partitions: the next read begins anew
            raise
        commits_by_partition = {}
        for partition, read in records.items():
            commits = map(parse_commit, read.records.keys, read.records.values)
            commits_by_partition[partition] = [
                LoggedCommit(offset, commit)
                for offset, commit in zip(read.offsets.tolist(), commits, strict=True)
                if commit is not None
            ]
        return commits_by_partition


class Polled(NamedTuple):
    """Committed offsets of a group in a topic, by partition. `at_ms`, `asked_at`: epoch ms and monotonic s before the
    coordinator was asked."""

    at_ms: int
    asked_at: float
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
        self._polled: dict[str, tuple[int, float, Mapping[Key, int]]] = {}
        self._all_asked_at = 0.0

    def newest(self, group: str, topic: str, after: float) -> Polled:
        """Return what a group has committed in a topic, asked after monotonic s `after` and at most `TURN_S` ago."""
        with self._asking:
            now = self._wanted[group] = time.monotonic()
            asked_at = self._polled[group][1] if group in self._polled else 0.0
            if asked_at <= after or now - asked_at > TURN_S:
                self._ask(group, now)
            at_ms, asked_at, offsets = self._polled[group]
        marks = {partition: Mark(offset, at_ms) for (name, partition), offset in offsets.items() if name == topic}
        return Polled(at_ms, asked_at, marks)

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

    def _ask_for(self, groups: Collection[str]) -> dict[str, tuple[int, float, Mapping[Key, int]]]:
        at_ms, asked_at = time.time_ns() // 1_000_000, time.monotonic()
        committed = self._groups.committed(groups)
        return {group: (at_ms, asked_at, committed.get(group, {})) for group in groups}


class LoggedCommits:
    """Commits of one group in one topic, from the log. Used by one thread."""

    kind = "log"

    def __init__(self, log: CommitLog, groups: PolledGroups, group: str, topic: str) -> None:
        self._log, self._groups, self._group, self._topic = log, groups, group, topic
        self.partition = log.partition_of(group)
        self._looks = Looks()
        self._looked_at = 0.0
        self._reached = -1

    @property
    def is_level(self) -> bool:
        """Whether this process has read no commits since those that were returned."""
        return self._log.end_of(self.partition) == self._reached

    def read(self, position: int, since_ms: int) -> NewCommits:
        if position < 0:
            return self._begin(since_ms)
        commits = self._log.read(self.partition, position, self._looked_at)
        self._looked_at = commits.look.asked_at
        self._looks.add(commits.look.look.at_ms, {self.partition: commits.look.look.logs[self.partition].end})
        marks: dict[int, list[Mark]] = {}
        for commit in commits.commits:
            if commit.group == self._group and commit.topic == self._topic:
                marks.setdefault(commit.partition, []).append(Mark(commit.offset, commit.at_ms))
        self._reached = commits.reached
        passed_ms = self._looks.passed({self.partition: commits.reached})
        return NewCommits(passed_ms, commits.reached, marks, topic_after=nextafter(self._looked_at, 0))

    def _begin(self, since_ms: int) -> NewCommits:
        """Return the commits since a time, and of partitions without any the one that stands, which is older."""
        standing = self._groups.standing(self._group, self._topic)
        self._looked_at = time.monotonic()  # the log is read to where it has these commits, with their own times
        commits = self.read(self._log.starts_at(since_ms, self.partition), since_ms)
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

    def read(self, position: int, since_ms: int) -> NewCommits:
        polled = self._groups.newest(self._group, self._topic, self._polled_at)
        self._polled_at = polled.asked_at
        marks = {partition: [mark] for partition, mark in polled.marks.items()}
        return NewCommits(polled.at_ms, -1, marks, is_polled=True)


class GroupCommits:
    """Commits of a group: from the log, or polled while brokers do not let it be read, or have none yet."""

    def __init__(self, log: CommitLog, groups: PolledGroups, group: str, topic: str) -> None:
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

    def read(self, position: int, since_ms: int) -> NewCommits:
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
            return self._reader.read(position, since_ms)
        except KafkaException as error:
            if isinstance(self._reader, LoggedCommits) and is_unreadable(error):
                self._reader = PolledCommits(*self._source)
                return self._reader.read(position, since_ms)
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

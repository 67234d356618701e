"""Commits of consumer groups: read from the log in which brokers keep them, or polled where that cannot be read."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException

from lagloss.broker.connection import Cluster
from lagloss.broker.errors import NOT_ALLOWED, kafka_error
from lagloss_server.queries.consumer_groups import ConsumerGroups
from taps.plan import Looks, Mark, OffsetSpan
from taps.planner import NewCommits
from taps.topic_reader import TopicReader

OFFSETS_TOPIC: Final = "__consumer_offsets"
MAX_RECORDS: Final = 200_000
"""Records of the log of commits that are read in one turn."""
LOOK_AGAIN_S: Final = 60.0
"""Between two tries to read the log of commits where they are polled."""


class Commit(NamedTuple):
    """One commit of a group, of one partition. `at_ms`: when the coordinator took it (epoch ms)."""

    group: str
    topic: str
    partition: int
    offset: int
    at_ms: int


class CommitReader(Protocol):
    """Commits of one group in one topic."""

    @property
    def kind(self) -> str:
        """Return `log` or `polled`; empty while that is not known."""

    def read(self, position: int, since_ms: int) -> NewCommits:
        """Return the commits after this position of the log; of -1, those since a time, and the newest before it."""

    def close(self) -> None:
        """Close its connections."""


class CommitLog:
    """Reads the group's commits in the partition of the log that has them. Used by one thread.

    Raises:
        KafkaException: when the brokers do not answer, or do not let the log be read (see `is_unreadable`).
    """

    kind = "log"

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self._group, self._topic = group, topic
        self._reader = TopicReader(cluster, OFFSETS_TOPIC)
        self._groups = ConsumerGroups(cluster, "lagloss-taps")
        self._partition = partition_of_group(group, len(self._reader.describe().partitions))
        self._looks = Looks()

    def read(self, position: int, since_ms: int) -> NewCommits:
        baseline: dict[int, Mark] = {}
        if position < 0:
            position = self._reader.starts_at(since_ms, [self._partition])[self._partition]
            baseline = _newest(self._groups, self._group, self._topic)
        look = self._reader.look([self._partition])
        self._looks.add(look.at_ms, look.ends)
        marks: dict[int, list[Mark]] = {}
        log = look.logs[self._partition]
        position = max(position, log.start)
        reached = max(position, min(log.stable_end, position + MAX_RECORDS))
        for commit in self._commits(position, reached):
            if commit.group == self._group and commit.topic == self._topic:
                marks.setdefault(commit.partition, []).append(Mark(commit.offset, commit.at_ms))
        for partition, mark in baseline.items():
            marks.setdefault(partition, []).append(mark)
        return NewCommits(self._looks.passed({self._partition: reached}), reached, marks)

    def close(self) -> None:
        self._reader.close()
        self._groups.close()

    def _commits(self, position: int, end: int) -> Iterator[Commit]:
        """Yield the commits from `position` to before `end`; of those that were compacted away, a later one stays."""
        if end > position:
            span = OffsetSpan(self._partition, position, end)
            records = self._reader.read([span])[self._partition].records
            yield from filter(None, map(parse_commit, records.keys, records.values))


class PolledCommits:
    """Asks the coordinator for the group's committed offsets: their times are those of the asking."""

    kind = "polled"

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self._group, self._topic = group, topic
        self._groups = ConsumerGroups(cluster, "lagloss-taps")

    def read(self, position: int, since_ms: int) -> NewCommits:
        at_ms = time.time_ns() // 1_000_000
        marks = _newest(self._groups, self._group, self._topic)
        return NewCommits(at_ms, -1, {partition: [mark] for partition, mark in marks.items()})

    def close(self) -> None:
        self._groups.close()


class GroupCommits:
    """Commits of a group: from the log, or polled while brokers do not let it be read, or have none yet."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self._source = cluster, group, topic
        self._reader: CommitLog | PolledCommits | None = None
        self._look_at = 0.0

    @property
    def kind(self) -> str:
        return self._reader.kind if self._reader else ""

    def read(self, position: int, since_ms: int) -> NewCommits:
        if not isinstance(self._reader, CommitLog) and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_AGAIN_S
            try:
                log = CommitLog(*self._source)
            except KafkaException as error:
                if not is_unreadable(error):
                    raise
            else:
                self.close()
                self._reader = log
        if self._reader is None:
            self._reader = PolledCommits(*self._source)
        try:
            return self._reader.read(position, since_ms)
        except KafkaException as error:
            if isinstance(self._reader, CommitLog) and is_unreadable(error):
                self.close()
                self._reader = PolledCommits(*self._source)
                return self._reader.read(position, since_ms)
            raise

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def is_unreadable(error: KafkaException) -> bool:
    """Return whether the log of commits is hidden from this client, or one of a broker that has none."""
    hidden = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
    return kafka_error(error).code() in NOT_ALLOWED | hidden


def partition_of_group(group: str, partitions: int) -> int:
    """Return the partition of the log that has a group's commits: Java's `String.hashCode`, absolute, modulo."""
    found = 0
    raw = group.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", raw):
        found = (31 * found + unit) & 0xFFFFFFFF
    signed = found - (1 << 32) if found >= 1 << 31 else found
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
        group, at = _text(key, 2)
        topic, at = _text(key, at)
        (partition,) = struct.unpack_from(">i", key, at)
        version, offset = struct.unpack_from(">hq", value)
        at = 10 + (4 if version >= 3 else 0)  # leader epoch
        if version in (0, 1, 2, 3):
            _, at = _text(value, at)
        elif version == 4:
            at = _skip_compact_text(value, at)
        else:
            return None
        (at_ms,) = struct.unpack_from(">q", value, at)
    except (struct.error, UnicodeDecodeError, IndexError):
        return None
    return Commit(group, topic, partition, offset, at_ms)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", raw, at)
    end = at + 2 + max(size, 0)
    return raw[at + 2 : end].decode(), end


def _skip_compact_text(raw: bytes, at: int) -> int:
    size, shift = 0, 0
    while True:
        byte = raw[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + max(size - 1, 0)
        shift += 7


def _newest(groups: ConsumerGroups, group: str, topic: str) -> dict[int, Mark]:
    at_ms = time.time_ns() // 1_000_000
    committed = groups.committed([group]).get(group, {})
    return {partition: Mark(offset, at_ms) for (name, partition), offset in committed.items() if name == topic}

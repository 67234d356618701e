"""Offsets of a source connector that mirrors a topic, read like the commits of a group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import nextafter
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from lagloss.broker.connection import Cluster
from lagloss_server.groups.connect_offsets import OddOffset, SourceOffset, SourcePartition, parse_source_offset
from taps.cluster_topics import ClusterTopics
from taps.commit_log import CommitLog, LogCursor, LoggedRecord
from taps.consumers import SharedConsumers
from taps.plan import STANDING_MS, Mark
from taps.planner import NewCommits
from taps.records import UnreadableRecords

DESCRIBE_S: Final = 60.0
"""Between two looks for partitions that were added to the offset topic."""

SourceLog = CommitLog[SourceOffset | OddOffset]


def source_log(
    cluster: Cluster,
    topics: ClusterTopics,
    topic: str,
    consumers: SharedConsumers | None = None,
    peeks: SharedConsumers | None = None,
) -> SourceLog:
    """Return the log of the offsets that workers of Kafka Connect store in a topic."""
    return CommitLog(cluster, topics, topic, parse_source_offset, consumers, peeks)


class ConnectorCommits:
    """Offsets of one connector in one topic that it mirrors. Used by one thread.

    Workers store an offset once all records up to it are acknowledged by the target cluster, dropped by a transform or
    tolerated as failed, so that it is evidence like a group's commit. Its time is that of the look which showed it
    first, unless the offset topic has the broker's: a worker's own clock is none.
    """

    kind = "connect"
    partition = None
    is_level = False

    def __init__(self, log: SourceLog, connector: str, topic: str) -> None:
        self._log, self._connector, self._topic = log, connector, topic
        self._cursor = LogCursor(log)
        self._partitions: tuple[int, ...] = ()
        self._described_at = float("-inf")
        self._next: Mapping[int, int] = {}
        self._stored: dict[SourcePartition, int | None] = {}
        """What stands in the log, by partition of the connector's source."""

    def read(self, positions: Mapping[int, int], since_ms: int) -> NewCommits:
        self._describe()
        goes_on = bool(positions) and positions == self._next
        if not goes_on:
            # After a start, a take-over or an outage: all that stands is read, for the clusters that it is of, by a
            # look that is later than those of another owner.
            self._stored.clear()
            self._cursor.looked_at = time.monotonic()
        start = positions if goes_on else {}
        marks: dict[str, dict[int, list[Mark]]] = {}
        odd: dict[str, UnreadableRecords] = {}
        while True:
            read, passed_ms = self._cursor.read({partition: start.get(partition, 0) for partition in self._partitions})
            for logged in read.records:
                is_new = logged.log_offset >= positions.get(logged.log_partition, 0)
                self._take(logged, marks, odd, is_new=is_new, before_ms=None if positions else since_ms)
            logs = read.look.look.logs
            start = {partition: min(reached, logs[partition].end) for partition, reached in read.reached.items()}
            if goes_on or all(start[partition] >= logs[partition].stable_end for partition in start):
                break
        alias = self._alias(marks)
        self._next = start
        after = nextafter(self._cursor.looked_at, 0)
        return NewCommits(passed_ms, start, marks.get(alias, {}), topic_after=after, unreadable=odd)

    def _describe(self) -> None:
        if time.monotonic() - self._described_at >= DESCRIBE_S:
            self._partitions = self._log.partitions()
            self._described_at = time.monotonic()

    def _take(
        self,
        logged: LoggedRecord[SourceOffset | OddOffset],
        marks: dict[str, dict[int, list[Mark]]],
        odd: dict[str, UnreadableRecords],
        *,
        is_new: bool,
        before_ms: int | None,
    ) -> None:
        """Add what a record says, to `marks` by alias. `before_ms`: one that was stamped before stands since the tap
        began."""
        stored = logged.value
        if isinstance(stored, OddOffset):
            if is_new and stored.connector in (None, self._connector):
                count = odd[stored.reason].count + 1 if stored.reason in odd else 1
                place = logged.log_partition, logged.log_offset, logged.stamped_ms
                odd[stored.reason] = UnreadableRecords(count, *place)
            return
        if stored.connector != self._connector or stored.source.topic != self._topic:
            return
        self._stored[stored.source] = stored.next
        if is_new and stored.next is not None:
            is_standing = before_ms is not None and logged.stamped_ms < before_ms
            mark = Mark(stored.next, STANDING_MS if is_standing else logged.at_ms)
            marks.setdefault(stored.source.alias, {}).setdefault(stored.source.partition, []).append(mark)

    def _alias(self, marks: Mapping[str, object]) -> str:
        """Return the alias of the cluster whose marks count; of those that were reset meanwhile, none does.

        Raises:
            KafkaException: the connector has offsets of this topic in several clusters.
        """
        standing = {source.alias for source, position in self._stored.items() if position is not None}
        aliases = sorted(standing or marks)
        if len(aliases) > 1 and standing:
            problem = (
                f"connector {self._connector} has offsets of topic {self._topic} in the clusters {', '.join(aliases)};"
                f" only those of one can be followed: reset the others (PATCH /connectors/{self._connector}/offsets)"
            )
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, problem))
        return aliases[0] if len(aliases) == 1 else ""

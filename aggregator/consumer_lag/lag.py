"""Consumer lag: how far a consumer group is behind in each partition, by what the brokers say of its offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from msgspec import Struct

from aggregator.consumer_lag.event_times import NO_EXPRESSIONS, RecordPlace
from aggregator.consumer_lag.record_times import WaitingRecord, WaitingRecords
from aggregator.consumer_lag.topic_limits import TopicLimits
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets
from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import kafka_error
from lagloss.broker.partition_bounds import Key, PartitionBounds
from lagloss.errors import LaglossError
from lagloss_server.groups.cluster_groups import Basis
from lagloss_server.groups.consumer_groups import ConsumerGroups, GroupDescription, ListedGroup, ShareLag
from lagloss_server.groups.retention import RetentionLimits, age_ms
from lagloss_server.groups.source_offsets import SourceOffsets
from lagloss_server.model.taps import Extraction, OffsetStorage

ANSWER_TIMEOUT_S: Final = 2.0
"""For the answers to one kind of question, all together."""
_Reader = tuple[str, OffsetStorage | None]
"""A group, or a source connector and where its offsets are."""


class Log(NamedTuple):
    """Offsets that a partition holds: [start, end)."""

    start: int
    end: int


def next_offset(committed: int | None, log: Log) -> int:
    """Return the offset at which the group continues: offsets that the log has dropped are skipped, and where nothing
    was committed (a partition that was added, say), all that the log holds may wait."""
    return log.start if committed is None else max(committed, log.start)


def offset_lag(committed: int | None, log: Log) -> int | None:
    """Return the number of offsets to the log's end, markers of transactions among them. None where more was committed
    than the log holds: the log lost its tail, and the group's reaction to that is unknown."""
    lag = log.end - next_offset(committed, log)
    return lag if lag >= 0 else None


class Delay(NamedTuple):
    """What waits in a partition, as `PartitionLag` has it."""

    offsets: int
    behind_ms: int | None = None
    basis: Basis | None = None
    problem: str | None = None


def delay_of(lag: int, end: int, waiting: WaitingRecord | None, asked_ms: int) -> Delay:
    """Return the delay in a partition: `lag` offsets up to `end`, and `waiting` is the record that a reader found
    first. If nothing but markers of transactions is left, nothing waits."""
    if waiting is None:
        return Delay(lag)  # it could not be read in time
    if waiting.is_end:
        return Delay(0, 0) if waiting.offset >= end else Delay(lag)
    if waiting.event_time_ms is not None:
        return Delay(lag, asked_ms - waiting.event_time_ms, "event-time")
    if waiting.stamped_ms is None or waiting.stamped_ms < 0:
        return Delay(lag, problem="the first unread record has no timestamp")
    behind_ms = age_ms(waiting.stamped_ms, asked_ms)
    if behind_ms is None:
        problem = f"the timestamp of the first unread record, {waiting.stamped_ms}, is not a time in ms"
        return Delay(lag, problem=problem)
    return Delay(lag, behind_ms, "timestamp")


class Input(Struct, frozen=True):
    """A partition that a group reads: what it has committed of it (None: nothing), and what the log holds, what deletes
    from it and how large it is (None: not known)."""

    group: NodeGroup
    key: Key
    committed: int | None
    log: Log | None
    limits: RetentionLimits | None = None
    size_bytes: int | None = None
    unfinished: int | None = None
    """Of a share group, as its coordinator counts it: it may have finished records behind the first unfinished one."""

    @property
    def lag(self) -> int | None:
        if self.log is None or self.unfinished is not None:
            return self.unfinished
        return offset_lag(self.committed, self.log)

    @property
    def place(self) -> RecordPlace | None:
        """The place where the group continues, if anything waits there."""
        return (
            RecordPlace(self.key, next_offset(self.committed, self.log)) if self.log is not None and self.lag else None
        )

    def judged(self, waiting: Mapping[RecordPlace, WaitingRecord], asked_ms: int) -> PartitionLag:
        """Judge the lag by the record found where the group continues."""
        if self.log is None:
            return PartitionLag(self.group, *self.key, None, None)
        record = waiting.get(RecordPlace(self.key, next_offset(self.committed, self.log)))
        stamped_ms = record.stamped_ms if record is not None and self.lag else None
        offsets = PartitionOffsets(self.committed, *self.log, stamped_ms, self.limits, self.size_bytes)
        if not self.lag:  # nothing is behind where nothing waits
            return PartitionLag(self.group, *self.key, self.lag, self.lag, at=offsets)
        delay = delay_of(self.lag, self.log.end, record, asked_ms)
        return PartitionLag(
            self.group, *self.key, delay.offsets, delay.behind_ms, at=offsets, basis=delay.basis, problem=delay.problem
        )


class ConsumerLags:
    """Reader of consumer lags from the brokers. One that does not answer costs seconds: use it in its own thread."""

    def __init__(self, cluster: Cluster, name: str = "", own: Cluster | None = None) -> None:
        """`own`: the cluster of lagloss's own topics, if it is another one."""
        self._own = cluster if own is None else own
        self._sources: dict[OffsetStorage, SourceOffsets] = {}
        config = KafkaConnection.of(cluster).client({"client.id": "lagloss-consumer-lag", "log_level": 0})
        self._admin = AdminClient(config)
        self._groups = ConsumerGroups(cluster, "lagloss-consumer-lag")
        self._bounds = PartitionBounds(config)
        self._records = WaitingRecords(config, name)
        self._limits = TopicLimits(self._admin, cluster, "lagloss-consumer-lag")
        self._described: dict[str, GroupDescription] = {}
        self._shares: set[str] = set()
        """Names of share groups, as they were listed last."""
        self.trouble: str | None = None
        """Why something was left out of the last reading."""

    def listed(self) -> dict[str, ListedGroup]:
        """Return the consumer groups and share groups of the cluster that this client may see.

        Raises:
            KafkaException: the brokers did not answer.
        """
        listed = self._groups.listed()
        self._shares = {name for name, group in listed.items() if group.kind == "share"}
        return listed

    def topics(self) -> list[str]:
        """Return the names of the topics of the cluster that this client may see.

        Raises:
            KafkaException: the brokers did not answer.
        """
        return list(self._admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics)

    def read(
        self, groups: Collection[NodeGroup], expressions: Mapping[str, Extraction] = NO_EXPRESSIONS
    ) -> tuple[int, list[PartitionLag]]:
        """Return the time of the request (epoch ms), and the lag of every partition of the topics in which these
        readers have committed offsets, and of those that their members are assigned. Groups and topics that do not
        exist have none. Where nothing is committed the lag is the most that it can be: `GroupProgress` knows whether it
        is.
        `expressions`: of topics that are tapped, where their records say their event times.

        Raises:
            KafkaException, TimeoutError: the brokers did not answer.
        """
        self.trouble = None
        names = {group.group for group in groups if group.offsets is None}
        shares = names & self._shares
        # before commits: a member's last one comes before its end
        self._described = self._descriptions(names - shares, shares)
        shared = self._shared(shares)
        committed: dict[_Reader, dict[Key, int]]
        committed = {(name, None): offsets for name, offsets in self._committed(names - shares).items()}
        committed |= {(name, None): {key: lag.start for key, lag in lags.items()} for name, lags in shared.items()}
        committed |= self._stored({(group.group, group.offsets) for group in groups if group.offsets is not None})
        assigned = {key for description in self._described.values() for key in description.keys}
        keys = self._partitions({topic for topic, _ in assigned.union(*committed.values())})
        limits = self._limits.limits(keys)
        sized = [key for topic, some in keys.items() if _has_size(limits.get(topic)) for key in some]
        sizes = self._limits.sizes(sized)
        # In this order: ends that were asked for later are never before offsets that were committed earlier.
        logs = self._logs([key for partitions in keys.values() for key in partitions])
        asked_ms = int(time.time() * 1_000)
        inputs = [
            Input(
                group,
                key,
                committed[group.group, group.offsets].get(key),
                logs.get(key),
                limits.get(topic),
                sizes.get(key),
                shared[group.group][key].lag if group.offsets is None and key in shared.get(group.group, ()) else None,
            )
            for group in groups
            if (group.group, group.offsets) in committed
            for topic, input_keys in self._wanted(group, committed[group.group, group.offsets])
            for key in keys.get(topic, ())
            if input_keys is None or key in input_keys
        ]
        most_first = sorted(inputs, key=lambda item: (item.committed is not None, item.lag or 0), reverse=True)
        places = {item.place: None for item in most_first if item.place is not None}
        waiting = self._records.read(places, expressions)
        return asked_ms, [item.judged(waiting, asked_ms) for item in inputs]

    def describe(self, groups: Collection[NodeGroup]) -> dict[NodeGroup, GroupDescription]:
        """Return the description of each group whose coordinator gave one when lags were read last."""
        return {
            group: self._described[group.group]
            for group in groups
            if group.offsets is None and group.group in self._described
        }

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._limits.close()
        self._groups.close()
        self._bounds.close()
        self._records.close()

    def _stored(self, connectors: Collection[tuple[str, OffsetStorage]]) -> dict[_Reader, dict[Key, int]]:
        """Return the offsets that source connectors have stored; keep an error as the trouble, which costs no group its
        lags."""
        stored: dict[_Reader, dict[Key, int]] = {}
        storages = {storage for _, storage in connectors}
        for storage in sorted(storages):
            try:
                if storage not in self._sources:
                    cluster = KafkaConnection.named(storage.cluster) if storage.cluster else self._own
                    self._sources[storage] = SourceOffsets(cluster, storage.topic)
                source = self._sources[storage]
                source.read()
            except (KafkaException, LaglossError) as error:
                self.trouble = f"offsets of connectors in {storage.topic}: {error}"
                continue
            stored |= {(name, place): source.committed(name) for name, place in connectors if place == storage}
        return stored

    def _shared(self, groups: Collection[str]) -> dict[str, dict[Key, ShareLag]]:
        """Return what share groups have not finished; keep an error as the trouble."""
        try:
            return self._groups.shared(groups)
        except KafkaException as error:
            self.trouble = str(error)
            return {}

    def _descriptions(self, names: Collection[str], shares: Collection[str]) -> dict[str, GroupDescription]:
        """Return the description of each group whose coordinator gives one; keep an error as the trouble."""
        try:
            return self._groups.described(names) | self._groups.described_shares(shares)
        except KafkaException as error:
            self.trouble = str(error)
            return {}

    def _wanted(self, group: NodeGroup, committed: Collection[Key]) -> list[tuple[str, frozenset[Key] | None]]:
        """Return the topics that a group reads, each with the partitions that are looked at: all (None) if it has
        committed offsets of the topic, else those that its members are assigned."""
        description = self._described.get(group.group) if group.offsets is None else None
        assigned = frozenset[Key]() if description is None else description.keys
        has_commits = {topic for topic, _ in committed}
        topics = has_commits | {topic for topic, _ in assigned}
        return [(topic, None if topic in has_commits else assigned) for topic in sorted(topics)]

    def _committed(self, groups: Collection[str]) -> dict[str, dict[Key, int]]:
        """Return the committed offsets of each group, by partition; a group that does not exist has none. Groups whose
        coordinator does not answer, or refuses to, are left out, unless none does."""
        if not groups:
            return {}
        try:
            return self._groups.committed(groups)
        except KafkaException:
            if len(groups) == 1:
                raise
        offsets: dict[str, dict[Key, int]] = {}
        trouble: KafkaException | None = None
        names = sorted(groups)
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            try:
                offsets |= self._committed(half)
            except KafkaException as error:
                trouble = error
                self.trouble = f"{half[0]}{f' and {len(half) - 1} more' if len(half) > 1 else ''}: {error}"
        if not offsets and trouble is not None:
            raise trouble
        return offsets

    def _partitions(self, topics: Collection[str]) -> dict[str, list[Key]]:
        """Return the partitions of each topic that exists, whether or not they have committed offsets."""
        if not topics:
            return {}
        topics_described = TopicCollection(sorted(topics))
        futures: dict[str, Any] = self._admin.describe_topics(topics_described, request_timeout=ANSWER_TIMEOUT_S)
        return {
            topic: sorted((topic, partition.id) for partition in answer.partitions)
            for topic, answer in self._answers(futures).items()
        }

    def _logs(self, keys: Collection[Key]) -> dict[Key, Log]:
        """Return the offsets that these partitions hold; those whose leader does not answer are left out."""
        if not keys:
            return {}
        starts, ends = self._bounds.begins(keys), self._bounds.ends(keys)
        logs = {key: Log(starts[key], ends[key]) for key in starts.keys() & ends.keys()}
        if len(logs) < len(keys):
            self.trouble = self._bounds.last_error
        return logs

    def _answers(self, futures: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answers, without those for groups and topics that do not exist; keep an error as the trouble, and
        raise it if there is no answer at all."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        answers: dict[str, Any] = {}
        trouble: KafkaException | TimeoutError | None = None
        for name, future in futures.items():
            try:
                answers[name] = future.result(max(0.0, deadline - time.monotonic()))
            except (KafkaException, TimeoutError) as error:
                if not _is_unknown(error):
                    trouble = error
                    self.trouble = f"{name}: {str(error) or 'no response in time'}"
        if trouble is not None and not answers:
            raise trouble
        return answers


def _has_size(limits: RetentionLimits | None) -> bool:
    return limits is not None and limits.retention_bytes is not None


def _is_unknown(error: Exception) -> bool:
    """Return whether the error says that the topic does not exist."""
    return isinstance(error, KafkaException) and kafka_error(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART

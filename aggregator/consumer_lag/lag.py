"""Consumer lag: how far a consumer group is behind in each partition, by what the brokers say of its offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from aggregator.consumer_lag.record_times import RecordPlace, WaitingRecord, WaitingRecords
from aggregator.consumer_lag.topic_limits import TopicLimits
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets
from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import kafka_error
from lagloss.broker.partition_bounds import Key, PartitionBounds
from lagloss_server.groups.consumer_groups import ConsumerGroups, GroupDescription
from lagloss_server.groups.retention import RetentionLimits

ANSWER_TIMEOUT_S: Final = 2.0
"""For the answers to one kind of question, all together."""


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


def offsets_and_delay(lag: int, end: int, waiting: WaitingRecord | None, asked_ms: int) -> tuple[int, int | None]:
    """Return (offsets, behind_ms) of a partition: `lag` offsets up to `end`, and `waiting` is the record that a reader
    found first. If nothing but markers of transactions is left, nothing waits."""
    if waiting is None:
        return lag, None
    if waiting.is_end:
        return (0, 0) if waiting.offset >= end else (lag, None)
    return lag, None if waiting.event_time_ms is None else asked_ms - waiting.event_time_ms


@dataclass(frozen=True, slots=True)
class Input:
    """A partition that a group reads: what it has committed of it (None: nothing), and what the log holds, what deletes
    from it and how large it is (None: not known)."""

    group: NodeGroup
    key: Key
    committed: int | None
    log: Log | None
    limits: RetentionLimits | None = None
    size_bytes: int | None = None

    @property
    def lag(self) -> int | None:
        return None if self.log is None else offset_lag(self.committed, self.log)

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
        return PartitionLag(
            self.group, *self.key, *offsets_and_delay(self.lag, self.log.end, record, asked_ms), at=offsets
        )


class ConsumerLags:
    """Reader of consumer lags from the brokers. One that does not answer costs seconds: use it in its own thread."""

    def __init__(self, cluster: Cluster) -> None:
        config = KafkaConnection.of(cluster).client({"client.id": "lagloss-consumer-lag", "log_level": 0})
        self._admin = AdminClient(config)
        self._groups = ConsumerGroups(cluster, "lagloss-consumer-lag")
        self._bounds = PartitionBounds(config)
        self._records = WaitingRecords(config)
        self._limits = TopicLimits(self._admin, cluster, "lagloss-consumer-lag")
        self._described: dict[str, GroupDescription] = {}
        self.trouble: str | None = None
        """Why something was left out of the last reading."""

    def read(self, groups: Collection[NodeGroup]) -> tuple[int, list[PartitionLag]]:
        """Return the time of the request (epoch ms), and the lag of every partition of the topics in which these groups
        have committed offsets, and of those that their members are assigned. Groups and topics that do not exist have
        none. Where nothing is committed the lag is the most that it can be: `GroupProgress` knows whether it is.

        Raises:
            KafkaException, TimeoutError: the brokers did not answer.
        """
        self.trouble = None
        self._described = self._descriptions(groups)  # before commits: a member's last one comes before its end
        committed = self._committed({group.group for group in groups})
        assigned = {key for description in self._described.values() for key in description.keys}
        keys = self._partitions({topic for topic, _ in assigned.union(*committed.values())})
        limits = self._limits.limits(keys)
        sized = [key for topic, some in keys.items() if _has_size(limits.get(topic)) for key in some]
        sizes = self._limits.sizes(sized)
        # In this order: ends that were asked for later are never before offsets that were committed earlier.
        logs = self._logs([key for partitions in keys.values() for key in partitions])
        asked_ms = int(time.time() * 1_000)
        inputs = [
            Input(group, key, committed[group.group].get(key), logs.get(key), limits.get(topic), sizes.get(key))
            for group in groups
            if group.group in committed
            for topic, input_keys in self._wanted(group, committed[group.group])
            for key in keys.get(topic, ())
            if input_keys is None or key in input_keys
        ]
        most_first = sorted(inputs, key=lambda item: (item.committed is not None, item.lag or 0), reverse=True)
        waiting = self._records.read({item.place: None for item in most_first if item.place is not None})
        return asked_ms, [item.judged(waiting, asked_ms) for item in inputs]

    def describe(self, groups: Collection[NodeGroup]) -> dict[NodeGroup, GroupDescription]:
        """Return the description of each group whose coordinator gave one when lags were read last."""
        return {group: self._described[group.group] for group in groups if group.group in self._described}

    def close(self) -> None:
        self._limits.close()
        self._groups.close()
        self._bounds.close()
        self._records.close()

    def _descriptions(self, groups: Collection[NodeGroup]) -> dict[str, GroupDescription]:
        """Return the description of each group whose coordinator gives one; keep an error as the trouble."""
        try:
            return self._groups.described({group.group for group in groups})
        except KafkaException as error:
            self.trouble = str(error)
            return {}

    def _wanted(self, group: NodeGroup, committed: Collection[Key]) -> list[tuple[str, frozenset[Key] | None]]:
        """Return the topics that a group reads, each with the partitions that are looked at: all (None) if it has
        committed offsets of the topic, else those that its members are assigned."""
        description = self._described.get(group.group)
        assigned = frozenset[Key]() if description is None else description.keys
        has_commits = {topic for topic, _ in committed}
        topics = has_commits | {topic for topic, _ in assigned}
        return [(topic, None if topic in has_commits else assigned) for topic in sorted(topics)]

    def _committed(self, groups: Collection[str]) -> dict[str, dict[Key, int]]:
        """Return the committed offsets of each group, by partition; a group that does not exist has none. Groups whose
        coordinator does not answer are left out, unless none does."""
        try:
            return self._groups.committed(groups)
        except KafkaException as error:
            if len(groups) == 1:
                raise
            trouble = error
        offsets: dict[str, dict[Key, int]] = {}
        for group in sorted(groups):
            try:
                offsets |= self._groups.committed([group])
            except KafkaException as error:
                self.trouble = f"{group}: {error}"
        if not offsets:
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

"""How far consumer groups have come, seen from outside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lagloss.commits import Partition
from pipeline_under_test.kafka.topics import ADMIN_TIMEOUT_S, PARTITIONS
from pipeline_under_test.topology import CONSUMERS, group_of, tier_topic, tiers_group, topic_of


@dataclass(frozen=True, slots=True)
class Position:
    """How far a consumer group has come: each partition's end, and the offset up to which it has committed."""

    ends: Mapping[Partition, int]
    committed: Mapping[Partition, int]

    @property
    def backlog(self) -> int:
        """Records that are not committed: 0 once all is done and accounted for."""
        return sum(self.ends.values()) - sum(self.committed.values())


class GroupWatcher:
    """Looks at consumer groups from outside. Each method is one round of questions to the broker, asked all at once.

    They raise KafkaException if it does not answer in time.
    """

    def __init__(self, bootstrap: str, pipeline: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._pipeline = pipeline

    def positions(self, nodes: Iterable[str] = CONSUMERS) -> dict[str, Position]:
        """How far each of these nodes has come in its topic."""
        found = self._positions({group_of(self._pipeline, node): [topic_of(self._pipeline, node)] for node in nodes})
        return {node: found[group_of(self._pipeline, node)] for node in nodes}

    def left(self, tiers_s: Iterable[float]) -> int:
        """Records that are not done anywhere: in the nodes' topics, and in the global retrier's tiers."""
        topics = {group_of(self._pipeline, node): [topic_of(self._pipeline, node)] for node in CONSUMERS}
        tiers = [tier_topic(self._pipeline, seconds) for seconds in tiers_s]
        if tiers:
            topics[tiers_group(self._pipeline)] = tiers
        return sum(position.backlog for position in self._positions(topics).values())

    def _positions(self, topics: Mapping[str, Collection[str]]) -> dict[str, Position]:
        """By consumer group, how far it has come in its topics."""
        places = {
            group: [TopicPartition(topic, number) for topic in names for number in range(PARTITIONS)]
            for group, names in topics.items()
        }
        latest = {place: OffsetSpec.latest() for of_group in places.values() for place in of_group}
        ends_asked = self._asked("list_offsets", latest)
        committed_asked: dict[Any, Any] = {}
        for group, of_group in places.items():  # the client takes one group a call
            asked = [ConsumerGroupTopicPartitions(group, of_group)]
            committed_asked |= self._asked("list_consumer_group_offsets", asked)
        ends = {_key(place): answer.offset for place, answer in _answers(ends_asked).items()}
        committed = {
            _key(place): max(place.offset, 0)  # negative: none yet
            for answer in _answers(committed_asked).values()
            for place in answer.topic_partitions
        }
        return {
            group: Position(
                {_key(place): ends[_key(place)] for place in of_group},
                {_key(place): committed[_key(place)] for place in of_group},
            )
            for group, of_group in places.items()
        }

    def all_assigned(self, nodes: Collection[str]) -> bool:
        """Whether every one of these nodes has consumers that have all the partitions between them."""
        try:
            names = [group_of(self._pipeline, node) for node in nodes]
            groups = _answers(self._asked("describe_consumer_groups", names))
        except KafkaException:  # a group that nobody has joined yet may be unknown
            return False
        return all(
            sum(len(member.assignment.topic_partitions) for member in group.members if member.assignment) == PARTITIONS
            for group in groups.values()
        )

    def _asked(self, what: str, about: object) -> dict[Any, Any]:
        """A question on its way. Untyped: the stubs of these calls leave out that each answer is a future."""
        futures: dict[Any, Any] = getattr(self._admin, what)(about, request_timeout=ADMIN_TIMEOUT_S)
        return futures


def _answers(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    return {about: future.result() for about, future in futures.items()}


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

"""How far consumer groups have come, seen from outside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lagloss.broker.connection import KafkaConnection
from lagloss.kafka.commits import Partition
from lagloss_server.groups.consumer_groups import ConsumerGroups
from pipeline_under_test.stream.kafka.topics import ADMIN_TIMEOUT_S, PARTITIONS
from pipeline_under_test.stream.topology import CONSUMERS, group_of, tier_topic, tiers_group, topic_of


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
    """Looks at consumer groups from outside. Its methods raise KafkaException if the broker does not answer in time."""

    def __init__(self, bootstrap: str, pipeline: str, nodes: Collection[str] = CONSUMERS) -> None:
        self._admin = AdminClient(KafkaConnection.of(bootstrap).client())
        self._groups = ConsumerGroups(bootstrap)
        self._pipeline = pipeline
        self._nodes = nodes

    def close(self) -> None:
        self._groups.close()

    def positions(self, nodes: Collection[str] = ()) -> dict[str, Position]:
        """Return how far these nodes have come, each in its topic; by default all."""
        nodes = nodes or self._nodes
        positions_ = self._positions(
            {group_of(self._pipeline, node): [topic_of(self._pipeline, node)] for node in nodes}
        )
        return {node: positions_[group_of(self._pipeline, node)] for node in nodes}

    def left(self, tiers_s: Iterable[float]) -> int:
        """Count records that are not done: in the nodes' topics, and in the global retrier's tiers."""
        topics = {group_of(self._pipeline, node): [topic_of(self._pipeline, node)] for node in self._nodes}
        tiers = [tier_topic(self._pipeline, seconds) for seconds in tiers_s]
        if tiers:
            topics[tiers_group(self._pipeline)] = tiers
        return sum(position.backlog for position in self._positions(topics).values())

    def _positions(self, topics: Mapping[str, Collection[str]]) -> dict[str, Position]:
        """Return the positions of each consumer group in its topics."""
        places = {
            group: [(topic, number) for topic in names for number in range(PARTITIONS)]
            for group, names in topics.items()
        }
        ends = self._ends([place for of_group in places.values() for place in of_group])
        committed = self._groups.committed(places)
        return {
            group: Position(
                {place: ends[place] for place in of_group},
                {place: committed.get(group, {}).get(place, 0) for place in of_group},
            )
            for group, of_group in places.items()
        }

    def _ends(self, places: Iterable[Partition]) -> dict[Partition, int]:
        """Return where these partitions end."""
        latest: dict[TopicPartition, OffsetSpec] = {TopicPartition(*place): OffsetSpec.latest() for place in places}
        # untyped: the stubs leave out that each answer is a future
        futures: dict[TopicPartition, Any] = dict(
            self._admin.list_offsets(
                latest, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ADMIN_TIMEOUT_S
            )
        )
        return {(place.topic, place.partition): answer.result().offset for place, answer in futures.items()}

    def all_assigned(self, nodes: Collection[str]) -> bool:
        """Return whether every one of these nodes has consumers that have all the partitions between them."""
        try:
            assigned = self._groups.assigned([group_of(self._pipeline, node) for node in nodes])
        except KafkaException:
            return False
        return all(number == PARTITIONS for number in assigned.values())

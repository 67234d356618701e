"""Consumer groups as the brokers know them, asked from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypedDict, cast

from lagloss.broker.connection import Cluster
from lagloss.broker.partition_bounds import Key
from lagloss_server.groups.kafka_admin import KafkaAdmin, NewerGroup

_CONSUMERS: Final = frozenset({"consumer", "streams", ""})
"""Protocol types of groups that commit offsets; empty: offsets were committed without a member, as by Flink."""
DEAD: Final = "Dead"
"""The state of a group that does not exist."""


class _AssignedTopic(TypedDict):
    topic: str
    partitions: list[int]


class _Member(TypedDict):
    member_assignment: object


class _ClassicGroup(TypedDict):
    """A group of the classic protocol as its coordinator describes it, of the fields that are read here."""

    group_state: str
    members: list[_Member]


class ListedGroup(NamedTuple):
    """A group as the brokers list it; `state` is empty where they are too old to say it."""

    kind: Literal["consumer", "share"]
    state: str


class ShareLag(NamedTuple):
    """The first offset of a partition that a share group has not finished, and how many records it has not (None:
    unknown)."""

    start: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator describes it. `state`: Stable, Empty, Dead, PreparingRebalance or CompletingRebalance,
    or, of the newer protocol (KIP-848), Assigning or Reconciling. `partitions`: assigned to its members together;
    `keys`: which, as far as it can be read."""

    state: str
    members: int = 0
    partitions: int = 0
    protocol: Literal["classic", "consumer", "share"] = "classic"
    keys: frozenset[Key] = field(default=frozenset(), compare=False)


class ConsumerGroups(KafkaAdmin):
    """Asks about consumer groups."""

    ABOUT = "groups"

    def __init__(self, cluster: Cluster, client_id: str = "lagloss-groups") -> None:
        super().__init__(cluster, client_id)

    def listed(self) -> dict[str, ListedGroup]:
        """Return the consumer groups and share groups of the cluster, without those of other protocols, such as the
        workers of Kafka Connect."""
        answers: list[dict[str, str]] = self._ask("list_groups")
        groups = {}
        for answer in answers:
            protocol, state = answer["protocol_type"], answer.get("group_state") or ""
            if protocol == "share":
                groups[answer["group_id"]] = ListedGroup("share", state)
            elif protocol in _CONSUMERS:
                groups[answer["group_id"]] = ListedGroup("consumer", state)
        return groups

    def shared(self, groups: Collection[str]) -> dict[str, dict[Key, ShareLag]]:
        """Return what each share group has not finished, by partition; those whose coordinator refuses to say, or is
        too old to know, are left out."""
        answers = self._ask("list_share_offsets", sorted(groups)) if groups else {}
        return {
            group: {
                (topic["topic_name"], partition["partition_index"]): ShareLag(
                    partition["start_offset"], partition["lag"] if partition["lag"] >= 0 else None
                )
                for topic in answer["topics"]
                for partition in topic["partitions"]
                if not partition["error_code"] and partition["start_offset"] >= 0
            }
            for group, answer in answers.items()
            if not answer["error_code"]
        }

    def described_shares(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """Return the description of each share group."""
        answers = self._ask("describe_share_groups", sorted(groups)) if groups else {}
        return {group: _newer(answer, "share") for group, answer in answers.items() if not answer["error_code"]}

    def committed(self, groups: Collection[str]) -> dict[str, dict[Key, int]]:
        """Return the committed offsets of each group by partition; none for a group that does not exist."""
        answers = self._ask("list_group_offsets", sorted(groups)) if groups else {}
        return {
            group: {
                (partition.topic, partition.partition): committed.offset
                for partition, committed in offsets.items()
                if committed.offset >= 0
            }
            for group, offsets in answers.items()
        }

    def described(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """Return the description of each group, of the classic protocol or of the newer one; one whose coordinator
        refuses to say is left out."""
        answers = self._ask("describe_groups", sorted(groups)) if groups else {}
        descriptions = {group: _classic(answer) for group, answer in answers.items() if answer["group_state"]}
        dead = sorted(group for group, description in descriptions.items() if description.state == DEAD)
        newer = self._ask("describe_consumer_groups", dead) if dead else {}
        return descriptions | {group: _newer(answer) for group, answer in newer.items() if not answer["error_code"]}

    def assigned(self, groups: Collection[str]) -> dict[str, int]:
        """Return how many partitions the members of each group have between them; 0 for a group without members."""
        descriptions = self.described(groups)
        return {group: descriptions[group].partitions if group in descriptions else 0 for group in groups}


def _classic(group: _ClassicGroup) -> GroupDescription:
    topics = [topic for member in group["members"] for topic in _assigned(member["member_assignment"])]
    assigned = [(topic["topic"], partition) for topic in topics for partition in topic["partitions"]]
    members = len(group["members"])
    return GroupDescription(group["group_state"], members, len(assigned), "classic", frozenset(assigned))


def _newer(group: NewerGroup, protocol: Literal["consumer", "share"] = "consumer") -> GroupDescription:
    topics = [topic for member in group["members"] for topic in member["assignment"]["topic_partitions"]]
    assigned = [(topic["topic_name"], partition) for topic in topics for partition in topic["partitions"]]
    members = len(group["members"])
    return GroupDescription(group["group_state"], members, len(assigned), protocol, frozenset(assigned))


def _assigned(assignment: object) -> Collection[_AssignedTopic]:
    # the assignment is for the client to read; one of another kind, such as that of Kafka Connect, stays bytes
    if not isinstance(assignment, Mapping) or "assigned_partitions" not in assignment:
        return ()
    return cast("Collection[_AssignedTopic]", assignment["assigned_partitions"])

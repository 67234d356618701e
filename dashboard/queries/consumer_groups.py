"""The consumer groups of a pipeline as they stand now: state, velocity, and what retention deletes from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from lagloss_server.groups.consumer_groups import DEAD
from lagloss_server.groups.progress import GroupAtRisk, GroupNow, PartitionNow
from lagloss_server.groups.progress_store import read_deleted, read_groups, read_partitions
from lagloss_server.groups.velocity import NOT_COMMITTED, STATUSES, Status, Velocity, worst
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import rfc3339
from lagloss_server.store.store import Store

N = TypeVar("N", int, float)


class VelocityDocument(TypedDict):
    """Offsets per second; null: unknown."""

    commits_per_s: float | None
    appends_per_s: float | None


class LogBounds(TypedDict):
    """The offsets that a partition's log holds: from `start` to before `end`."""

    start: int | None
    end: int | None


class GroupPartitionDocument(VelocityDocument):
    """A partition as it was read last: see `PartitionNow`."""

    topic: str
    partition: int
    read_at: str | None
    status: Status | None
    lag: int | None
    behind_ms: int | None
    committed: int | None
    log: LogBounds
    catches_up_s: float | None
    kept_by: str | None
    deletes_from: str | None
    loss_from: str | None
    at_risk: int


class ConsumerGroupDocument(VelocityDocument):
    """A node's consumer group now: see `ConsumerGroup`."""

    node: str
    group: str
    state: str | None
    since: str | None
    members: int | None
    assigned: int | None
    protocol: str | None
    status: Status | None
    lag: int | None
    catches_up_s: float | None
    deletes_from: str | None
    loss_from: str | None
    at_risk: int
    deleted_unread: int
    partitions: list[GroupPartitionDocument]


class ConsumerGroupsDocument(TypedDict):
    """The consumer groups of a pipeline, in the order of its definition."""

    pipeline: str
    groups: list[ConsumerGroupDocument]


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A node's group. `described`: as its coordinator described it; None before it did. `partitions`: the newest
    readings, two minutes old at most, the worst first. `deleted`: offsets deleted unread in the span."""

    node: str
    group: str
    described: GroupNow | None
    partitions: tuple[PartitionNow, ...]
    deleted: int

    @property
    def status(self) -> Status | None:
        """The status of its worst partition; a group that does not exist has committed nothing."""
        is_dead = self.described is not None and self.described.state == DEAD
        return (
            NOT_COMMITTED
            if is_dead and not self.partitions
            else worst(partition.status for partition in self.partitions)
        )

    @property
    def lag(self) -> int | None:
        """Offsets over all partitions that are committed; None if one is not known, or there is none."""
        return _sum(partition.lag for partition in self._committed)

    @property
    def _committed(self) -> list[PartitionNow]:
        """Those but for which nothing is committed, so that it is not known what waits."""
        return [
            partition for partition in self.partitions if partition.lag is not None or partition.status != NOT_COMMITTED
        ]

    @property
    def velocity(self) -> Velocity:
        """Offsets per second over all partitions; None if one is not known, or there is none."""
        moving = [partition.velocity for partition in self.partitions]
        return Velocity(
            _sum(partition.commits_per_s for partition in moving), _sum(partition.appends_per_s for partition in moving)
        )

    @property
    def catches_up_s(self) -> float | None:
        """Seconds until nothing waits in any partition; None if one falls behind, or is not known."""
        durations = [partition.catches_up_s for partition in self._committed]
        known_durations = [duration for duration in durations if duration is not None]
        return max(known_durations) if known_durations and len(known_durations) == len(durations) else None

    @property
    def deletes_ms(self) -> int | None:
        """When the first message that waits in any partition is deleted at the earliest (epoch ms)."""
        return min(
            (partition.deletes_ms for partition in self.partitions if partition.deletes_ms is not None), default=None
        )

    def at_risk(self, now_s: float) -> GroupAtRisk | None:
        """Return what is lost ahead, at the present velocity, or was within the last minutes; None for nothing."""
        partitions = [partition for partition in self.partitions if partition.loss_ms is not None or partition.deleted]
        return GroupAtRisk.of(partitions, now_s) if partitions else None

    def document(self, now_s: float) -> ConsumerGroupDocument:
        described, risk = self.described, self.at_risk(now_s)
        has_loss = risk is not None and risk.partitions > 0
        return {
            "node": self.node,
            "group": self.group,
            "state": None if described is None else described.state,
            "since": None if described is None else _moment(described.since_ms),
            "members": None if described is None else described.members,
            "assigned": None if described is None else described.assigned,
            "protocol": None if described is None else described.protocol,
            "status": self.status,
            "lag": self.lag,
            **_velocity(self.velocity),
            "catches_up_s": self.catches_up_s,
            "deletes_from": _moment(self.deletes_ms),
            "loss_from": rfc3339(int(risk.loss_s)) if risk is not None and has_loss else None,
            "at_risk": risk.messages if risk is not None else 0,
            "deleted_unread": self.deleted,
            "partitions": [_partition(partition) for partition in self.partitions],
        }


def read_consumer_groups(store: Store, stored: StoredPipeline, span: TimeRange, now_s: float) -> list[ConsumerGroup]:
    """Read the groups that the nodes of a pipeline name now, in the order of the definition."""
    named = [(node.name, node.input) for node in stored.definition.spec.nodes if node.has_group]
    if not named:
        return []
    with store.engine.connect() as connection:
        partitions = read_partitions(connection, stored.name, now_s)
        described = {(group.node, group.group): group for group in read_groups(connection, stored.name)}
        deleted = read_deleted(connection, stored.name, span.from_s, span.to_s)
    return [
        ConsumerGroup(
            node,
            group or "",
            described.get((node, group or "")),
            tuple(sorted((partition for partition in partitions if partition.of[:2] == (node, group)), key=_goodness)),
            deleted.get((node, group or ""), 0),
        )
        for node, group in named
    ]


def _goodness(partition: PartitionNow) -> tuple[int, int, int, str, int]:
    """Return how well a partition stands: by what it loses, then by its status, then by its lag."""
    loss_ms = 2**62 if partition.loss_ms is None else partition.loss_ms
    status = 1 if partition.status is None else -STATUSES.index(partition.status)
    return loss_ms, status, -(partition.lag or 0), partition.of.topic, partition.of.partition


def _partition(partition: PartitionNow) -> GroupPartitionDocument:
    return {
        "topic": partition.of.topic,
        "partition": partition.of.partition,
        "read_at": _moment(partition.asked_ms),
        "status": partition.status,
        "lag": partition.lag,
        "behind_ms": partition.behind_ms,
        "committed": partition.committed,
        "log": {"start": partition.log_start, "end": partition.log_end},
        **_velocity(partition.velocity),
        "catches_up_s": partition.catches_up_s,
        "kept_by": partition.kept_by,
        "deletes_from": _moment(partition.deletes_ms),
        "loss_from": _moment(partition.loss_ms),
        "at_risk": partition.at_risk or 0,
    }


def _velocity(moving: Velocity) -> VelocityDocument:
    return {"commits_per_s": moving.commits_per_s, "appends_per_s": moving.appends_per_s}


def _moment(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else rfc3339(epoch_ms // 1_000)


def _sum(values: Iterable[N | None]) -> N | None:
    """Return the sum; None if one is not known, or there is none."""
    all_values = list(values)
    known_values = [value for value in all_values if value is not None]
    return sum(known_values) if all_values and len(known_values) == len(all_values) else None

"""Progress of consumer groups as it is known now: partitions as they were read last, and groups as described last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lagloss_server.base import format as fmt
from lagloss_server.groups.velocity import (
    BEYOND_THE_END,
    NOT_COMMITTED,
    UNKNOWN_VELOCITY,
    Status,
    Velocity,
    catches_up_s,
)

NOW_S: Final = 120
"""Older readings are not current."""


class GroupPartition(NamedTuple):
    """A partition that a node's consumer group reads."""

    node: str
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """The newest reading of a partition, and what was judged of it.

    `lag`: offsets to the log's end; `committed`, and the log's [start, end); `kept_by`: the limit of retention that
    deletes first what waits, `none` if there is no limit; `deletes_ms`: when it deletes the next record at the
    earliest; `loss_ms`: when, at this velocity, it deletes the first one unread, of `at_risk` that wait from there on.
    `deleted`: offsets deleted unread in the minutes of the reading. Moments in epoch ms. None: not known, or none.
    """

    of: GroupPartition
    asked_ms: int
    lag: int | None
    behind_ms: int | None = None
    committed: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    velocity: Velocity = UNKNOWN_VELOCITY
    status: Status | None = None
    kept_by: str | None = None
    deletes_ms: int | None = None
    loss_ms: int | None = None
    at_risk: int | None = None
    deleted: int = 0

    @property
    def is_uncounted(self) -> bool:
        """Whether the group's commits do not say what waits."""
        return self.lag is None and self.status in (NOT_COMMITTED, BEYOND_THE_END)

    @property
    def knows_retention(self) -> bool:
        """Whether nothing waits, or a limit is known, or that there is none."""
        return self.lag == 0 or self.kept_by is not None

    @property
    def catches_up_s(self) -> float | None:
        """Seconds until nothing waits, at this velocity; None if the lag does not shrink, or is not known to."""
        return None if self.lag is None else catches_up_s(self.lag, self.velocity)


@dataclass(frozen=True, slots=True)
class GroupNow:
    """A group as its coordinator described it last; `since_ms`: since when it has been in its state (epoch ms)."""

    node: str
    group: str
    asked_ms: int
    state: str
    since_ms: int
    members: int
    assigned: int
    protocol: str


def newest(readings: Iterable[PartitionNow]) -> list[PartitionNow]:
    """Return the newest reading of each partition, with all that was deleted in these; `readings`: oldest first."""
    partitions: dict[GroupPartition, PartitionNow] = {}
    deleted: dict[GroupPartition, int] = defaultdict(int)
    for reading in readings:
        deleted[reading.of] += reading.deleted
        partitions[reading.of] = reading
    return [
        replace(reading, deleted=deleted[partition])
        for partition, reading in sorted(partitions.items(), key=lambda item: item[0])
    ]


@dataclass(frozen=True, slots=True)
class GroupAtRisk:
    """A node's group that loses messages: `messages` of `partitions` from `loss_s` (epoch s) on, `deleted` already."""

    node: str
    group: str
    loss_s: float
    messages: int
    partitions: int
    deleted: int

    @classmethod
    def of(cls, partitions: Sequence[PartitionNow], now_s: float) -> GroupAtRisk:
        """Return what these partitions of one group, at least one, come to."""
        ahead = {partition.of: partition.loss_ms / 1_000 for partition in partitions if partition.loss_ms is not None}
        messages = sum(partition.at_risk or 0 for partition in partitions if partition.of in ahead)
        deleted = sum(partition.deleted for partition in partitions)
        group = partitions[0].of
        return cls(group.node, group.group, min(ahead.values(), default=now_s), messages, len(ahead), deleted)

    def words(self, now_s: float, clock: Callable[[float], str]) -> str:
        """Describe it: `12,000 messages of enrich in 3 partitions are deleted unread starting at 14:20 UTC, in 43 min,
        unless the group catches up`. `clock` formats a time (epoch s)."""
        parts = []
        if self.partitions:
            in_s = self.loss_s - now_s
            when = f"starting at {clock(self.loss_s)}, in {fmt.duration_s(in_s)}" if in_s > 0 else "starting now"
            where = f"of {self.group} in {fmt.counted(self.partitions, 'partition')}"
            verb = "is" if self.messages == 1 else "are"
            what = f"{fmt.counted(self.messages, 'message')} {where} {verb} deleted unread"
            parts.append(f"{what} {when}, unless the group catches up")
        if self.deleted:
            whose = "" if parts else f" of {self.group}"
            was = "was" if self.deleted == 1 else "were"
            parts.append(f"{fmt.counted(self.deleted, 'message')}{whose} {was} deleted unread in the last two minutes")
        return "; ".join(parts)

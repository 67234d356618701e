"""Progress of consumer groups: each partition's lag beside its earlier ones, judged for velocity and retention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import Engine, func, select

from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss.wire.format import WINDOW_S
from lagloss_server.queries.consumer_groups import GroupDescription
from lagloss_server.rules.group_velocity import SPAN_MS, OffsetReading, status, velocity
from lagloss_server.rules.retention_distance import deleted_unread, fronts, loss_ahead
from lagloss_server.store.schema.core import ConsumerLagRow


class PartitionKey(NamedTuple):
    """A partition that a node's group reads, as the table has it."""

    pipeline: str
    node: str
    group: str
    topic: str
    partition: int

    @classmethod
    def of(cls, lag: PartitionLag) -> PartitionKey:
        return cls(lag.group.pipeline, lag.group.node, lag.group.group, lag.topic, lag.partition)


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """Readings of one partition, oldest first; `deleted`: offsets deleted unread in the minute of the newest."""

    readings: tuple[OffsetReading, ...] = ()
    deleted: int = 0

    def with_reading(self, now: OffsetReading) -> PartitionHistory:
        """Return the history with a newer reading, and without what no velocity goes by any more. A repetition changes
        nothing; where the clock was set back, it begins anew."""
        newest = self.newest
        unread = deleted_unread(newest, now)
        if newest is None or now.at_ms < newest.at_ms:
            return PartitionHistory((now,), unread)
        if now.at_ms == newest.at_ms:
            return self
        kept = tuple(reading for reading in self.readings if reading.at_ms >= now.at_ms - SPAN_MS)
        return PartitionHistory((*kept, now), unread + (self.deleted if _minute(newest) == _minute(now) else 0))

    @property
    def newest(self) -> OffsetReading | None:
        return self.readings[-1] if self.readings else None


class GroupProgress:
    """Histories of all partitions that groups read. Used by one thread.

    Args:
        earlier: returns the histories of a pipeline that are stored; called once for each, to go on after a start.
    """

    def __init__(self, earlier: Callable[[str], Mapping[PartitionKey, PartitionHistory]]) -> None:
        self._earlier = earlier
        self._histories: dict[PartitionKey, PartitionHistory] = {}
        self._read: set[str] = set()

    def judge(
        self, asked_ms: int, lags: Sequence[PartitionLag], described: Mapping[NodeGroup, GroupDescription]
    ) -> list[PartitionLag]:
        """Return the lags with what follows from them and earlier ones. They are no part of the histories before
        `take`: what could not be stored is judged anew."""
        self._continue({lag.group.pipeline for lag in lags})
        return [
            lag
            if (now := reading_of(lag, asked_ms)) is None
            else replace(lag, progress=self._judged(lag, now, described.get(lag.group)))
            for lag in lags
        ]

    def take(self, asked_ms: int, lags: Iterable[PartitionLag]) -> None:
        """Add these lags to the histories."""
        for lag in lags:
            now = reading_of(lag, asked_ms)
            if now is not None:
                key = PartitionKey.of(lag)
                self._histories[key] = self._histories.get(key, PartitionHistory()).with_reading(now)

    def forget(self, known: Iterable[str]) -> None:
        """Forget all other pipelines."""
        self._read &= set(known)
        self._histories = {key: history for key, history in self._histories.items() if key.pipeline in self._read}

    def _judged(self, lag: PartitionLag, now: OffsetReading, description: GroupDescription | None) -> PartitionProgress:
        before = self._histories.get(PartitionKey.of(lag), PartitionHistory())
        history = before.with_reading(now)
        members = None if description is None else description.members
        found = PartitionProgress(
            velocity=velocity(history.readings),
            status=status(history.readings, members),
            deleted=history.deleted,
            deleted_since=deleted_unread(before.newest, now),
        )
        return found if lag.at is None else _with_retention(found, lag.at, now)

    def _continue(self, pipelines: set[str]) -> None:
        """Go on with the stored histories of pipelines that are new here."""
        for pipeline in sorted(pipelines - self._read):
            self._histories |= self._earlier(pipeline)
            self._read.add(pipeline)


def reading_of(lag: PartitionLag, asked_ms: int) -> OffsetReading | None:
    """Return the offsets of a lag as a reading; None where they are not known, or make no sense together."""
    if lag.at is None or lag.offsets is None:
        return None
    return OffsetReading(asked_ms, lag.at.committed, lag.at.start, lag.at.end, is_done=lag.offsets == 0)


def _with_retention(found: PartitionProgress, at: PartitionOffsets, now: OffsetReading) -> PartitionProgress:
    """Add when the topic's limits delete what waits."""
    if at.limits is None:
        return found
    if at.limits.retention_ms is at.limits.retention_bytes is None:
        return replace(found, kept_by="none")
    if now.lag == 0:
        return found
    held, moving = at.end - at.start, found.velocity
    each_bytes = None if at.size_bytes is None else at.size_bytes / held
    age_ms = None if at.stamped_ms is None else now.at_ms - at.stamped_ms
    ahead = fronts(at.limits, now.lag, age_ms, each_bytes, moving.appends_per_s)
    if not ahead:
        return found
    first = min(ahead, key=lambda front: front.arrives_s)
    found = replace(found, kept_by=first.limit, deletes_ms=now.at_ms + round(1_000 * first.arrives_s))
    loss = None if moving.commits_per_s is None else loss_ahead(ahead, now.lag, moving.commits_per_s)
    if loss is None:
        return found
    return replace(found, loss_ms=now.at_ms + round(1_000 * loss.in_s), at_risk=loss.messages)


def read_histories(engine: Engine, pipeline: str) -> dict[PartitionKey, PartitionHistory]:
    """Return the histories of a pipeline's partitions by the rows of its newest minute and the five before."""
    row = ConsumerLagRow
    of = (row.pipeline, row.node, row.consumer_group, row.topic, row.topic_partition)
    newest = select(func.max(row.window_start)).where(row.pipeline == pipeline).scalar_subquery()
    asked = (
        select(*of, row.asked_at, row.committed, row.log_start, row.log_end, row.offsets, row.deleted)
        .where(row.pipeline == pipeline, row.window_start >= newest - SPAN_MS // 1_000)
        .where(row.log_start.is_not(None), row.offsets.is_not(None))
        .order_by(row.window_start)
    )
    found: dict[PartitionKey, PartitionHistory] = {}
    with engine.connect() as connection:
        for *names, asked_at, committed, start, end, offsets, deleted in connection.execute(asked):
            key = PartitionKey(*names)
            reading = OffsetReading(asked_at, committed, start, end, is_done=offsets == 0)
            readings = (*found.get(key, PartitionHistory()).readings, reading)
            found[key] = PartitionHistory(readings, deleted or 0)
    return found


def _minute(reading: OffsetReading) -> int:
    return reading.at_ms // 1_000 // WINDOW_S

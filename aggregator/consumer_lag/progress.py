"""Progress of consumer groups: each partition's lag beside its earlier ones, judged for velocity and retention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Engine, func, select

from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss.wire.format import MAX_TIME_MS, WINDOW_S
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.retention import age_ms, deleted_unread, fronts, loss_ahead
from lagloss_server.groups.velocity import BEYOND_THE_END, SPAN_MS, OffsetReading, status, velocity
from lagloss_server.store.schema.core import ConsumerLagRow

GONE_MS: Final = 20_000
"""A group without members for less is not judged as one that has stopped: its only process restarts, say."""


class PartitionKey(NamedTuple):
    """A partition that a node's group reads, as the table has it. `cluster`: of a group that no definition names, which
    the table has not got."""

    pipeline: str
    node: str
    group: str
    topic: str
    partition: int
    cluster: str = ""

    @classmethod
    def of(cls, lag: PartitionLag) -> PartitionKey:
        group = lag.group
        cluster = "" if group.pipeline else group.cluster
        return cls(group.pipeline, group.node, group.group, lag.topic, lag.partition, cluster)


class PartitionHistory(Struct, frozen=True):
    """Readings of one partition, oldest first; `deleted`: offsets deleted unread in the minute of the newest. `beyond`:
    the offset that the group has committed, where the log did not hold it. When the log has passed it, the records
    before it were never read, so that it is no commit until another one comes."""

    readings: tuple[OffsetReading, ...] = ()
    deleted: int = 0
    beyond: int | None = None

    def with_reading(self, now: OffsetReading) -> PartitionHistory:
        """Return the history with a newer reading, and without what no velocity goes by any more. A repetition changes
        nothing; where the clock was set back, it begins anew."""
        newest = self.newest
        unread = deleted_unread(newest, now)
        if newest is None or now.at_ms < newest.at_ms:
            return PartitionHistory((now,), unread, self.beyond)
        if now.at_ms == newest.at_ms:
            return self
        recent = tuple(reading for reading in self.readings if reading.at_ms >= now.at_ms - SPAN_MS)
        earlier = self.deleted if _minute(newest) == _minute(now) else 0
        return PartitionHistory((*recent, now), unread + earlier, self.beyond)

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
        self._empty_since: dict[NodeGroup, int | None] = {}
        """When groups were first described without members (epoch ms); None for those that have some."""

    def judge(
        self, asked_ms: int, lags: Sequence[PartitionLag], described: Mapping[NodeGroup, GroupDescription]
    ) -> list[PartitionLag]:
        """Return the lags with what follows from them and earlier ones. They are no part of the histories before
        `take`: what could not be stored is judged anew."""
        self._continue({lag.group.pipeline for lag in lags})
        lags = self._without_unknown(lags)
        members = self._members(asked_ms, lags, described)
        return [
            lag
            if (now := reading_of(lag, asked_ms)) is None
            else replace(lag, progress=self._judged(lag, now, members.get(lag.group)))
            for lag in lags
        ]

    def take(self, asked_ms: int, lags: Iterable[PartitionLag]) -> None:
        """Add these lags to the histories."""
        for lag in lags:
            now = reading_of(lag, asked_ms)
            if now is not None:
                beyond = lag.at.committed if lag.at is not None and _is_beyond(lag) else None
                self._histories[PartitionKey.of(lag)] = replace(self._history(lag).with_reading(now), beyond=beyond)

    def forget_others(self, groups: Iterable[NodeGroup]) -> None:
        """Forget all groups but these."""
        remaining = {(*group[:3], "" if group.pipeline else group.cluster) for group in groups}
        self._read &= {pipeline for pipeline, *_ in remaining}
        self._histories = {
            key: history for key, history in self._histories.items() if (*key[:3], key.cluster) in remaining
        }
        self._empty_since = {
            group: since_ms
            for group, since_ms in self._empty_since.items()
            if (*group[:3], "" if group.pipeline else group.cluster) in remaining
        }

    def _history(self, lag: PartitionLag) -> PartitionHistory:
        return self._histories.get(PartitionKey.of(lag), PartitionHistory())

    def _without_unknown(self, lags: Sequence[PartitionLag]) -> list[PartitionLag]:
        """Leave out what waits where the group's commits do not say it: those beyond the end say nothing, and of a
        partition that was never committed all waits only if the group commits in others of the topic. Else it may be
        one that starts at the end, or that does not read this partition."""
        beyond = [_is_past_end(lag, self._history(lag).beyond) for lag in lags]
        committing = {
            (lag.group, lag.topic)
            for lag, is_beyond in zip(lags, beyond, strict=True)
            if lag.at is not None and lag.at.committed is not None and not is_beyond
        }

        def known(lag: PartitionLag, *, is_beyond: bool) -> PartitionLag:
            if is_beyond:
                return replace(_unknown(lag), progress=PartitionProgress(status=BEYOND_THE_END))
            is_committed = lag.at is None or lag.at.committed is not None or (lag.group, lag.topic) in committing
            return lag if is_committed or not lag.offsets else _unknown(lag)

        return [known(lag, is_beyond=is_beyond) for lag, is_beyond in zip(lags, beyond, strict=True)]

    def _members(
        self, asked_ms: int, lags: Iterable[PartitionLag], described: Mapping[NodeGroup, GroupDescription]
    ) -> dict[NodeGroup, int | None]:
        """Return the number of members of each group, None where it is not known. A group that has lost them all just
        now may be between two generations, and one whose commits move without them needs none, as Flink does."""
        for group, description in described.items():
            if description.members:
                self._empty_since[group] = None
            elif self._empty_since.get(group, 0) is None:
                self._empty_since[group] = asked_ms
            else:
                self._empty_since.setdefault(group, 0)
        alone = {lag.group for lag in lags if self._commits_alone(lag, self._empty_since.get(lag.group))}
        return {
            group: description.members or (0 if self._is_gone(group, asked_ms) and group not in alone else None)
            for group, description in described.items()
        }

    def _is_gone(self, group: NodeGroup, asked_ms: int) -> bool:
        since_ms = self._empty_since.get(group)
        return since_ms is not None and asked_ms - since_ms >= GONE_MS

    def _commits_alone(self, lag: PartitionLag, since_ms: int | None) -> bool:
        """Return whether commits have moved since a group has no members."""
        if since_ms is None or lag.at is None:
            return False
        earlier = {reading.committed for reading in self._history(lag).readings if reading.at_ms >= since_ms}
        return len((earlier | {lag.at.committed}) - {None}) > 1

    def _judged(self, lag: PartitionLag, now: OffsetReading, members: int | None) -> PartitionProgress:
        before = self._history(lag)
        history = before.with_reading(now)
        progress = PartitionProgress(
            velocity=velocity(history.readings),
            status=BEYOND_THE_END if _is_beyond(lag) else status(history.readings, members),
            deleted=history.deleted,
            deleted_since=deleted_unread(before.newest, now),
        )
        return progress if lag.at is None or not now.counts else _with_retention(progress, lag.at, now)

    def _continue(self, pipelines: set[str]) -> None:
        """Go on with the stored histories of pipelines that are new here."""
        for pipeline in sorted(pipelines - self._read - {""}):
            self._histories |= self._earlier(pipeline)
            self._read.add(pipeline)


def _unknown(lag: PartitionLag) -> PartitionLag:
    return replace(lag, offsets=None, behind_ms=None, basis=None, problem=None)


def reading_of(lag: PartitionLag, asked_ms: int) -> OffsetReading | None:
    """Return the offsets of a lag as a reading; None where they are not known."""
    if lag.at is None:
        return None
    return _reading(asked_ms, lag.at.committed, lag.at.start, lag.at.end, lag.offsets, is_beyond=_is_beyond(lag))


def _reading(
    at_ms: int, committed: int | None, start: int, end: int, offsets: int | None, *, is_beyond: bool
) -> OffsetReading:
    holds = None if is_beyond else committed
    return OffsetReading(at_ms, holds, start, end, is_done=offsets == 0, counts=offsets is not None)


def _is_beyond(lag: PartitionLag) -> bool:
    return lag.progress is not None and lag.progress.status == BEYOND_THE_END


def _is_past_end(lag: PartitionLag, beyond: int | None) -> bool:
    """Return whether the commit is one that the log did not hold when it was first seen. `beyond`: one that was so."""
    offset = lag.at
    return (
        offset is not None
        and offset.committed is not None
        and (offset.committed > offset.end or offset.committed == beyond)
    )


def _with_retention(progress: PartitionProgress, offsets: PartitionOffsets, now: OffsetReading) -> PartitionProgress:
    """Add when the topic's limits delete what waits."""
    if offsets.limits is None:
        return progress
    if offsets.limits.retention_ms is offsets.limits.retention_bytes is None:
        return replace(progress, kept_by="none")
    if now.lag == 0:
        return progress
    available, moving = offsets.end - offsets.start, progress.velocity
    each_bytes = None if offsets.size_bytes is None else offsets.size_bytes / available
    age = age_ms(offsets.stamped_ms, now.at_ms)
    ahead = fronts(offsets.limits, now.lag, age, each_bytes, moving.appends_per_s)
    if not ahead:
        return progress
    first = min(ahead, key=lambda front: front.arrives_s)
    progress = replace(progress, kept_by=first.limit, deletes_ms=_moment(now.at_ms, first.arrives_s))
    loss = None if moving.commits_per_s is None else loss_ahead(ahead, now.lag, moving.commits_per_s)
    if loss is None or (loss_ms := _moment(now.at_ms, loss.in_s)) is None:
        return progress
    return replace(progress, loss_ms=loss_ms, at_risk=loss.messages)


def _moment(now_ms: int, in_s: float) -> int | None:
    """Return the moment (epoch ms); None for one that no calendar has, as by a retention of 2^63 ms."""
    at_ms = now_ms + round(1_000 * in_s)
    return at_ms if at_ms <= MAX_TIME_MS else None


def read_histories(engine: Engine, pipeline: str) -> dict[PartitionKey, PartitionHistory]:
    """Return the histories of a pipeline's partitions by the rows of its newest minute and the five before."""
    row = ConsumerLagRow
    place = (row.pipeline, row.node, row.consumer_group, row.topic, row.topic_partition)
    newest = select(func.max(row.window_start)).where(row.pipeline == pipeline).scalar_subquery()
    query = (
        select(*place, row.asked_at, row.committed, row.log_start, row.log_end, row.offsets, row.status, row.deleted)
        .where(row.pipeline == pipeline, row.window_start >= newest - SPAN_MS // 1_000)
        .where(row.log_start.is_not(None), row.log_end.is_not(None))
        .order_by(row.window_start)
    )
    histories: dict[PartitionKey, PartitionHistory] = {}
    with engine.connect() as connection:
        for *names, asked_at, committed, start, end, offsets, stored, deleted in connection.execute(query):
            key = PartitionKey(*names)
            is_beyond = stored == BEYOND_THE_END or (committed is not None and committed > end)
            reading = _reading(asked_at, committed, start, end, offsets, is_beyond=is_beyond)
            readings = (*histories.get(key, PartitionHistory()).readings, reading)
            histories[key] = PartitionHistory(readings, deleted or 0, committed if is_beyond else None)
    return histories


def _minute(reading: OffsetReading) -> int:
    return reading.at_ms // 1_000 // WINDOW_S

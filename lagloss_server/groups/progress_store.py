"""Progress of consumer groups in PostgreSQL: partitions as they were read last, and groups as they were described."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from sqlalchemy import Connection, func, select

from lagloss.wire.format import WINDOW_S
from lagloss_server.groups.progress import NOW_S, GroupNow, GroupPartition, PartitionNow, newest
from lagloss_server.groups.velocity import STATUSES, Velocity
from lagloss_server.store.schema.core import ConsumerGroupRow, ConsumerLagRow


def read_partitions(connection: Connection, pipeline: str, now_s: float) -> list[PartitionNow]:
    """Return the newest readings of a pipeline's partitions, two minutes old at most; queues have none."""
    return newest(_read(connection, pipeline, int(now_s) - NOW_S, int(now_s) + WINDOW_S))


def read_partition_minutes(
    connection: Connection, pipeline: str, from_s: int, to_s: int
) -> dict[int, list[PartitionNow]]:
    """Return the readings by minute (epoch s) with from <= minute < to."""
    minutes = groupby(_read(connection, pipeline, from_s, to_s), key=lambda row: row.asked_ms // 1_000 // WINDOW_S)
    return {minute * WINDOW_S: list(readings) for minute, readings in minutes}


def read_groups(connection: Connection, pipeline: str) -> list[GroupNow]:
    """Return the groups of a pipeline's nodes as they were described last, however long ago."""
    row = ConsumerGroupRow
    statement = select(
        row.node, row.consumer_group, row.asked_at, row.state, row.since, row.members, row.assigned, row.protocol
    )
    rows = connection.execute(statement.where(row.pipeline == pipeline).order_by(row.node, row.consumer_group))
    return [GroupNow(*values) for values in rows]


def read_deleted(connection: Connection, pipeline: str, from_s: int, to_s: int) -> dict[tuple[str, str], int]:
    """Return the offsets that were deleted unread in minutes with from <= minute < to, by node and group."""
    row = ConsumerLagRow
    statement = (
        select(row.node, row.consumer_group, func.sum(row.deleted))
        .where(row.pipeline == pipeline, row.window_start >= from_s, row.window_start < to_s, row.deleted > 0)
        .group_by(row.node, row.consumer_group)
    )
    return {(node, group): int(deleted or 0) for node, group, deleted in connection.execute(statement)}


def _read(connection: Connection, pipeline: str, from_s: int, to_s: int) -> Iterator[PartitionNow]:
    """Yield the readings of minutes with from <= minute < to, oldest first."""
    row = ConsumerLagRow
    columns = (row.node, row.consumer_group, row.topic, row.topic_partition)
    statement = (
        select(
            *columns,
            *(row.commits_per_s, row.appends_per_s),
            *(row.asked_at, row.offsets, row.behind_ms, row.committed, row.log_start, row.log_end),
            *(row.status, row.kept_by, row.deletes_at, row.loss_at, row.at_risk, row.deleted),
        )
        .where(row.pipeline == pipeline, row.window_start >= from_s, row.window_start < to_s, row.in_flight.is_(None))
        .order_by(row.window_start)
    )
    for node, group, topic, partition, commits, appends, *values in connection.execute(statement):
        asked_ms, lag, behind_ms, committed, start, end, status, kept_by, deletes_ms, loss_ms, at_risk, deleted = values
        yield PartitionNow(
            of=GroupPartition(node, group, topic, partition),
            asked_ms=asked_ms,
            lag=lag,
            behind_ms=behind_ms,
            committed=committed,
            log_start=start,
            log_end=end,
            velocity=Velocity(commits, appends),
            status=status if status in STATUSES else None,  # a newer aggregator may know others
            kept_by=kept_by,
            deletes_ms=deletes_ms,
            loss_ms=loss_ms,
            at_risk=at_risk,
            deleted=deleted or 0,
        )

"""Rows of consumer lag: what the watch stores of partitions, by minute, and of groups, the newest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, case, delete, func
from sqlalchemy.dialects.postgresql import insert

from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss.wire.format import WINDOW_S
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.velocity import UNKNOWN_VELOCITY
from lagloss_server.store.schema import core as tables

GROUPS_KEPT_MS: Final = 86_400_000
"""How long the description of a group that no definition names any more is kept."""


def keep(connection: Connection, asked_ms: int, lags: Sequence[PartitionLag]) -> None:
    """Store the lags under the minute in which they were read. A repetition, or an older reading than the stored one,
    changes nothing."""
    rows = [
        {
            "pipeline": lag.group.pipeline,
            "window_start": asked_ms // 1_000 // WINDOW_S * WINDOW_S,
            "node": lag.group.node,
            "consumer_group": lag.group.group,
            "topic": lag.topic,
            "topic_partition": lag.partition,
            "asked_at": asked_ms,
            "offsets": lag.offsets,
            "offsets_max": lag.offsets,
            "behind_ms": lag.behind_ms,
            "behind_max_ms": lag.behind_ms,
            "basis": lag.basis,
            "in_flight": lag.in_flight,
            "in_flight_max": lag.in_flight,
            **_offsets(lag.at),
            **_progress(lag.progress),
        }
        for lag in lags
    ]
    table = tables.table_of(tables.ConsumerLagRow)
    upsert = insert(table)
    newest = ("asked_at", "offsets", "behind_ms", "basis", "in_flight", *_offsets(None), *_progress(None))
    newer: dict[str, Any] = {name: upsert.excluded[name] for name in newest}
    highest = {
        name: func.greatest(table.c[name], upsert.excluded[name])  # passes over nulls
        for name in ("offsets_max", "behind_max_ms", "in_flight_max")
    }
    absolute = upsert.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={**newer, **highest, "deleted": func.coalesce(upsert.excluded.deleted, table.c.deleted)},
        where=upsert.excluded.asked_at >= table.c.asked_at,
    )
    connection.execute(absolute, rows)


def keep_groups(connection: Connection, asked_ms: int, described: Mapping[NodeGroup, GroupDescription]) -> None:
    """Store the groups as they were described last, each with the time since which it has been in its state; an older
    description than the stored one changes nothing. Forget those that were last described a day ago."""
    table = tables.table_of(tables.ConsumerGroupRow)
    connection.execute(delete(table).where(table.c.asked_at < asked_ms - GROUPS_KEPT_MS))
    if not described:
        return
    rows = [
        {
            "pipeline": group.pipeline,
            "node": group.node,
            "consumer_group": group.group,
            "asked_at": asked_ms,
            "state": description.state,
            "since": asked_ms,
            "members": description.members,
            "assigned": description.partitions,
            "protocol": description.protocol,
        }
        for group, description in described.items()
    ]
    upsert = insert(table)
    newer = {name: upsert.excluded[name] for name in ("asked_at", "state", "members", "assigned", "protocol")}
    is_same = table.c.state == upsert.excluded.state
    absolute = upsert.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={**newer, "since": case((is_same, table.c.since), else_=upsert.excluded.since)},
        where=upsert.excluded.asked_at >= table.c.asked_at,
    )
    connection.execute(absolute, rows)


def _offsets(offsets: PartitionOffsets | None) -> dict[str, int | None]:
    if offsets is None:
        return {"committed": None, "log_start": None, "log_end": None}
    return {"committed": offsets.committed, "log_start": offsets.start, "log_end": offsets.end}


def _progress(progress: PartitionProgress | None) -> dict[str, Any]:
    moving = UNKNOWN_VELOCITY if progress is None else progress.velocity
    return {
        "commits_per_s": moving.commits_per_s,
        "appends_per_s": moving.appends_per_s,
        "status": None if progress is None else progress.status,
        "kept_by": None if progress is None else progress.kept_by,
        "deletes_at": None if progress is None else progress.deletes_ms,
        "loss_at": None if progress is None else progress.loss_ms,
        "at_risk": None if progress is None else progress.at_risk,
        "deleted": None if progress is None else progress.deleted,
    }

"""Messages that are lost afterwards in PostgreSQL: read for incidents, pages and reports, and accepted by people."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, func, select, update

from lagloss.wire.format import signed64
from lagloss_server.incidents.actions import notify, storable
from lagloss_server.incidents.lost_afterwards import LostAfterwardsMessage, LostMinute
from lagloss_server.model.window import rfc3339
from lagloss_server.store import audit
from lagloss_server.store.schema.core import is_any, table_of
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow
from lagloss_server.store.store import Store

MAX_NAMED: Final = 1_000


def read_lost_minutes(connection: Connection, pipeline: str, from_s: int, to_s: int) -> list[LostMinute]:
    """Return the minutes with from <= start < to of which messages are lost afterwards, oldest first."""
    row = LostAfterwardsRow
    return _minutes(connection, row.pipeline == pipeline, row.window_start >= from_s, row.window_start < to_s)


def read_outstanding(connection: Connection, pipeline: str, now_s: float) -> list[LostMinute]:
    """Return the minutes, oldest first, that are still compared, and have lost messages that no one has accepted."""
    return _minutes(connection, LostAfterwardsRow.pipeline == pipeline, *_outstanding(now_s))


def pipelines_with_outstanding(connection: Connection, now_s: float) -> set[str]:
    """Return the pipelines that have such minutes."""
    query = select(LostAfterwardsRow.pipeline).where(*_outstanding(now_s)).distinct()
    return set(connection.execute(query).scalars())


def read_lost_messages(
    connection: Connection,
    pipeline: str,
    from_s: int,
    to_s: int,
    at_most: int = MAX_NAMED,
) -> list[LostAfterwardsMessage]:
    """Return the messages of windows with from <= start < to that are lost afterwards and whose names are kept, those
    that were missed last first."""
    row = LostAfterwardsMessageRow
    return _messages(connection, at_most, row.pipeline == pipeline, row.window_start >= from_s, row.window_start < to_s)


def read_newest_messages(
    connection: Connection, pipelines: Collection[str], from_s: int, before_s: int | None, at_most: int
) -> list[LostAfterwardsMessage]:
    """Return the messages of these pipelines in the newest windows from `from_s` on that start before a time."""
    row = LostAfterwardsMessageRow
    earlier = () if before_s is None else (row.window_start < before_s,)
    named = is_any(row.pipeline, pipelines)
    return _messages(connection, at_most, named, row.window_start >= from_s, *earlier, newest_first=True)


def read_lost_of_ids(connection: Connection, pipeline: str, id_hashes: Collection[int]) -> list[LostAfterwardsMessage]:
    """Return what is stated of messages with these hashes of their ids (unsigned)."""
    row = LostAfterwardsMessageRow
    signed = [signed64(id_hash) for id_hash in id_hashes]
    return _messages(connection, MAX_NAMED, row.pipeline == pipeline, row.id_hash.in_(signed))


def read_outstanding_messages(
    connection: Connection, pipeline: str, now_s: float, nodes: Collection[str], at_most: int
) -> list[LostAfterwardsMessage]:
    """Return the messages of these nodes in the minutes of `read_outstanding`, those that were missed last first."""
    row, minute = LostAfterwardsMessageRow, LostAfterwardsRow
    return _messages(connection, at_most, row.pipeline == pipeline, minute.node.in_(nodes), *_outstanding(now_s))


def _messages(
    connection: Connection, at_most: int, *conditions: ColumnElement[bool], newest_first: bool = False
) -> list[LostAfterwardsMessage]:
    row, minute = LostAfterwardsMessageRow, LostAfterwardsRow
    by_time = (row.window_start.desc(), row.pipeline) if newest_first else (row.missed_at.desc(),)
    rows: Iterable[Any] = connection.execute(
        select(
            *(row.pipeline, row.message_id, row.id_hash, row.window_start, minute.node, minute.checkpoint),
            *(row.event_ms, row.place, row.seen_at, row.missed_at, row.cause, minute.source),
        )
        .join(minute, (minute.emitter == row.emitter) & (minute.window_start == row.window_start))
        .where(*conditions)
        .order_by(*by_time, row.missed_at.desc(), row.window_start.desc(), row.id_hash)
        .limit(at_most)
    )
    return [
        LostAfterwardsMessage(pipeline, message_id, id_hash % (1 << 64), *values)
        for pipeline, message_id, id_hash, *values in rows
    ]


def accept(store: Store, pipeline: str, from_s: int, to_s: int, *, by: str, why: str) -> int:
    """Accept what is lost afterwards of windows with from <= start < to as deleted on purpose: it opens no incident any
    more. Return the number of messages that were not accepted before.

    Raises:
        UnknownPipeline: there is none of this name.
        BadText: the name or the reason cannot be stored.
    """
    storable("a name", by)
    storable("a reason", why)
    store.demand(pipeline)
    row = table_of(LostAfterwardsRow)
    of_range = (
        row.c.pipeline == pipeline,
        row.c.window_start >= from_s,
        row.c.window_start < to_s,
        row.c.lost > row.c.accepted,
    )
    with store.engine.begin() as connection:
        new = connection.execute(
            select(row.c.lost - row.c.accepted)
            .where(*of_range)
            .order_by(row.c.emitter, row.c.window_start)  # as taps lock them
            .with_for_update()
        ).scalars()
        accepted: int = sum(new)
        connection.execute(
            update(row)
            .where(*of_range)
            .values(accepted=row.c.lost, accepted_at=func.clock_timestamp(), accepted_by=by, accepted_why=why)
        )
        notify(connection, f"accepted/{pipeline}")
        period = f"{rfc3339(from_s)} to {rfc3339(to_s)}"
        audit.note(connection, "lost-afterwards.accept", period, [pipeline], messages=accepted, why=why)
    return accepted


def _outstanding(now_s: float) -> tuple[ColumnElement[bool], ...]:
    row = table_of(LostAfterwardsRow).c
    return row.lost > row.accepted, row.until > int(now_s * 1_000)


def _minutes(connection: Connection, *conditions: ColumnElement[bool]) -> list[LostMinute]:
    row = LostAfterwardsRow
    columns = (
        *(row.window_start, row.node, row.checkpoint, row.source, row.lost, row.accepted, row.accepted_at),
        *(row.accepted_by, row.accepted_why, row.compared, row.sample, row.cause, row.missed_at, row.until),
    )
    query = select(*columns).where(*conditions).order_by(row.window_start, row.checkpoint, row.emitter)
    rows: Iterable[Any] = connection.execute(query)
    return [LostMinute(*values) for values in rows]

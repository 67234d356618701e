"""Marks of roll-ups whose windows or hours have changed; `maintenance.rollups` computes those anew."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import BigInteger, Connection, Text, literal, select
from sqlalchemy.dialects.postgresql import insert

from lagloss_server.rules.rollup import Period, period_of
from lagloss_server.store.schema import core as tables


def put_hours(connection: Connection, windows: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Mark the hours of these windows (pipeline, start), in the transaction that changes them."""
    put(connection, "hour", {(pipeline, period_of("hour", start)) for pipeline, start in windows}, now_ms)


def put(connection: Connection, period: Period, starts: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Mark these roll-ups (pipeline, start) as to be computed, in the transaction that changes what they sum up."""
    found = sorted(starts)
    if found:
        marks = tables.table_of(tables.RollupDirtyRow)
        asked = tables.rows_of(found, pipeline=Text(), start=BigInteger())
        values = select(asked.c.pipeline, literal(period), asked.c.start, literal(now_ms))
        # an update, though it changes nothing: it holds the row until this transaction ends
        connection.execute(
            insert(marks)
            .from_select(["pipeline", "period", "start", "dirty_since"], values)
            .on_conflict_do_update(
                index_elements=["pipeline", "period", "start"], set_={"dirty_since": marks.c.dirty_since}
            )
        )

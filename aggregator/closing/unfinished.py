"""Statements about unfinished windows: changed tallies, gaps, deadlines, and whether they were closed or sealed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select, text

from aggregator.closing.report_state import WindowKey, Windows, of_windows
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import is_any


class TallyChange(NamedTuple):
    """A window with a tally that changed. `closed_basis`, `state` are of the window's row, None if there is none."""

    pipeline: str
    window_start: int
    closed_basis: int | None
    state: str | None
    basis: int
    changed_at: int


def read_changes(
    connection: Connection, after_basis: int, pipelines: Collection[str] | None = None
) -> list[TallyChange]:
    """Read the windows with a tally that changed after this basis, and after their own."""
    tally, window = tables.table_of(tables.TallyRow), tables.table_of(tables.WindowRow)
    basis = func.max(tally.c.changed_basis)
    query = (
        select(
            tally.c.pipeline,
            tally.c.window_start,
            window.c.basis,
            window.c.state,
            basis,
            func.max(tally.c.changed_at),
        )
        .outerjoin(window, (window.c.pipeline == tally.c.pipeline) & (window.c.window_start == tally.c.window_start))
        .where(tally.c.changed_basis > after_basis)
        .group_by(tally.c.pipeline, tally.c.window_start, window.c.basis, window.c.state)
        .having(basis > func.coalesce(window.c.basis, 0))
    )
    if pipelines is not None:
        query = query.where(is_any(tally.c.pipeline, pipelines))
    return [TallyChange(*row) for row in connection.execute(query)]


def read_spans(connection: Connection, pipelines: Collection[str]) -> list[Any]:
    """Read the pipelines with closed windows: pipeline, the first and last of these windows, and their number."""
    table = tables.WindowRow
    return list(
        connection.execute(
            select(
                table.pipeline,
                func.min(table.window_start).label("first"),
                func.max(table.window_start).label("last"),
                func.count().label("windows"),
            )
            .where(is_any(table.pipeline, pipelines))
            .group_by(table.pipeline)
        )
    )


def read_gaps(connection: Connection, pipeline: str, first_s: int, last_s: int) -> list[int]:
    """Read the windows between these two that were never closed."""
    rows = connection.execute(
        text(
            "SELECT start FROM generate_series(CAST(:first AS bigint), :last, 60) start WHERE NOT EXISTS"
            ' (SELECT FROM "window" WHERE pipeline = :pipeline AND window_start = start) ORDER BY start'
        ),
        {"pipeline": pipeline, "first": first_s, "last": last_s},
    )
    return list(rows.scalars())


def read_deadlines(connection: Connection, pipelines: Collection[str]) -> list[Any]:
    """Read closed windows that time alone can change: pipeline, window_start, basis, deadline."""
    table = tables.WindowRow
    return list(
        connection.execute(
            select(table.pipeline, table.window_start, table.basis, table.deadline).where(
                is_any(table.pipeline, pipelines), table.deadline.is_not(None), table.state == "closed"
            )
        )
    )


def read_states(connection: Connection, windows: Windows) -> dict[WindowKey, str]:
    """Read the state, closed or sealed, of those of these windows that were ever closed."""
    table = tables.table_of(tables.WindowRow)
    rows = connection.execute(
        select(table.c.pipeline, table.c.window_start, table.c.state).where(*of_windows(table, windows))
    )
    return {(pipeline, start): state for pipeline, start, state in rows}


def read_closed(connection: Connection, pipeline: str, from_s: int, to_s: int) -> list[WindowKey]:
    """Read the windows with from <= start < to that were ever closed, oldest first."""
    table = tables.WindowRow
    rows = connection.execute(
        select(table.pipeline, table.window_start)
        .where(table.pipeline == pipeline, table.window_start >= from_s, table.window_start < to_s)
        .order_by(table.window_start)
    )
    return [(name, start) for name, start in rows]

"""Rolling up: hours from their stored windows, days from their hours, each computed anew where a closing changed one.

A closing marks its hour in its own transaction, and the mark goes in the transaction that computes the hour: whenever
the process is killed, a roll-up is right or marked. Nothing is ever added to an old roll-up, so doing it twice is the
same as once.
"""

from __future__ import annotations

import time
from typing import cast

from sqlalchemy import Connection, Engine, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from aggregator.closing import rollup_marks
from aggregator.outage import is_outage
from aggregator.set_aside import Item, SetAside
from lagloss_server.rules.facts import WindowFacts
from lagloss_server.rules.rollup import PERIOD_S, Period, Rollup, period_of
from lagloss_server.store.schema import core as tables

SETTLE_MS = 15_000
"""A roll-up is computed this long after its first change, so that many changes at a time cost it once."""
ROUND_S = 0.5
"""A round begins no further roll-up after this long: closing goes first."""
MARKS_PER_ROUND = 200


def roll_up(engine: Engine, now_ms: int, failures: SetAside) -> tuple[int, int]:
    """Compute the marked roll-ups that have settled, oldest change first; set aside alone what cannot be computed.
    Return how many were computed, and how many are marked now, settled or not."""
    marks, ends, done = tables.RollupDirtyRow, time.monotonic() + ROUND_S, 0
    label = func.concat_ws("/", marks.pipeline, marks.period, marks.start)
    waiting = [f"{item.pipeline}/{item.name}" for item in failures.waiting("rollup", now_ms)]
    with engine.connect() as connection:
        settled = connection.execute(
            select(marks.pipeline, marks.period, marks.start)
            .where(marks.dirty_since <= now_ms - SETTLE_MS, ~tables.is_any(label, waiting))
            .order_by(marks.dirty_since)
            .limit(MARKS_PER_ROUND)
        ).all()
    for pipeline, period, start in settled:
        item = Item("rollup", pipeline, f"{period}/{start}")
        try:
            with engine.begin() as connection:
                _restate(connection, pipeline, cast("Period", period), start, now_ms)
                failures.done(connection, [item])
        except Exception as error:
            if is_outage(error):
                raise
            failures.put(item, error)
        done += 1
        if time.monotonic() >= ends:
            break
    with engine.connect() as connection:
        return done, connection.execute(select(func.count()).select_from(marks)).scalar_one()


def pruned_before(connection: Connection) -> int:
    """Return the start (epoch s) before which retention dropped windows: they are never closed or rolled up again."""
    pruned = tables.PrunedRow
    found = connection.execute(
        select(pruned.before_s).where(pruned.table_name == tables.WindowRow.__tablename__)
    ).scalar_one_or_none()
    return 0 if found is None else int(found)


def _restate(connection: Connection, pipeline: str, period: Period, start: int, now_ms: int) -> None:
    """Compute a roll-up from what is stored, and mark the day of an hour that changed.

    The mark is deleted first: a closing that is about to commit holds its row, so we wait for it and then see its
    window; one that comes later waits for us and marks anew.
    """
    marks = tables.RollupDirtyRow
    connection.execute(delete(marks).where(marks.pipeline == pipeline, marks.period == period, marks.start == start))
    parts = _windows(connection, pipeline, start) if period == "hour" else _hours(connection, pipeline, start)
    if not parts or (period == "hour" and start < pruned_before(connection)):
        return
    total = Rollup.merged(parts)
    table, packed = tables.table_of(tables.RollupRow), total.pack()
    here = (table.c.pipeline == pipeline) & (table.c.period == period) & (table.c.start == start)
    if connection.execute(select(table.c.packed).where(here)).scalar_one_or_none() == packed:
        return
    row = {
        "pipeline": pipeline,
        "period": period,
        "start": start,
        **total.headline(),
        "computed_at": now_ms,
        "packed": packed,
    }
    connection.execute(
        insert(table).values(row).on_conflict_do_update(index_elements=["pipeline", "period", "start"], set_=row)
    )
    if period == "hour":
        rollup_marks.put(connection, "day", {(pipeline, period_of("day", start))}, now_ms)


def _windows(connection: Connection, pipeline: str, start: int) -> list[Rollup]:
    window = tables.WindowRow
    rows = connection.execute(
        select(window.document, window.facts)
        .where(
            window.pipeline == pipeline,
            window.window_start >= start,
            window.window_start < start + PERIOD_S["hour"],
        )
        .order_by(window.window_start)
    )
    return [Rollup.of_window(row.document, WindowFacts.unpack(row.facts)) for row in rows]


def _hours(connection: Connection, pipeline: str, start: int) -> list[Rollup]:
    hour = tables.RollupRow
    rows = connection.execute(
        select(hour.packed)
        .where(
            hour.pipeline == pipeline,
            hour.period == "hour",
            hour.start >= start,
            hour.start < start + PERIOD_S["day"],
        )
        .order_by(hour.start)
    )
    return [Rollup.unpack(packed) for (packed,) in rows]

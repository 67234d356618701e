"""Periods: the sum of the windows of any time range, exactly, from as few stored rows as possible.

A whole day is one row, a whole hour another, and what is left at the rims is read by the minute. A roll-up that is
marked (a window of it changed, and it was not computed anew yet) or missing is passed over for the finer rows. Sums and
merged sketches only: no ratio and no percentile is ever averaged.

Minutes are kept for weeks, roll-ups for years. Where minutes are gone, an hour cannot be parted any more: what a rim
cuts of it counts in no range, and `RangeTotal.cut` says how much that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Text, select, true

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.period_reading import Memory, PeriodReading, RangeTotal
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import PERIOD_S, Rollup, period_of


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of a range of time, in minutes that add up to `minutes`.

    `closed` have a result; `before` lie before the first that anything is kept of; `to_come` are not due yet; `missing`
    should have a result and have none: not closed, dropped, or cut (`cut` of them) at a rim.
    """

    minutes: int
    closed: int
    before: int
    to_come: int
    missing: int
    cut: int


def total(
    store: Store, pipeline: str, from_s: int, to_s: int, *, memory: Memory | None = None, settled_s: int = 0
) -> Rollup:
    """Return the closed windows with from <= start < to; `memory` and `settled_s` as in `series_of`."""
    series = series_of(store, {pipeline: (from_s, to_s)}, memory=memory, settled_s=settled_s)
    return series[pipeline][0].total


def series(store: Store, pipeline: str, edges: Sequence[int], *, counts_only: bool = False) -> list[RangeTotal]:
    """Return the ranges between each two neighbours of `edges` (epoch s, ascending), as in `series_of`."""
    return series_of(store, {pipeline: edges}, counts_only=counts_only)[pipeline]


def series_of(
    store: Store,
    edges: Mapping[str, Sequence[int]],
    *,
    counts_only: bool = False,
    memory: Memory | None = None,
    settled_s: int = 0,
) -> dict[str, list[RangeTotal]]:
    """Return for each pipeline the ranges between neighbours of its `edges` (epoch s, ascending), in a few statements
    however many pipelines there are.

    Args:
        counts_only: totals have verdicts and `rollup.COUNTS`, nothing else: PostgreSQL adds them up.
        memory: keeps what was read for the next time; of no use to counts.
        settled_s: the roll-ups of hours that end by then are taken as they are, marked or not: a page cannot wait
            until thousands of minutes are added up while the closer restates them.
    """
    with _snapshot(store) as connection:
        return PeriodReading(connection, edges, counts_only, memory, settled_s).parts()


def joined(parts: Sequence[RangeTotal]) -> RangeTotal:
    """Return neighbouring ranges as one."""
    if len(parts) == 1:
        return parts[0]
    total, cut = Rollup.merged(part.total for part in parts), sum(part.cut for part in parts)
    return RangeTotal(parts[0].from_s, parts[-1].to_s, total, cut)


def coverage(part: RangeTotal, first_s: int | None, expected_to_s: float) -> Coverage:
    """Return the data of a range of time.

    Args:
        first_s: where what is kept of the pipeline begins, see `first_known`.
        expected_to_s: see `lagloss_server.judging.freshness.expected_to_s`.
    """
    minutes, closed = part.minutes, part.total.windows
    known_from_s = part.to_s if first_s is None else min(max(first_s, part.from_s), part.to_s)
    due_to_s = min(max(int(expected_to_s), known_from_s), part.to_s)
    before = min(TimeRange(part.from_s, known_from_s).minutes, minutes - closed)
    missing = max(0, min(TimeRange(known_from_s, due_to_s).minutes, minutes - before) - closed)
    return Coverage(minutes, closed, before, minutes - before - closed - missing, missing, part.cut)


def first_known(store: Store, pipeline: str) -> int | None:
    """Start (epoch s) of the first window that anything is kept of; None of none."""
    return first_known_of(store, [pipeline]).get(pipeline)


def first_known_of(store: Store, pipelines: Sequence[str]) -> dict[str, int]:
    """Return the same of those of these pipelines that anything is kept of.

    Of an hour whose minutes are gone: windows go on without a gap from a pipeline's first, so it began that many
    minutes before the hour's end.
    """
    window, row = tables.WindowRow, tables.RollupRow
    listed = tables.rows_of(((name,) for name in pipelines), name=Text())
    minute = (
        select(window.window_start)
        .where(window.pipeline == listed.c.name)
        .order_by(window.window_start)
        .limit(1)
        .lateral("minute")
    )
    hour = (
        select(row.start, row.windows)
        .where(row.pipeline == listed.c.name, row.period == "hour")
        .order_by(row.start)
        .limit(1)
        .lateral("hour")
    )
    both = listed.outerjoin(minute, true()).outerjoin(hour, true())
    with store.engine.connect() as connection:
        rows = connection.execute(
            select(listed.c.name, minute.c.window_start, hour.c.start, hour.c.windows).select_from(both)
        )
        starts = {name: _first_of(first, start, windows) for name, first, start, windows in rows}
    return {name: first for name, first in starts.items() if first is not None}


def _first_of(minute: int | None, hour: int | None, windows: int | None) -> int | None:
    if hour is None or windows is None or (minute is not None and minute < hour + PERIOD_S["hour"]):
        return minute
    return hour + PERIOD_S["hour"] - WINDOW_S * windows


def hour_edges(from_s: int, to_s: int) -> list[int]:
    """`from_s`, the full hours (UTC) after it, and `to_s`."""
    first = period_of("hour", from_s) + PERIOD_S["hour"]
    return [from_s, *range(first, to_s, PERIOD_S["hour"]), to_s]


@contextmanager
def _snapshot(store: Store) -> Iterator[Connection]:
    """Return a connection that sees the database as it is now throughout: no roll-up changes between two queries."""
    with store.engine.connect() as connection:
        yield connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

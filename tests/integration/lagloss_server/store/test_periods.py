"""Sums over any stretch of time on a real PostgreSQL, against a slow oracle that adds up every window of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, select, update

from aggregator.closing import window_store as closings
from aggregator.maintenance import rollups
from aggregator.set_aside import SetAside
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.window import Window
from lagloss_server.store.partitions import DAY_S, ensure_days
from lagloss_server.store.periods import coverage, first_known, hour_edges, series, total
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import Period, Rollup, period_of
from tests.support.stored_windows import NOW_MS, Stored, closing, days_ago

BEGIN = days_ago(6, hour=0)
DAYS = 4
HOUR_S = 3_600
LATER_MS = NOW_MS + 10 * rollups.SETTLE_MS
STALE = BEGIN + DAY_S + 7 * HOUR_S
"""An hour that is marked: its roll-up and its day's are wrong."""
LOST = BEGIN + 2 * DAY_S + 3 * HOUR_S
"""An hour whose roll-up is missing."""


@dataclass(frozen=True)
class World:
    store: Store
    minutes: dict[int, Rollup]

    def oracle(self, from_s: int, to_s: int) -> Rollup:
        return Rollup.merged(self.minutes[start] for start in sorted(self.minutes) if from_s <= start < to_s)


def roll_up_all(store: Store) -> None:
    now_ms = LATER_MS
    while rollups.roll_up(store.engine, now_ms, SetAside(store.engine))[1]:
        now_ms += rollups.SETTLE_MS + 1


def write(store: Store, starts: Sequence[int]) -> None:
    chosen = Random(7)
    with store.engine.begin() as connection:
        ensure_days(connection, starts)
        made = [
            closing(start, 100 + at % 17, chosen.choice((0, 0, 3)), 10.0 * (1 + at % 9), 0, NOW_MS)
            for at, start in enumerate(starts)
        ]
        closings.commit(connection, made)


def read_minutes(store: Store) -> dict[int, Rollup]:
    window = tables.WindowRow
    with store.engine.connect() as connection:
        rows = connection.execute(select(window.window_start, window.document, window.facts))
        return {
            row.window_start: Rollup.of_window(Window.unpack(row.document), WindowFacts.unpack(row.facts))
            for row in rows
        }


def spoil(store: Store, period: Period, start: int) -> None:
    """Make a roll-up as wrong as it can be, so that nobody may have used it."""
    row = tables.RollupRow
    with store.engine.begin() as connection:
        here = (row.period == period) & (row.start == start)
        connection.execute(update(row).where(here).values(packed=Rollup(windows=9, messages=10**9).pack()))


def mark(store: Store, period: Period, start: int) -> None:
    with store.engine.begin() as connection:
        values = {"pipeline": "chain", "period": period, "start": start, "dirty_since": NOW_MS}
        connection.execute(insert(tables.RollupDirtyRow).values(**values))


@pytest.fixture(scope="module")
def world(module_database_url: str) -> Iterator[World]:
    """Four days with a window each 5 to 11 minutes, rolled up; one hour is marked, one roll-up is missing."""
    store = Store(module_database_url)
    Stored(store=store)
    chosen, starts, at = Random(3), list[int](), BEGIN
    while (at := at + 60 * chosen.randint(5, 11)) < BEGIN + DAYS * DAY_S:
        starts.append(at)
    write(store, starts)
    roll_up_all(store)
    spoil(store, "hour", STALE)
    spoil(store, "day", period_of("day", STALE))
    mark(store, "hour", STALE)
    with store.engine.begin() as connection:
        row = tables.RollupRow
        connection.execute(delete(row).where(row.start.in_([LOST, period_of("day", LOST)])))
    yield World(store, read_minutes(store))
    store.close()


def counts(found: Rollup) -> tuple[object, ...]:
    return found.windows, found.messages, found.lost_min, found.on_time, found.on_time_of, dict(found.verdicts)


MOMENTS = st.integers(BEGIN - DAY_S, BEGIN + (DAYS + 1) * DAY_S)
EDGES = st.lists(MOMENTS, min_size=2, max_size=9, unique=True).map(sorted)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edges=EDGES, counts_only=st.booleans())
def test_any_stretch_is_what_all_its_windows_come_to(world: World, edges: list[int], counts_only: bool) -> None:
    found = series(world.store, "chain", edges, counts_only=counts_only)
    assert [(one.from_s, one.to_s) for one in found] == list(pairwise(edges))
    for one in found:
        expected = world.oracle(one.from_s, one.to_s)
        assert counts(one.total) == counts(expected)
        assert counts_only or one.total.pack() == expected.pack()


@pytest.mark.parametrize("offset_min", [0, 330, 345, -570])
def test_days_and_hours_of_any_zone_are_exact(world: World, offset_min: int) -> None:
    edges = [BEGIN - offset_min * 60 + at * DAY_S for at in range(1, DAYS)]
    for chosen in (edges, hour_edges(edges[0] + 600, edges[-1])):
        for one in series(world.store, "chain", chosen, counts_only=True):
            assert counts(one.total) == counts(world.oracle(one.from_s, one.to_s))


def test_whole_days_are_read_as_days_only(world: World) -> None:
    clean = BEGIN + 3 * DAY_S
    spoil(world.store, "hour", clean + HOUR_S)  # nobody looks at it
    try:
        assert counts(total(world.store, "chain", clean, clean + DAY_S)) == counts(world.oracle(clean, clean + DAY_S))
    finally:
        mark(world.store, "hour", clean + HOUR_S)


def test_edges_have_to_ascend(world: World) -> None:
    for edges in ([BEGIN], [BEGIN + 60, BEGIN], [BEGIN, BEGIN]):
        with pytest.raises(ValueError, match="ascending"):
            series(world.store, "chain", edges)


def test_where_minutes_are_gone_what_a_rim_cuts_off_an_hour_is_left_out_and_said(store: Store) -> None:
    Stored(store=store)
    write(store, range(BEGIN, BEGIN + 3 * HOUR_S, 60))
    roll_up_all(store)
    with store.engine.begin() as connection:
        connection.execute(delete(tables.WindowRow))
        connection.execute(insert(tables.PrunedRow).values(table_name="window", before_s=BEGIN + DAY_S))
    mark(store, "hour", BEGIN + HOUR_S)  # all there is of it
    whole, cut = series(store, "chain", [BEGIN, BEGIN + 2 * HOUR_S, BEGIN + 2 * HOUR_S + 900])
    assert (whole.total.windows, whole.cut) == (120, 0)
    assert (cut.total.windows, cut.cut) == (0, 15)
    known = coverage(cut, first_known(store, "chain"), BEGIN + DAY_S)
    assert (known.minutes, known.closed, known.missing, known.cut) == (15, 0, 15, 15)


def test_a_pipeline_began_with_its_first_window_that_anything_is_kept_of(store: Store) -> None:
    Stored(store=store)
    assert first_known(store, "chain") is None
    write(store, range(BEGIN + 1_800, BEGIN + 2 * HOUR_S, 60))
    assert first_known(store, "chain") == BEGIN + 1_800
    roll_up_all(store)
    assert first_known(store, "chain") == BEGIN + 1_800
    with store.engine.begin() as connection:
        connection.execute(delete(tables.WindowRow))
    assert first_known(store, "chain") == BEGIN + 1_800

"""Stored windows and roll-ups that cannot be unpacked cost no other row of a range."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from aggregator.closing import window_store
from aggregator.maintenance import rollups
from aggregator.set_aside import SetAside
from lagloss_server.store.periods import total
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import RESULTS
from lagloss_server.sums.rollup import period_of
from tests.support.stored_windows import NOW_MS, Stored, closing, days_ago

HOUR = days_ago(1)
STARTS = [HOUR + 60 * minute for minute in range(3)]
BAD = STARTS[1]
LATER_MS = NOW_MS + 10 * rollups.SETTLE_MS


@pytest.fixture
def damaged(store: Store) -> Iterator[Stored]:
    """Three windows of an hour, the second of which cannot be unpacked."""
    stored = Stored(store=store)
    with store.engine.begin() as connection:
        window_store.commit(connection, [closing(start, 100, 0, 10.0, 0, NOW_MS) for start in STARTS])
        window = tables.WindowRow
        connection.execute(update(window).where(window.window_start == BAD).values(document=b"damaged"))
    yield stored
    for row in list(RESULTS):
        RESULTS.clear(row.kind, row.pipeline, row.name)  # type: ignore[arg-type]


def names() -> list[str]:
    return [row.place for row in RESULTS]


def test_an_unreadable_window_costs_no_other_of_its_range(damaged: Stored) -> None:
    store, others = damaged.store, [start for start in STARTS if start != BAD]
    assert [window.start_s for window in store.windows("chain", HOUR, HOUR + 3_600)] == others
    assert [window.start_s for window in store.closed_windows("chain", STARTS)] == others
    assert names() == [f"window chain/{BAD}"]
    assert total(store, "chain", HOUR, HOUR + 3_600).windows == 2
    rollups.roll_up(store.engine, LATER_MS, SetAside(store.engine))
    assert [rollup.windows for rollup in store.rollups("chain", "hour", HOUR, HOUR + 3_600).values()] == [2]


def test_an_unreadable_window_that_is_closed_again_can_be_read(damaged: Stored) -> None:
    store = damaged.store
    assert len(store.windows("chain", HOUR, HOUR + 3_600)) == 2
    with store.engine.begin() as connection:
        window_store.commit(connection, [closing(BAD, 100, 0, 10.0, 1, NOW_MS)])
    assert [window.start_s for window in store.windows("chain", HOUR, HOUR + 3_600)] == STARTS
    assert names() == []
    assert store.revisions("chain", BAD) == []
    assert names() == [f"window chain/{BAD}/1"]


def test_windows_are_read_in_place_of_an_unreadable_rollup(damaged: Stored) -> None:
    store = damaged.store
    rollups.roll_up(store.engine, LATER_MS, SetAside(store.engine))
    with store.engine.begin() as connection:
        connection.execute(update(tables.RollupRow).values(packed=b"damaged"))
    assert total(store, "chain", HOUR, HOUR + 3_600).windows == 2
    day = period_of("day", HOUR)
    assert total(store, "chain", day, day + 86_400).windows == 2
    assert f"rollup chain/hour/{HOUR}" in names()

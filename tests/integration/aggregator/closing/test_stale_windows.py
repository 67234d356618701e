"""Windows that are stale are found by their rows."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from aggregator.closing.staleness import restate_later
from aggregator.closing.window_store import Closing, commit
from lagloss_server.store.store import Store
from tests.support.stored_windows import closing, days_ago

START_S = days_ago(1)


def stale(minute: int, stale_ms: float) -> Closing:
    found = closing(START_S + 60 * minute, 10, 0, 1, 3, 0)
    return replace(found, result=structs.replace(found.result, staleness_ms={"snk.out": stale_ms}))


def test_windows_are_judged_again_where_they_are_stale(store: Store) -> None:
    with store.engine.begin() as connection:
        commit(connection, [stale(1, 600_000.0), stale(2, 0.5), stale(3, 60_000.0)])
        again = restate_later(connection, [closing(START_S, 10, 0, 900.0, 5, 9)])
    assert again == [("chain", START_S + 60, 3)]

"""Windows that are stale are found whatever form their result is stored in."""

from __future__ import annotations

import json
from dataclasses import replace

from sqlalchemy import select, text

from aggregator.closing.staleness import restate_later
from aggregator.closing.window_store import Closing, commit
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.stored_windows import closing, days_ago

START_S = days_ago(1)


def stale(minute: int, stale_ms: float) -> Closing:
    found = closing(START_S + 60 * minute, 10, 0, 1, 3, 0)
    return replace(found, result=replace(found.result, staleness_ms={"snk.out": stale_ms}))


def test_windows_of_before_and_of_now_are_judged_again_where_they_are_stale(store: Store) -> None:
    window = tables.WindowRow
    with store.engine.begin() as connection:
        commit(connection, [stale(1, 600_000.0), stale(2, 0.5), stale(3, 600_000.0), stale(4, 0.5), stale(5, 60_000.0)])
        for start, document in connection.execute(select(window.window_start, window.document)).all():
            if start > START_S + 120:
                connection.execute(
                    text(
                        'UPDATE "window" SET document = NULL, stale_ms = NULL, document_json = :document'
                        " WHERE window_start = :start"
                    ),
                    {"document": json.dumps(document), "start": start},
                )
        again = restate_later(connection, [closing(START_S, 10, 0, 900.0, 5, 9)])
    assert sorted(again) == [("chain", START_S + 60, 3), ("chain", START_S + 180, 3)]


def test_a_new_result_takes_the_place_of_one_of_before(store: Store) -> None:
    window = tables.WindowRow
    with store.engine.begin() as connection:
        commit(connection, [stale(1, 1.0)])
        old = connection.execute(select(window.document)).scalar_one()
        moved = text('UPDATE "window" SET document = NULL, document_json = :document')
        connection.execute(moved, {"document": json.dumps(old)})
        assert commit(connection, [stale(1, 1.0)]) == []  # the same result: no revision
        connection.execute(moved, {"document": json.dumps(old)})
        ((_, revision),) = commit(connection, [stale(1, 2.0)])
        stored = connection.execute(select(window.document, window.document_json)).one()
        earlier = connection.execute(select(tables.WindowRevisionRow.document)).scalar_one()
    assert (revision, stored.document["staleness_ms"], stored.document_json) == (2, {"snk.out": 2.0}, None)
    assert earlier == old

"""Runs beside the records of their hours, from windows and roll-ups in a real database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lagloss_server.base.errors import UnknownRun
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import Interval
from lagloss_server.runs.job_runs import read_job_runs, read_run
from lagloss_server.runs.run_store import RunReport, StateAt, record
from lagloss_server.store.store import Store
from tests.support.stored_windows import DEFINITION, NOW_S, Stored, days_ago

HOUR_S = days_ago(1, 11)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A pipeline whose two hours have a window each, and a run of either."""
    store = Store(database_url)
    stored = Stored(store=store)
    store.apply(parse_definition(DEFINITION.replace("{nodes:", "{jobs: [{dag: scores}], nodes:")))
    stored.close(HOUR_S + 60, messages=100, lost=3)
    stored.close(HOUR_S + 120, messages=50)
    stored.close(HOUR_S + 3_600, messages=7)
    with store.engine.begin() as connection:
        for at, state in enumerate(("success", "failed"), 1):
            due_ms = 1_000 * (HOUR_S + 3_600 * at)
            event = StateAt(state, due_ms + 60_000, due_ms, due_ms + 60_000)
            record(connection, [("chain", RunReport("scores", f"r-{at}", due_ms, run=event))])
    yield store
    store.close()


def test_each_run_has_the_records_of_its_hour(store: Store) -> None:
    (job,) = read_job_runs(store, "chain", HOUR_S, NOW_S, NOW_S)
    assert [each.run.run_id for each in job.runs] == ["r-2", "r-1"]
    newest, first = (each.hour for each in job.runs)
    assert first is not None
    assert newest is not None
    assert (first.minutes, first.closed, first.messages, first.lost) == (60, 2, 150, Interval(3, 3))
    assert (newest.closed, newest.messages, newest.lost) == (1, 7, Interval(0, 0))
    assert (job.stats.runs, job.stats.success_rate) == (2, 0.5)
    document = job.document()["list"][1]
    assert (document["records"]["in"], document["run_id"], document["why"]) == (150, "r-1", None)


def test_one_run_is_found_by_its_id_and_the_latest_by_its_date(store: Store) -> None:
    assert read_run(store, "chain").run.run_id == "r-2"
    found = read_run(store, "chain", "r-1")
    assert found.hour is not None
    assert found.hour.messages == 150
    with pytest.raises(UnknownRun, match="no run r-3"):
        read_run(store, "chain", "r-3")
    with pytest.raises(UnknownRun):
        read_run(store, "chain", dag="another")

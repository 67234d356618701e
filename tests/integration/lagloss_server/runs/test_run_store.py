"""Reports of runs and tasks: the same rows whatever order they come in, and however often."""

from __future__ import annotations

import random

from sqlalchemy import delete

from lagloss_server.model.jobs import JobSpec
from lagloss_server.runs.dag_runs import DagRun
from lagloss_server.runs.run_store import RunReport, StateAt, read_runs, record
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.runs import DagRunRow, TaskTryRow
from lagloss_server.store.store import Store

JOB = JobSpec(dag="scores")
NOON_MS = 1_795_694_400_000


def of_run(state: str, at_min: float, started_min: float | None = None) -> RunReport:
    at_ms = NOON_MS + round(60_000 * at_min)
    started = None if started_min is None else NOON_MS + round(60_000 * started_min)
    ended = at_ms if state in ("success", "failed") else None
    return RunReport("scores", "r-1", NOON_MS, None, StateAt(state, at_ms, started, ended))


def of_task(task: str, number: int, state: str, at_min: float, started_min: float | None = None) -> RunReport:
    event = of_run(state, at_min, started_min).run
    return RunReport("scores", "r-1", NOON_MS, task=task, try_number=number, task_event=event)


REPORTS = (
    of_run("queued", 0),
    of_run("running", 1, 1),
    of_task("load", 1, "running", 1, 1),
    of_task("load", 1, "failed", 2, 1),
    of_run("failed", 3, 1),
    of_run("queued", 20),  # it was cleared
    of_run("running", 21, 21),
    of_task("load", 2, "running", 21, 21),
    of_task("load", 2, "running", 23, 23),  # deferred, and begun again
    of_task("load", 2, "success", 25, 23),
    of_run("success", 26, 21),
)


def stored(store: Store, reports: list[RunReport]) -> list[DagRun]:
    with store.engine.begin() as connection:
        for row in (DagRunRow, TaskTryRow):
            connection.execute(delete(table_of(row)))
    for report in reports:
        with store.engine.begin() as connection:
            record(connection, [("p", report)])
    return read_runs(store, "p", [JOB])


def test_reports_give_the_same_rows_in_any_order_and_repeated(store: Store) -> None:
    in_order = stored(store, list(REPORTS))
    (run,) = in_order
    minutes = [None if ms is None else (ms - NOON_MS) / 60_000 for ms in (run.started_ms, run.ended_ms, run.failed_ms)]
    assert (run.state, minutes, run.hour.length_s) == ("success", [21, 26, 3], 3_600)
    assert [(each.number, each.state, each.duration_ms) for each in run.tries] == [
        (1, "failed", 60_000),
        (2, "success", 240_000),
    ]
    shuffled = [*REPORTS, *REPORTS]
    for seed in range(10):
        random.Random(seed).shuffle(shuffled)
        assert stored(store, shuffled) == in_order
    with store.engine.begin() as connection:
        record(connection, [("p", report) for report in shuffled])  # in one request
    assert read_runs(store, "p", [JOB]) == in_order


def test_a_task_whose_run_was_not_reported_yet_is_in_a_run_that_runs(store: Store) -> None:
    (run,) = stored(store, [of_task("load", 1, "failed", 2, 1)])
    assert (run.state, run.started_ms, [each.state for each in run.tries]) == ("running", None, ["failed"])


def test_a_frequent_dag_does_not_hide_the_runs_of_another(store: Store) -> None:
    minutes = {"frequent": range(0, 120, 5), "hourly": range(0, 120, 60)}
    with store.engine.begin() as connection:
        reports = [
            RunReport(dag, f"r-{minute:03}", NOON_MS + 60_000 * minute) for dag in minutes for minute in minutes[dag]
        ]
        record(connection, [("q", report) for report in reports])
    jobs = [JobSpec(dag=dag) for dag in minutes]
    runs = read_runs(store, "q", jobs, limit=3)
    assert [(run.dag, run.run_id) for run in runs if run.dag == "hourly"] == [("hourly", "r-000"), ("hourly", "r-060")]
    assert [run.run_id for run in runs if run.dag == "frequent"] == ["r-105", "r-110", "r-115"]
    assert [run.due_ms for run in runs] == sorted(run.due_ms for run in runs)


def test_runs_of_other_dags_pipelines_and_times_are_left_out(store: Store) -> None:
    stored(store, list(REPORTS))
    assert read_runs(store, "another", [JOB]) == []
    assert read_runs(store, "p", [JobSpec(dag="another")]) == []
    assert read_runs(store, "p", [JOB], NOON_MS / 1_000 + 1) == []
    assert len(read_runs(store, "p", [JOB], NOON_MS / 1_000, NOON_MS / 1_000 + 1, run_id="r-1")) == 1

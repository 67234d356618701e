"""Reports of DAG runs and tasks, in lagloss's own form and as OpenLineage events, and what is wrong with bad ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collector.openlineage import MAX_TASKS, read_event
from collector.task_runs import read_reports
from lagloss_server.net.problem_details import Problem
from lagloss_server.runs.run_store import RunReport, StateAt

HOUR_MS = 3_600_000
NOON_MS = 1_795_694_400_000
RUN = {"dag": "scores", "run_id": "scheduled__x", "due_at": "2026-11-26T12:00:00Z"}


def reports(*these: dict[str, Any]) -> list[RunReport]:
    return read_reports(json.dumps({"reports": these}).encode())


def test_a_report_holds_a_run_or_a_try_of_a_task() -> None:
    task = {"task": "publish", "try": 2, "state": "failed", "at": NOON_MS + 5, "started_at": NOON_MS}
    (failed,) = reports({**RUN, "task": task})
    assert failed == RunReport(
        "scores",
        "scheduled__x",
        NOON_MS,
        None,
        None,
        "publish",
        2,
        -1,
        StateAt("failed", NOON_MS + 5, NOON_MS, NOON_MS + 5),
    )
    interval = {"interval_start": NOON_MS - HOUR_MS, "interval_end": NOON_MS}
    (running,) = reports({**RUN, **interval, "run": {"state": "running", "at": NOON_MS, "started_at": NOON_MS}})
    assert (running.interval, running.run) == ((NOON_MS - HOUR_MS, NOON_MS), StateAt("running", NOON_MS, NOON_MS))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({}, None),
        ({"run": {"state": "asleep", "at": 1}}, "run"),
        ({"task": {"task": "a b", "state": "failed", "at": 1}}, "task"),
        ({"run": {"state": "failed", "at": "noon"}}, "at"),
        ({"run": {"state": "failed", "at": 1}, "interval_start": 1}, None),
        ({"run": {"state": "failed", "at": 1}, "colour": "red"}, "colour"),
        ({"run": {"state": "failed", "at": 1}, "run_id": "a\0b"}, "run_id"),
    ],
)
def test_a_bad_report_is_named_by_position_and_field(changed: dict[str, Any], field: str | None) -> None:
    good = {**RUN, "run": {"state": "success", "at": NOON_MS}}
    with pytest.raises(Problem) as problem:
        reports(good, {**RUN, **changed})
    document = problem.value.document
    assert (problem.value.status, document.position, document.field) == (422, 1, field)


def event(kind: str, time: str, **facets: Any) -> list[RunReport]:
    whole = {
        "eventType": kind,
        "eventTime": time,
        "producer": "https://github.com/apache/airflow",
        "job": {"namespace": "default", "name": "scores.publish"},
        "run": {"runId": "0190", "facets": facets},
    }
    return read_event(json.dumps(whole).encode())


DAG_RUN = {
    "dag_id": "scores",
    "run_id": "scheduled__x",
    "data_interval_start": "2026-11-26T11:00:00+00:00",
    "data_interval_end": "2026-11-26T12:00:00+00:00",
    "start_date": "2026-11-26T12:00:02+00:00",
    "conf": {},
}


def test_an_openlineage_event_of_a_task_is_a_try_of_it() -> None:
    facet = {
        "dag": {"dag_id": "scores"},
        "dagRun": DAG_RUN,
        "task": {"task_id": "publish", "operator_class": "x"},
        "taskInstance": {"try_number": 2},
    }
    (started,) = event("START", "2026-11-26T12:01:00+00:00", airflow=facet)
    assert (started.task, started.try_number, started.run) == ("publish", 2, None)
    assert started.task_event == StateAt("running", NOON_MS + 60_000, NOON_MS + 60_000)
    (failed,) = event("FAIL", "2026-11-26T12:02:00+00:00", airflow=facet)
    assert failed.task_event == StateAt("failed", NOON_MS + 120_000, None, NOON_MS + 120_000)
    assert failed.interval == (NOON_MS - HOUR_MS, NOON_MS)


def test_an_openlineage_event_of_a_run_names_the_tasks_that_never_began() -> None:
    facets = {
        "airflowDagRun": {"dag": {"dag_id": "scores"}, "dagRun": DAG_RUN},
        "airflowState": {
            "dagRunState": "failed",
            "tasksState": {"aggregate": "success", "publish": "failed", "notify": "upstream_failed", "odd": None},
        },
    }
    run, notify = event("FAIL", "2026-11-26T12:09:00+00:00", **facets)
    assert run.run == StateAt("failed", NOON_MS + 540_000, NOON_MS + 2_000, NOON_MS + 540_000)
    assert (notify.task, notify.try_number) == ("notify", 0)
    assert notify.task_event is not None
    assert notify.task_event.state == "upstream_failed"


def test_the_end_of_a_run_of_more_tasks_than_are_told_of_is_known() -> None:
    tasks = {f"task_{number}": "skipped" if number % 2 else "success" for number in range(2 * MAX_TASKS + 4)}
    facets = {"airflowDagRun": {"dag": {"dag_id": "scores"}, "dagRun": DAG_RUN}, "airflowState": {"tasksState": tasks}}
    run, *never = event("COMPLETE", "2026-11-26T12:09:00+00:00", **facets)
    assert run.run is not None
    assert (run.run.state, len(never)) == ("success", MAX_TASKS)


def test_events_of_other_producers_say_nothing() -> None:
    assert event("COMPLETE", "2026-11-26T12:09:00Z", spark_properties={"properties": {}}) == []
    assert read_event(b'{"eventTime": "2026-11-26T12:09:00Z", "dataset": {"namespace": "s3", "name": "x"}}') == []
    with pytest.raises(Problem, match="expected 'START'"):
        read_event(b'{"eventTime": "2026-11-26T12:09:00Z", "eventType": "BEGIN"}')
    with pytest.raises(Problem, match="Invalid JSON"):
        read_event(b"no")

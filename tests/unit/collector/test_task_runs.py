"""Reports of DAG runs and tasks, in lagloss's own form and as OpenLineage events, and what is wrong with bad ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from collector.openlineage import MAX_TASKS, read_event
from collector.task_runs import read_reports
from lagloss_server.net.problem_details import Problem
from lagloss_server.runs.run_store import RunReport, StateAt
from tests.support import lineage_events as lineage

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


SECOND, NINTH_MS = "2026-11-26T12:00:02.000Z", NOON_MS + 540_000
NINTH = "2026-11-26T12:09:00.000000+00:00"


@pytest.mark.parametrize(
    ("whole", "part", "dag", "task"),
    [
        (lineage.dbt_command, lineage.dbt_model, "dbt-run-jaffle_shop", "db.main.jaffle_shop.customers"),
        (
            lineage.spark_application,
            lineage.spark_action,
            "hourly_scores",
            "execute_insert_into_hadoop_fs_relation_command.warehouse_scores",
        ),
        (lineage.dagster_pipeline, lineage.dagster_step, "scores_job", "publish"),
    ],
)
def test_a_run_and_those_within_it_are_a_run_of_a_dag_and_its_tasks(
    whole: Callable[[str, str], dict[str, Any]], part: Callable[[str, str], dict[str, Any]], dag: str, task: str
) -> None:
    (started,) = read_event(lineage.written(whole("START", SECOND)))
    (ended,) = read_event(lineage.written(whole("FAIL", NINTH)))
    run_id = lineage.COMMAND_RUN
    assert (started.dag, started.run_id, started.due_ms, started.interval) == (dag, run_id, NOON_MS + 2_000, None)
    assert started.run == StateAt("running", NOON_MS + 2_000, NOON_MS + 2_000)
    assert ended.run == StateAt("failed", NINTH_MS, None, NINTH_MS)
    own, of_parent = read_event(lineage.written(part("COMPLETE", NINTH)))
    assert (own.run_id, own.run) == (lineage.MODEL_RUN, StateAt("success", NINTH_MS, None, NINTH_MS))
    assert (of_parent.dag, of_parent.run_id, of_parent.task, of_parent.try_number) == (dag, run_id, task, 1)
    assert of_parent.task_event == StateAt("success", NINTH_MS, None, NINTH_MS)


def test_a_job_of_flink_runs_from_its_start_through_its_checkpoints() -> None:
    states = [
        read_event(lineage.written(lineage.flink_job(kind, NINTH)))[0].run for kind in ("START", "RUNNING", "ABORT")
    ]
    assert [state.state for state in states if state is not None] == ["running", "running", "failed"]


def test_a_nominal_time_is_the_interval_of_a_run() -> None:
    facet = {"nominalStartTime": "2026-11-26T11:00:00Z", "nominalEndTime": "2026-11-26T12:00:00Z"}
    whole = lineage.event("START", NINTH, "x", "scores", "r-1", facets={"nominalTime": facet})
    (started,) = read_event(lineage.written(whole))
    assert (started.due_ms, started.interval) == (NOON_MS, (NOON_MS - HOUR_MS, NOON_MS))


def test_airflow_without_its_facets_is_a_task_of_its_dag() -> None:
    whole = lineage.event("FAIL", NINTH, "x", "scores.publish", "r-1", facets=lineage.parent("scores", "r-0"))
    (_, task) = read_event(lineage.written(whole))
    assert (task.dag, task.run_id, task.task) == ("scores", "r-0", "publish")


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        ({"eventTime": NINTH, "dataset": {"namespace": "s3", "name": "x"}}, "expected an event of a run"),
        ({"eventTime": NINTH, "job": {"namespace": "a", "name": "x"}, "inputs": []}, "expected an event of a run"),
        (lineage.event("OTHER", NINTH, "x", "scores", "r"), "found OTHER, which is no state of a run"),
        (lineage.event(None, NINTH, "x", "scores", "r"), "found none, which is no state of a run"),
        (lineage.flink_job("START", NINTH, "Flink Streaming Job"), "found 'Flink Streaming Job'"),
        ({"eventType": "START", "eventTime": NINTH, "run": {"runId": "r"}}, "expected job"),
        ({"eventType": "START", "eventTime": NINTH, "run": {}, "job": {"name": "x"}}, "expected run.runId"),
        (lineage.event("START", "noon", "x", "scores", "r"), "expected a time"),
        (lineage.event("START", NINTH, "x", "scores", "r", facets={"parent": {"run": {}}}), "expected a value"),
        (lineage.event("BEGIN", NINTH, "x", "scores", "r"), "expected 'START'"),
    ],
)
def test_an_event_that_reports_no_state_of_a_run_is_refused_with_a_reason(whole: dict[str, Any], why: str) -> None:
    with pytest.raises(Problem) as problem:
        read_event(lineage.written(whole))
    assert problem.value.status == 422
    assert why in str(problem.value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(Problem, match="Invalid JSON"):
        read_event(b"no")

"""Reports of task runs: who may send them, what of them is kept, and whether an hour is whole."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from lagloss_server.model.jobs import JobSpec
from lagloss_server.runs.run_store import read_runs
from tests.integration.collector.test_definitions import new_token
from tests.integration.conftest import DEFINITION, YAML, Collector
from tests.support.kafka_log import wait_for
from tests.support.lineage_events import COMMAND_RUN, dagster_step, dbt_command, dbt_model

NOON = "2026-11-26T12:00:00Z"


@pytest.fixture
def dag(collector: Collector) -> str:
    """A DAG that a pipeline of the same name names as its job."""
    name = f"dag-{uuid.uuid4().hex[:8]}"
    text = DEFINITION.replace("NAME", name) + f"  jobs: [{{dag: {name}}}]\n"
    answer = collector.client.put(f"/v1/pipelines/{name}", content=text, headers=YAML)
    assert answer.status_code == 201, answer.text
    return name


def report(dag: str, **more: Any) -> dict[str, Any]:
    run = {"state": "success", "at": NOON, "started_at": NOON}
    return {"dag": dag, "run_id": "r-1", "due_at": NOON, "run": run, **more}


def test_reports_are_kept_of_dags_that_a_definition_names(collector: Collector, dag: str) -> None:
    task = {"task": "publish", "state": "failed", "at": NOON}
    body = {"reports": [report(dag), report("nobodys"), report(dag, run=None, task=task)]}
    answer = collector.client.post("/v1/task-runs", json=body)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 2, "ignored": 1})
    (run,) = read_runs(collector.store, dag, [JobSpec(dag=dag)])
    assert (run.state, [each.task for each in run.tries]) == ("success", ["publish"])


def test_a_token_reports_to_its_own_pipeline_alone(collector: Collector, dag: str, pipeline: str) -> None:
    client, body = collector.client, {"reports": [report(dag)]}
    other, own = new_token(collector, pipeline), new_token(collector, dag)
    assert client.post("/v1/task-runs", json=body, headers=other).json() == {"accepted": 0, "ignored": 1}
    assert client.post("/v1/task-runs", json=body, headers=own).json() == {"accepted": 1, "ignored": 0}
    # now that it has a token, it takes one
    wait_for(lambda: client.post("/v1/task-runs", json=body).json()["ignored"] == 1, what="the token to be asked for")
    bad = client.post("/v1/task-runs", json=body, headers={"Authorization": "Bearer lagloss_0_0"})
    assert bad.status_code == 401


def test_an_openlineage_event_is_taken(collector: Collector, dag: str) -> None:
    facet = {"dag": {"dag_id": dag}, "dagRun": {"run_id": "r-2", "run_after": NOON}, "task": {"task_id": "load"}}
    event = {"eventType": "FAIL", "eventTime": NOON, "run": {"runId": "x", "facets": {"airflow": facet}}}
    answer = collector.client.post("/v1/lineage", json=event)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1, "ignored": 0})
    (run,) = read_runs(collector.store, dag, [JobSpec(dag=dag)])
    assert [(each.task, each.state) for each in run.tries] == [("load", "failed")]


def test_events_of_dbt_are_runs_and_tasks_of_the_command_that_a_definition_names(
    collector: Collector, pipeline: str
) -> None:
    text = DEFINITION.replace("NAME", pipeline) + "  jobs: [{dag: dbt-run-jaffle_shop}]\n"
    assert collector.client.put(f"/v1/pipelines/{pipeline}", content=text, headers=YAML).status_code == 201
    events = [dbt_command("START", NOON), dbt_model("FAIL", NOON), dbt_command("FAIL", NOON)]
    for event in events:
        answer = collector.client.post("/v1/lineage", json=event)
        assert (answer.status_code, answer.json()) == (202, {"accepted": 1, "ignored": 0})
    (run,) = read_runs(collector.store, pipeline, [JobSpec(dag="dbt-run-jaffle_shop")])
    assert (run.run_id, run.state) == (COMMAND_RUN, "failed")
    assert [(each.task, each.state) for each in run.tries] == [("db.main.jaffle_shop.customers", "failed")]


def test_an_event_of_a_job_that_no_definition_names_is_refused_with_its_name(
    collector: Collector, dag: str, pipeline: str
) -> None:
    answer = collector.client.post("/v1/lineage", json=dagster_step("COMPLETE", NOON))
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert "scores_job.publish or scores_job" in answer.json()["detail"]
    own = {**dagster_step("COMPLETE", NOON), "job": {"namespace": "n", "name": dag}}
    other = new_token(collector, pipeline)
    assert collector.client.post("/v1/lineage", json=own, headers=other).status_code == 422
    assert collector.client.post("/v1/lineage", json=own).json() == {"accepted": 1, "ignored": 0}


def test_a_bad_report_is_refused_whole(collector: Collector, dag: str) -> None:
    answer = collector.client.post("/v1/task-runs", json={"reports": [report(dag), report(dag, due_at="noon")]})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert (answer.json()["position"], answer.json()["field"]) == (1, "due_at")
    assert read_runs(collector.store, dag, [JobSpec(dag=dag)]) == []


def test_an_hour_without_windows_is_waited_for(collector: Collector, pipeline: str) -> None:
    client, path = collector.client, f"/v1/pipelines/{pipeline}/whole"
    hour = {"from": "2026-11-26T11:00:00Z", "to": NOON}
    answer = client.get(path, params=hour)
    assert (answer.json()["state"], answer.json()["minutes"], answer.json()["closed"]) == ("waiting", 60, 0)
    assert client.get(path, params={**hour, "node": "nowhere"}).status_code == 422
    assert client.get(path, params={"from": NOON, "to": NOON}).status_code == 422
    assert client.get("/v1/pipelines/nobodys/whole", params=hour).status_code == 404

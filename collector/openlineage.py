"""OpenLineage run events as reports of DAG runs and tasks: what Airflow's OpenLineage provider sends over HTTP.

Its facets `airflow`, of tasks, and `airflowDagRun` with `airflowState`, of DAG runs, hold what is needed. Events of
other producers, of data sets and of jobs say nothing of a DAG's run; what becomes of which is in docs/runs.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from collector.models import invalid, validated
from collector.task_runs import RunId, RunJson, TaskJson, TaskRunJson, as_report
from lagloss_server.model.jobs import DagId
from lagloss_server.runs.dag_runs import RunState
from lagloss_server.runs.run_store import RunReport

EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT", "OTHER"]
_STATES: Final[dict[EventType, Literal["running", "success", "failed"]]] = {
    "START": "running",
    "RUNNING": "running",
    "COMPLETE": "success",
    "FAIL": "failed",
    "ABORT": "failed",
}
MAX_TASKS: Final = 1_000
"""Without an event of their own, of which a run's event tells."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _DagRun(_Part):
    """Times are as they came: the report that is made of them reads them, once."""

    dag_id: DagId | None = None
    run_id: RunId
    data_interval_start: object = None
    data_interval_end: object = None
    logical_date: object = None
    run_after: object = None
    start_date: object = None


class _TaskInstance(_Part):
    try_number: Annotated[int, Field(ge=0, lt=1 << 31)] = 1
    map_index: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None


class _Task(_Part):
    task_id: DagId


class _Dag(_Part):
    dag_id: DagId


class _AirflowFacet(_Part):
    dag: _Dag
    dag_run: _DagRun = Field(alias="dagRun")
    task: _Task | None = None
    task_instance: _TaskInstance = Field(default=_TaskInstance(), alias="taskInstance")


class _StateFacet(_Part):
    tasks: dict[DagId, str | None] = Field(default={}, alias="tasksState")


class _Facets(_Part):
    airflow: _AirflowFacet | None = None
    dag_run: _AirflowFacet | None = Field(default=None, alias="airflowDagRun")
    state: _StateFacet = Field(default=_StateFacet(), alias="airflowState")


class _Run(_Part):
    facets: _Facets = _Facets()


class _Event(_Part):
    event_type: EventType | None = Field(default=None, alias="eventType")
    event_time: object = Field(alias="eventTime")
    run: _Run | None = None


_EVENT: Final = TypeAdapter(_Event)


def read_event(body: bytes) -> list[RunReport]:
    """Return what an event reports, of the run first; nothing of an event without Airflow's facets.

    Raises:
        Problem: 422 for one that is malformed.
    """
    event = validated(_EVENT, body, "event", "event", "events")
    try:
        return [as_report(report) for report in _reports(event)]
    except ValidationError as error:
        raise invalid(error, None, "event", "event", "events") from None


def _reports(event: _Event) -> Iterator[TaskRunJson]:
    state = None if event.event_type is None else _STATES.get(event.event_type)
    facets = event.run.facets if event.run else _Facets()
    if state is None or (facets.airflow is None and facets.dag_run is None):
        return
    if facets.airflow is not None and facets.airflow.task is not None:
        task_facet, task_instance = facets.airflow.task, facets.airflow.task_instance
        started = event.event_time if event.event_type == "START" else None
        index = -1 if task_instance.map_index is None else task_instance.map_index
        task = {"task": task_facet.task_id, "try": task_instance.try_number, "map_index": index}
        yield _report(facets.airflow, event, task=_task(task, state, event, started))
    elif facets.dag_run is not None:
        began = facets.dag_run.dag_run.start_date or (event.event_time if event.event_type == "START" else None)
        yield _report(facets.dag_run, event, run=_run(state, event, began))
        tasks = facets.state.tasks.items() if state != "running" else ()
        unheard = ((name, facet) for name, facet in tasks if facet in ("upstream_failed", "skipped"))
        for name, task_state in islice(unheard, MAX_TASKS):  # they have no event of their own
            never = {"task": name, "try": 0, "map_index": -1}
            yield _report(facets.dag_run, event, task=_task(never, task_state, event, None))


def _run(state: RunState, event: _Event, started: object) -> RunJson:
    return RunJson.model_validate({"state": state, "at": event.event_time, "started_at": started})


def _task(task: dict[str, Any], state: str, event: _Event, started: object) -> TaskJson:
    return TaskJson.model_validate({**task, "state": state, "at": event.event_time, "started_at": started})


def _report(
    facet: _AirflowFacet, event: _Event, *, run: RunJson | None = None, task: TaskJson | None = None
) -> TaskRunJson:
    dag_run = facet.dag_run
    has_interval = dag_run.data_interval_start is not None and dag_run.data_interval_end is not None
    due = dag_run.data_interval_end or dag_run.logical_date or dag_run.run_after or event.event_time
    return TaskRunJson.model_validate(
        {
            "dag": dag_run.dag_id or facet.dag.dag_id,
            "run_id": dag_run.run_id,
            "due_at": due,
            "interval_start": dag_run.data_interval_start if has_interval else None,
            "interval_end": dag_run.data_interval_end if has_interval else None,
            "run": run,
            "task": task,
        }
    )

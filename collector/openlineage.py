"""OpenLineage run events as reports of DAG runs and tasks.

Airflow's facets `airflow`, of tasks, and `airflowDagRun` with `airflowState`, of DAG runs, hold all that is needed.
Events of other producers (dbt, Spark, Flink, Dagster) are reports of a run of their own job, and of a task of the run
that their facet `parent` names; which of both is used depends on the names in definitions. Events that report no state
of a run are refused; docs/runs.md has what becomes of which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from collector.models import invalid, validated
from collector.task_runs import RunId, RunJson, TaskJson, TaskRunJson, as_report
from lagloss_server.model.jobs import DagId
from lagloss_server.net.problem_details import Problem
from lagloss_server.runs.dag_runs import UNMAPPED, RunState
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
MAX_NAME: Final = 250
MAX_SHOWN: Final = 100
NOT_USED: Final = "Event not used"
_NO_NAME: Final = re.compile(r"[^\w.-]")
"""What neither DAGs nor tasks can have in their names."""


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


class _Job(_Part):
    name: Annotated[str, Field(min_length=1, max_length=10_000)]


class _ParentRun(_Part):
    run_id: RunId = Field(alias="runId")


class _ParentFacet(_Part):
    run: _ParentRun
    job: _Job


class _NominalTimeFacet(_Part):
    """When a run was scheduled for; of a batch, from when to when its data are."""

    start: object = Field(default=None, alias="nominalStartTime")
    end: object = Field(default=None, alias="nominalEndTime")


class _Facets(_Part):
    airflow: _AirflowFacet | None = None
    dag_run: _AirflowFacet | None = Field(default=None, alias="airflowDagRun")
    state: _StateFacet = Field(default=_StateFacet(), alias="airflowState")
    parent: _ParentFacet | None = None
    nominal_time: _NominalTimeFacet = Field(default=_NominalTimeFacet(), alias="nominalTime")


class _Run(_Part):
    run_id: RunId | None = Field(default=None, alias="runId")
    facets: _Facets = _Facets()


class _Event(_Part):
    event_type: EventType | None = Field(default=None, alias="eventType")
    event_time: object = Field(alias="eventTime")
    run: _Run | None = None
    job: _Job | None = None


_EVENT: Final = TypeAdapter(_Event)


def read_event(body: bytes) -> list[RunReport]:
    """Return what an event may report, of the run first: at least one, each of a DAG that a definition may name.

    Raises:
        Problem: 422 for one that is malformed, or reports no state of a run.
    """
    event = validated(_EVENT, body, "event", "event", "events")
    try:
        return [as_report(report) for report in _reports(event)]
    except ValidationError as error:
        raise invalid(error, None, "event", "event", "events") from None


def _reports(event: _Event) -> Iterator[TaskRunJson]:
    if event.run is None:
        raise Problem(422, NOT_USED, "expected an event of a run, found one of a job or a data set", field="run")
    state = None if event.event_type is None else _STATES.get(event.event_type)
    if state is None:
        detail = f"expected {', '.join(_STATES)}, found {event.event_type or 'none'}, which is no state of a run"
        raise Problem(422, NOT_USED, detail, field="eventType")
    facets = event.run.facets
    if facets.airflow is not None and facets.airflow.task is not None:
        yield _airflow_task(facets.airflow, facets.airflow.task, state, event)
    elif facets.dag_run is not None:
        yield from _airflow_run(facets.dag_run, facets.state, state, event)
    else:
        yield from _any_run(event, event.run, state)


def _airflow_task(facet: _AirflowFacet, task: _Task, state: RunState, event: _Event) -> TaskRunJson:
    instance = facet.task_instance
    index = UNMAPPED if instance.map_index is None else instance.map_index
    attempt = {"task": task.task_id, "try": instance.try_number, "map_index": index}
    return _report(facet, event, task=_task(attempt, state, event, _began(event)))


def _airflow_run(
    facet: _AirflowFacet, state_facet: _StateFacet, state: RunState, event: _Event
) -> Iterator[TaskRunJson]:
    yield _report(facet, event, run=_run(state, event, facet.dag_run.start_date or _began(event)))
    tasks = state_facet.tasks.items() if state != "running" else ()
    unheard = ((name, task_state) for name, task_state in tasks if task_state in ("upstream_failed", "skipped"))
    for name, task_state in islice(unheard, MAX_TASKS):  # they have no event of their own
        never = {"task": name, "try": 0, "map_index": UNMAPPED}
        yield _report(facet, event, task=_task(never, task_state, event, None))


def _any_run(event: _Event, run: _Run, state: RunState) -> Iterator[TaskRunJson]:
    """Yield the report of a run of the event's own job, and of a task of its parent."""
    if event.job is None or run.run_id is None:
        missing = "job" if event.job is None else "run.runId"
        raise Problem(422, NOT_USED, f"expected {missing}, which names what runs, found none", field=missing)
    name, parent, nominal = event.job.name, run.facets.parent, run.facets.nominal_time
    names = [name, *([] if parent is None else [parent.job.name])]
    if not any(map(_is_dag, names)):
        shown = " or ".join(repr(text[:MAX_SHOWN]) for text in names)
        detail = (
            f"expected a job named by letters, digits, `.`, `-` and `_`, as a definition can name it, found {shown}"
        )
        raise Problem(422, NOT_USED, detail, field="job.name")
    if _is_dag(name):
        yield _own_report(event, nominal, name, run.run_id, run=_run(state, event, _began(event)))
    if parent is not None and _is_dag(parent.job.name):
        task = _NO_NAME.sub("_", name.removeprefix(f"{parent.job.name}."))[:MAX_NAME]
        attempt = {"task": task, "try": 1, "map_index": UNMAPPED}
        reported = _task(attempt, state, event, _began(event))
        yield _own_report(event, nominal, parent.job.name, parent.run.run_id, task=reported)


def _is_dag(name: str) -> bool:
    return len(name) <= MAX_NAME and not _NO_NAME.search(name)


def _began(event: _Event) -> object:
    return event.event_time if event.event_type == "START" else None


def _own_report(
    event: _Event,
    nominal: _NominalTimeFacet,
    dag: str,
    run_id: str,
    *,
    run: RunJson | None = None,
    task: TaskJson | None = None,
) -> TaskRunJson:
    has_interval = nominal.start is not None and nominal.end is not None
    return TaskRunJson.model_validate(
        {
            "dag": dag,
            "run_id": run_id,
            "due_at": nominal.end or nominal.start or event.event_time,
            "interval_start": nominal.start if has_interval else None,
            "interval_end": nominal.end if has_interval else None,
            "run": run,
            "task": task,
        }
    )


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

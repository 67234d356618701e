"""Reports of DAG runs and tasks in JSON, as `lagloss.airflow` sends them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, StrictInt, TypeAdapter, model_validator

from collector.models import Time, validated
from lagloss.wire.format import name_fits
from lagloss_server.model.jobs import DagId
from lagloss_server.runs.dag_runs import UNMAPPED, RunState, TryState
from lagloss_server.runs.run_store import RunReport, StateAt

MAX_REPORTS: Final = 1_000


def _is_text(value: str) -> str:
    if not name_fits(value):
        raise ValueError("expected text in UTF-8 without NUL")
    return value


RunId = Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_is_text)]
Number = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _EventJson(_Strict):
    """`at`: time of the state on the reporter's clock. `ended_at`, for an ended run or task, defaults to `at`."""

    at: Time
    started_at: Time | None = None
    ended_at: Time | None = None


class RunJson(_EventJson):
    state: RunState


class TaskJson(_EventJson):
    task: DagId
    try_number: Number = Field(default=1, alias="try")
    map_index: Annotated[StrictInt, Field(ge=UNMAPPED, lt=1 << 31)] = UNMAPPED
    state: TryState


class TaskRunJson(_Strict):
    """State of a run, of a task attempt in it, or of both. `due_at`: the end of the data interval, the logical date, or
    the planned start."""

    dag: DagId
    run_id: RunId
    due_at: Time
    interval_start: Time | None = None
    interval_end: Time | None = None
    run: RunJson | None = None
    task: TaskJson | None = None

    @model_validator(mode="after")
    def _says_something(self) -> TaskRunJson:
        if self.run is None and self.task is None:
            raise ValueError("expected run or task, found neither")
        if (self.interval_start is None) != (self.interval_end is None):
            raise ValueError("expected both interval_start and interval_end, or neither")
        return self


class TaskRunsJson(_Strict):
    """Reports of any DAGs; those of DAGs that are in no definition are counted and ignored."""

    reports: Annotated[list[TaskRunJson], Field(min_length=1, max_length=MAX_REPORTS), FailFast()]


_REPORTS: Final = TypeAdapter(TaskRunsJson)


class Recorded(Struct):
    """Response to reports: how many were stored, and how many were ignored since their DAGs are in no definition."""

    accepted: int
    ignored: int


def read_reports(body: bytes) -> list[RunReport]:
    """Return the reports in a body; raise a Problem (422) that names position and field if it is malformed."""
    reports = validated(_REPORTS, body, "reports", "report", "reports")
    return [as_report(report) for report in reports.reports]


def as_report(report: TaskRunJson) -> RunReport:
    """Return the report in the form that is stored."""

    def event(task: RunJson | TaskJson | None) -> StateAt | None:
        if task is None:
            return None
        started = None if task.started_at is None else int(task.started_at)
        ended = int(task.at if task.ended_at is None else task.ended_at)
        return StateAt(task.state, int(task.at), started, None if task.state in ("queued", "running") else ended)

    interval = None
    if report.interval_start is not None and report.interval_end is not None:
        interval = int(report.interval_start), int(report.interval_end)
    return RunReport(
        dag=report.dag,
        run_id=report.run_id,
        due_ms=int(report.due_at),
        interval=interval,
        run=event(report.run),
        task=report.task.task if report.task else None,
        try_number=report.task.try_number if report.task else 0,
        map_index=report.task.map_index if report.task else UNMAPPED,
        task_event=event(report.task),
    )

"""DAG runs and tries of tasks in PostgreSQL: reports of them, in any order and repeated, and reading them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Row, Text, case, func, select, true, tuple_
from sqlalchemy.dialects.postgresql import Insert, insert

from lagloss_server.model.jobs import JobSpec
from lagloss_server.runs.dag_runs import UNMAPPED, DagRun, RunState, TaskTry, TryState
from lagloss_server.store.schema.core import is_any, rows_of, table_of
from lagloss_server.store.schema.runs import DagRunRow, TaskTryRow
from lagloss_server.store.store import Store

_RUN: Final = table_of(DagRunRow)
_TRY: Final = table_of(TaskTryRow)
RUN_KEY: Final = ("pipeline", "dag", "run_id")
TRY_KEY: Final = (*RUN_KEY, "task", "map_index", "try_number")
MAX_RUNS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StateAt:
    """State of something at a moment `at_ms` of the reporter's clock; times in epoch ms."""

    state: str
    at_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """A report of a run: its own state (`run`), or that of one try of a task of it. `due_ms`, `interval`: as in
    `JobSpec.span_of`."""

    dag: str
    run_id: str
    due_ms: int
    interval: tuple[int, int] | None = None
    run: StateAt | None = None
    task: str | None = None
    try_number: int = 0
    map_index: int = UNMAPPED
    task_event: StateAt | None = None


def record(connection: Connection, reports: Iterable[tuple[str, RunReport]]) -> None:
    """Store reports, each of a pipeline. What was reported last, by the reporter's clock, holds, in whatever order
    reports come in and however often."""
    ordered = sorted(reports, key=lambda item: (item[0], item[1].dag, item[1].run_id))  # locks in one order
    runs = [_run_values(pipeline, report) for pipeline, report in ordered]
    tries = [_try_values(pipeline, report) for pipeline, report in ordered if report.task_event is not None]
    tries.sort(key=lambda values: tuple(values[name] for name in TRY_KEY))
    if runs:
        connection.execute(_upsert_run(), runs)
    if tries:
        connection.execute(_upsert_try(), tries)


def _run_values(pipeline: str, report: RunReport) -> dict[str, Any]:
    # a task that runs says that its run does; any report of the run itself is newer
    event = report.run or StateAt("running", 0)
    start, end = report.interval or (None, None)
    return {
        "pipeline": pipeline,
        "dag": report.dag,
        "run_id": report.run_id,
        "due_at": report.due_ms,
        "interval_start": start,
        "interval_end": end,
        "state": event.state,
        "started_at": event.started_ms,
        "ended_at": event.ended_ms,
        "failed_at": event.ended_ms if event.state == "failed" else None,
        "reported_at": event.at_ms,
    }


def _try_values(pipeline: str, report: RunReport) -> dict[str, Any]:
    event = report.task_event
    assert event is not None
    return {
        "pipeline": pipeline,
        "dag": report.dag,
        "run_id": report.run_id,
        "task": report.task,
        "map_index": report.map_index,
        "try_number": report.try_number,
        "due_at": report.due_ms,
        "state": event.state,
        "started_at": event.started_ms,
        "ended_at": event.ended_ms,
        "reported_at": event.at_ms,
    }


def _upsert_run() -> Insert:
    """Merge by functions that do not depend on the order: the newest, the greatest and the least."""
    new = insert(_RUN)
    new_values = new.excluded
    return new.on_conflict_do_update(
        index_elements=RUN_KEY,
        set_={
            **_newest(_RUN.c, new_values, "state", "ended_at", "reported_at"),
            "due_at": func.least(_RUN.c.due_at, new_values.due_at),
            "interval_start": func.least(_RUN.c.interval_start, new_values.interval_start),
            "interval_end": func.least(_RUN.c.interval_end, new_values.interval_end),
            "started_at": func.greatest(_RUN.c.started_at, new_values.started_at),  # a run that is cleared starts again
            "failed_at": func.least(_RUN.c.failed_at, new_values.failed_at),
        },
    )


def _upsert_try() -> Insert:
    new = insert(_TRY)
    new_values = new.excluded
    return new.on_conflict_do_update(
        index_elements=TRY_KEY,
        set_={
            **_newest(_TRY.c, new_values, "state", "ended_at", "reported_at"),
            "started_at": func.least(
                _TRY.c.started_at, new_values.started_at
            ),  # a deferred task is started several times
        },
    )


def _newest(stored: Any, column: Any, *names: str) -> Mapping[str, Any]:
    """Return these columns of the report that is newer; of two of one moment, of the one that says that it ended."""

    def rank(state: Any) -> Any:
        return tuple_(state.reported_at, state.ended_at.is_not(None), state.state)

    is_newer = rank(column) >= rank(stored)
    return {name: case((is_newer, column[name]), else_=_column(stored, name)) for name in names}


def _column(stored: Any, name: str) -> Column[Any]:
    column: Column[Any] = stored[name]
    return column


def read_runs(
    store: Store,
    pipeline: str,
    jobs: Sequence[JobSpec],
    from_s: float = 0,
    to_s: float | None = None,
    *,
    limit: int = MAX_RUNS,
    run_id: str | None = None,
) -> list[DagRun]:
    """Return the runs of these jobs of a pipeline that are due with from <= due < to, the newest `limit` of each job,
    oldest first; or those of one name."""
    with store.engine.connect() as connection:
        return read_runs_by(connection, pipeline, jobs, from_s, to_s, limit=limit, run_id=run_id)


def read_runs_by(
    connection: Connection,
    pipeline: str,
    jobs: Sequence[JobSpec],
    from_s: float = 0,
    to_s: float | None = None,
    *,
    limit: int = MAX_RUNS,
    run_id: str | None = None,
) -> list[DagRun]:
    """Read the same by a connection."""
    of_dag = {job.dag: job for job in jobs}
    if not of_dag:
        return []
    dags = rows_of(((dag,) for dag in of_dag), dag=Text())
    chosen = [_RUN.c.pipeline == pipeline, _RUN.c.dag == dags.c.dag, _RUN.c.due_at >= int(from_s * 1_000)]
    if to_s is not None:
        chosen.append(_RUN.c.due_at < int(to_s * 1_000))
    if run_id is not None:
        chosen.append(_RUN.c.run_id == run_id)
    # lateral: each DAG ends its walk along the index at its own limit
    newest = select(_RUN).where(*chosen).order_by(_RUN.c.due_at.desc()).limit(limit).lateral("newest")
    rows = connection.execute(select(newest).select_from(dags.join(newest, true())).order_by(newest.c.due_at)).all()
    if not rows:
        return []
    tries: dict[tuple[str, str], list[TaskTry]] = {}
    names = {row.run_id for row in rows}
    query = select(_TRY).where(_TRY.c.pipeline == pipeline, is_any(_TRY.c.dag, of_dag), is_any(_TRY.c.run_id, names))
    for row in connection.execute(query.order_by(_TRY.c.started_at.nulls_last(), _TRY.c.task, _TRY.c.map_index)):
        tries.setdefault((row.dag, row.run_id), []).append(_try(row))
    return [_dag_run(row, of_dag[row.dag], tries.get((row.dag, row.run_id), ())) for row in rows]


def _try(row: Row[Any]) -> TaskTry:
    state: TryState = row.state
    return TaskTry(row.task, row.try_number, state, row.started_at, row.ended_at, row.map_index)


def _dag_run(row: Row[Any], job: JobSpec, tries: Iterable[TaskTry]) -> DagRun:
    state: RunState = row.state
    interval = None if row.interval_start is None else (row.interval_start, row.interval_end)
    return DagRun(
        row.dag,
        row.run_id,
        state,
        row.due_at,
        job.span_of(row.due_at, interval),
        row.started_at,
        row.ended_at,
        row.failed_at,
        tuple(tries),
    )

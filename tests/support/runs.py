"""A job of a pipeline and a run of it whose publication failed, in memory and in a database."""

from __future__ import annotations

from lagloss_server.model.definition import Definition
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.runs.dag_runs import DagRun, TaskTry, TryState
from lagloss_server.runs.run_store import RunReport, StateAt, record
from lagloss_server.store.store import Store

NOON_S = 1_795_694_400
JOB = JobSpec.model_validate({"dag": "scores", "task": "spark", "deadline": "20m"})
TRIES: tuple[tuple[str, int, TryState, float, float | None], ...] = (
    ("spark", 1, "success", 0, 6),
    ("publish", 1, "failed", 6, 7),
    ("publish", 2, "failed", 9, 10),
)
"""Task, try, state, and from when to when in minutes after the hour."""


def failed_run(to_s: int = NOON_S) -> DagRun:
    """The run of the hour that ends then; it failed after ten minutes."""
    tries = [
        TaskTry(task, number, state, _ms(to_s, begin), None if end is None else _ms(to_s, end))
        for task, number, state, begin, end in TRIES
    ]
    end_ms = _ms(to_s, 10)
    never = TaskTry("notify", 0, "upstream_failed")
    start_ms = _ms(to_s, 0)
    return DagRun(
        "scores", "r-1", "failed", start_ms, TimeRange(to_s - 3_600, to_s), start_ms, end_ms, end_ms, (*tries, never)
    )


def store_failed_run(store: Store, pipeline: str, to_s: int) -> None:
    """Give a pipeline the job, and the run as it is reported."""
    definition = store.pipeline(pipeline).definition
    spec = definition.spec.model_copy(update={"jobs": (JOB,)})
    store.apply(
        Definition.model_validate(definition.model_copy(update={"spec": spec}).model_dump(by_alias=True, mode="json"))
    )
    due_ms, hour = _ms(to_s, 0), (_ms(to_s, -60), _ms(to_s, 0))
    ended = StateAt("failed", _ms(to_s, 10), due_ms, _ms(to_s, 10))
    reports = [RunReport("scores", "r-1", due_ms, hour, run=ended)]
    for task, number, state, begin, end in TRIES:
        event = StateAt(state, _ms(to_s, end or begin), _ms(to_s, begin), None if end is None else _ms(to_s, end))
        reports.append(RunReport("scores", "r-1", due_ms, hour, task=task, try_number=number, task_event=event))
    with store.engine.begin() as connection:
        record(connection, [(pipeline, report) for report in reports])


def _ms(to_s: int, minutes: float) -> int:
    return round(1_000 * (to_s + 60 * minutes))

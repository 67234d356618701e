"""Facts of Airflow's objects that reports are made of. Reads attributes, imports nothing of Airflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any


def run_report(dag_run: Any, state: str) -> dict[str, Any]:
    """Return the report that a DAG run is in this state."""
    started, ended = dag_run.start_date, dag_run.end_date
    moment = started if state == "running" else ended
    event = {"state": state, "at": _text(moment or _now()), "started_at": _text(started)}
    return {**_run_of(dag_run), "run": _given(event | ({} if state == "running" else {"ended_at": _text(ended)}))}


def task_report(task_instance: Any, state: str) -> dict[str, Any]:
    """Return the report that a try of a task is in this state, from Airflow's runtime or from its database."""
    dag_run = getattr(task_instance, "dag_run", None) or task_instance.get_template_context()["dag_run"]
    started, ended = task_instance.start_date, getattr(task_instance, "end_date", None)
    moment = started if state == "running" else ended
    event = {
        "task": task_instance.task_id,
        "try": task_instance.try_number,
        "map_index": -1 if task_instance.map_index is None else task_instance.map_index,
        "state": state,
        "at": _text(moment or _now()),
        "started_at": _text(started),
    }
    return {**_run_of(dag_run), "task": _given(event)}


def span_of(dag_run: Any, span: timedelta) -> tuple[datetime, datetime]:
    """Return the event time that a run processes: its data interval, or the whole span before its date if that is
    shorter than a minute. As a job in a pipeline's definition does, whose `span` is to be the same."""
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if start is not None and end is not None and end - start >= timedelta(minutes=1):
        return start, end
    length = span.total_seconds()
    to = datetime.fromtimestamp(_due(dag_run).timestamp() // length * length, UTC)
    return to - span, to


def _run_of(dag_run: Any) -> dict[str, Any]:
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    return _given(
        {
            "dag": dag_run.dag_id,
            "run_id": dag_run.run_id,
            "due_at": _text(_due(dag_run)),
            "interval_start": None if end is None else _text(start),
            "interval_end": None if start is None else _text(end),
        }
    )


def _due(dag_run: Any) -> datetime:
    """Return a run's date. A run that was triggered by hand or by an asset may have no logical date."""
    moments = (dag_run.data_interval_end, dag_run.logical_date, getattr(dag_run, "run_after", None), dag_run.start_date)
    due: datetime = next((moment for moment in moments if moment is not None), None) or _now()
    return due


def _now() -> datetime:
    return datetime.now(UTC)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}

"""Jobs of a pipeline: DAGs of Airflow whose runs each process a span of its event time."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator

from lagloss_server.base.fields import DurationMs, Name, PositiveMs, Strict, like
from lagloss_server.model.time_range import TimeRange

MINUTE_MS: Final = 60_000
DagId = Annotated[str, like(r"^[\w.-]+$", "text of letters, digits, `.`, `-` and `_`", max_length=250)]
"""As Airflow allows it, for DAGs and for tasks (`group.task`)."""


def _whole_minutes(ms: int) -> int:
    if ms <= 0 or ms % MINUTE_MS:
        raise ValueError(f"expected a duration in whole minutes, found {ms}ms")
    return ms


class JobSpec(Strict):
    """A DAG. `span`: the event time that a run without a data interval processes, up to its date, rounded down to a
    multiple of the span; also how often a result is expected. `deadline`: time after the end of its span by which a run
    must have succeeded. `node`: the node whose work it does. `task`: the task that does that work; failures of
    later tasks are reported separately."""

    dag: DagId
    span: Annotated[DurationMs, AfterValidator(_whole_minutes)] = 3_600_000
    deadline: PositiveMs | None = None
    node: Name | None = None
    task: DagId | None = None

    def span_of(self, due_ms: int, interval: tuple[int, int] | None) -> TimeRange:
        """Return the event time that a run processes: whole minutes.

        Args:
            due_ms: its date: the end of its data interval, or when it was to run.
            interval: its data interval in epoch ms. One shorter than a minute counts as none; Airflow 3 gives
                cron schedules an empty one by default.
        """
        if interval is not None and interval[1] - interval[0] >= MINUTE_MS:
            from_ms, to_ms = interval
        else:
            to_ms = due_ms // self.span * self.span
            from_ms = to_ms - self.span
        return TimeRange(from_ms // MINUTE_MS * 60, to_ms // MINUTE_MS * 60)

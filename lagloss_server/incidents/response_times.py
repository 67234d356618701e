"""Times to acknowledge and to repair (MTTA and MTTR) of incidents, by severity and rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Final

from sqlalchemy import ColumnElement, func, select

from lagloss_server.incidents.changes import change_table
from lagloss_server.incidents.incident import Incident, incident_table
from lagloss_server.model.canary import CANARY
from lagloss_server.store.store import Store

NO_REPAIRS: Final = frozenset({"revised", "expired", "deleted", "rule removed"})
"""Why incidents end without a repair. They count, but not in the time to repair."""


@dataclass(frozen=True, slots=True)
class Course:
    """When an incident was opened, first acknowledged and last resolved; None where it was not. Reopened, it is one:
    from its first opening to its last end."""

    severity: str
    rule: str
    opened_at: datetime
    acknowledged_at: datetime | None
    resolved_at: datetime | None
    resolved_because: str | None

    @property
    def is_repaired(self) -> bool:
        return self.resolved_at is not None and self.resolved_because not in NO_REPAIRS


@dataclass(frozen=True, slots=True)
class Times:
    """Numbers of incidents, and times of those that have them, in s; None of none."""

    incidents: int
    acknowledged: int
    repaired: int
    revised: int
    mean_to_acknowledge_s: float | None
    median_to_acknowledge_s: float | None
    mean_to_resolve_s: float | None
    median_to_resolve_s: float | None

    @classmethod
    def of(cls, courses: Sequence[Course]) -> Times:
        taken = [(c.acknowledged_at - c.opened_at).total_seconds() for c in courses if c.acknowledged_at]
        ended = [(c.resolved_at - c.opened_at).total_seconds() for c in courses if c.resolved_at and c.is_repaired]
        return cls(
            incidents=len(courses),
            acknowledged=len(taken),
            repaired=len(ended),
            revised=sum(c.resolved_because == "revised" for c in courses),
            mean_to_acknowledge_s=_or_none(fmean, taken),
            median_to_acknowledge_s=_or_none(median, taken),
            mean_to_resolve_s=_or_none(fmean, ended),
            median_to_resolve_s=_or_none(median, ended),
        )

    def document(self) -> dict[str, float | None]:
        return asdict(self)


def courses(store: Store, from_s: float, to_s: float, *chosen: ColumnElement[bool]) -> list[Course]:
    """Return the courses of incidents opened in [from_s, to_s), oldest first, of pipelines that are listed; `chosen`: a
    condition on their rows."""
    opened, listed = incident_table.c.opened_at, incident_table.c.pipeline != CANARY
    return _courses(store, listed, opened >= _utc(from_s), opened < _utc(to_s), *chosen)


def overlapping_courses(store: Store, pipeline: str, from_s: float, to_s: float) -> list[Course]:
    """Return the courses of a pipeline's incidents that began before `to_s` and had not ended before `from_s`, oldest
    first."""
    row = incident_table.c
    lasted = (row.state == "open") | (row.resolved_at >= _utc(from_s))
    return _courses(store, row.pipeline == pipeline, row.first_window < to_s, lasted)


def _courses(store: Store, *chosen: ColumnElement[bool]) -> list[Course]:
    row, change = incident_table, change_table
    # acknowledged_at of a reopened incident is that of its newest opening; the changes have the first
    first = (
        select(func.min(change.c.at))
        .where(change.c.incident_id == row.c.id, change.c.change == "acknowledged")
        .scalar_subquery()
    )
    statement = (
        select(
            row.c.severity,
            row.c.rule,
            row.c.opened_at,
            func.coalesce(first, row.c.acknowledged_at).label("acknowledged_at"),
            row.c.resolved_at,
            row.c.detail["resolved_because"].astext.label("because"),
            row.c.state,
        )
        .where(*chosen)
        .order_by(row.c.opened_at)
    )
    with store.engine.connect() as connection:
        return [
            Course(row.severity, row.rule, row.opened_at, row.acknowledged_at, row.resolved_at, row.because)
            if row.state == "resolved"
            else Course(row.severity, row.rule, row.opened_at, row.acknowledged_at, None, None)
            for row in connection.execute(statement)
        ]


def by(key: Callable[[Course], str], courses_: Iterable[Course]) -> dict[str, Times]:
    """Return the times of each group, by its name."""
    groups: dict[str, list[Course]] = {}
    for course in courses_:
        groups.setdefault(key(course), []).append(course)
    return {name: Times.of(groups[name]) for name in sorted(groups)}


def time_to_repair_s(incident: Incident) -> float | None:
    """Return how long an incident took until its repair; None while it is open, and of one that ended otherwise."""
    ended = incident.resolved_at if not incident.is_open else None
    if ended is None or incident.resolved_because in NO_REPAIRS:
        return None
    return (ended - incident.opened_at).total_seconds()


def _or_none(average: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return average(values) if values else None


def _utc(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)

"""Incidents in PostgreSQL: one row each, and a row for everything that happened to it. Statements only."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, insert, select, text, update

from alerting.judging import KnownIncident
from alerting.message import IncidentFacts
from lagloss.alert_tables import Incident
from lagloss.incident_changes import note_change
from lagloss.incidents import Withheld
from lagloss.tables import table_of
from lagloss.wire import WINDOW_S

_FACTS: Final = tuple(name for name in IncidentFacts.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Written:
    """An incident's row. `withheld`: why nobody is told of it at the moment."""

    facts: IncidentFacts
    withheld: Withheld | None

    @property
    def is_open(self) -> bool:
        return self.facts.state == "open"

    def known(self) -> KnownIncident:
        """What judging needs of it."""
        resolved = self.facts.resolved_at
        breaches = frozenset(expanded(self.facts.detail["breaches"]))
        return KnownIncident(self.facts.id, self.facts.worst, breaches, resolved.timestamp() if resolved else None)


def lock(connection: Connection, pipeline: str) -> datetime:
    """Takes the pipeline's incidents for this transaction: should two alerters ever believe that they lead, they take
    turns and see each other's rows. Returns the database's time after that, which all writers share."""
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '10s'"))
    take_turn(connection, pipeline)
    now: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now.astimezone(UTC)


def take_turn(connection: Connection, pipeline: str) -> None:
    """Waits until no other transaction holds the pipeline's incidents, and holds them. Who takes several takes them in
    the order of their names."""
    connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"), {"key": f"lagloss-incidents/{pipeline}"}
    )


def read(connection: Connection, pipeline: str, horizon_s: int) -> list[Written]:
    """Open incidents of the pipeline, and resolved ones that reach into windows at or after `horizon_s`; the newest
    resolved first. Locked: whoever acknowledges one meanwhile waits, and is not overwritten."""
    table = table_of(Incident)
    rows = connection.execute(
        select(table)
        .where(table.c.pipeline == pipeline, (table.c.state == "open") | (table.c.last_window >= horizon_s))
        .order_by(table.c.resolved_at.desc())
        .with_for_update()
    )
    return [_written(row) for row in rows]


def open_incidents(connection: Connection) -> list[Written]:
    """All that are open, of whatever pipeline."""
    table = table_of(Incident)
    return [_written(row) for row in connection.execute(select(table).where(table.c.state == "open"))]


def write(connection: Connection, facts: IncidentFacts, change: str, at: datetime, note: str = "") -> None:
    """The row as it is from now on (a new one if there is none), and what happened to it."""
    values = {name: getattr(facts, name) for name in _FACTS}
    changed = connection.execute(update(table_of(Incident)).where(Incident.id == facts.id).values(**values))
    if not changed.rowcount:
        connection.execute(insert(Incident).values(**values))
    note_change(connection, facts, change, at, note=note)


def withhold(connection: Connection, incident: uuid.UUID, why: Withheld | None) -> None:
    columns = ("kind", "ref", "by", "reason")
    values = {f"withheld_{name}": None if why is None else getattr(why, name) for name in columns}
    connection.execute(update(table_of(Incident)).where(Incident.id == incident).values(**values))


def _written(row: Row[Any]) -> Written:
    return Written(IncidentFacts(**{name: getattr(row, name) for name in _FACTS}), Withheld.of_row(row))


def ranges(windows: Iterable[int]) -> list[list[int]]:
    """Window starts (epoch s) as [[first, last], ...] of windows without a gap."""
    found: list[list[int]] = []
    for start in sorted(windows):
        if found and start == found[-1][1] + WINDOW_S:
            found[-1][1] = start
        else:
            found.append([start, start])
    return found


def expanded(stored: Sequence[Sequence[int]]) -> Iterable[int]:
    """The windows of such ranges."""
    return (start for first, last in stored for start in range(first, last + 1, WINDOW_S))

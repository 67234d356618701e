"""What happens to incidents, as it is written down and read: opened, acknowledged, withheld, resolved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Connection, insert, select

from lagloss import alert_tables
from lagloss.store import Store
from lagloss.tables import table_of
from lagloss.times import moment

change_table = table_of(alert_tables.IncidentChange)


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to an incident; `by` None: the alerter did it."""

    at: datetime
    change: str
    by: str | None
    note: str | None
    value: float
    worst: float

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "at": moment(self.at)}


class Numbers(Protocol):
    """What a change keeps of an incident as it was then: a row of `incident` has it."""

    @property
    def id(self) -> UUID: ...
    @property
    def value(self) -> float: ...
    @property
    def worst(self) -> float: ...
    @property
    def first_window(self) -> int: ...
    @property
    def last_window(self) -> int: ...


def note_change(
    connection: Connection,
    incident: Numbers,
    change: str,
    at: datetime,
    *,
    by: str | None = None,
    note: str | None = None,
) -> None:
    """Writes down that something happened to an incident; `by` None: the alerter did it."""
    connection.execute(
        insert(change_table).values(
            incident_id=incident.id,
            at=at,
            change=change,
            by=by,
            note=note or None,
            value=incident.value,
            worst=incident.worst,
            first_window=incident.first_window,
            last_window=incident.last_window,
        )
    )


def changes(store: Store, incident_id: UUID) -> list[Change]:
    """What happened to an incident, oldest first."""
    table = change_table
    asked = select(table).where(table.c.incident_id == incident_id).order_by(table.c.id)
    with store.engine.connect() as connection:
        return [Change(row.at, row.change, row.by, row.note, row.value, row.worst) for row in connection.execute(asked)]

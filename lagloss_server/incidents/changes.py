"""Changes of incidents, from opened to resolved, as they are noted and read; the record of one with its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from sqlalchemy import Connection, insert, select

from lagloss.wire.format import WINDOW_S
from lagloss_server.base.times import moment
from lagloss_server.incidents.deliveries import Delivery, deliveries
from lagloss_server.incidents.incident import Incident, incident
from lagloss_server.incidents.repairs import RepairRecord, read_repair_records
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

change_table = table_of(alert_tables.IncidentChangeRow)


class ChangeDocument(TypedDict):
    """An event of an incident: see `IncidentChange`."""

    at: str | None
    change: str
    by: str | None
    note: str | None
    value: float
    worst: float


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """An event of an incident; `by` None: caused by the alerter."""

    at: datetime
    change: str
    by: str | None
    note: str | None
    value: float
    worst: float

    def document(self) -> ChangeDocument:
        return {
            "at": moment(self.at),
            "change": self.change,
            "by": self.by,
            "note": self.note,
            "value": self.value,
            "worst": self.worst,
        }


def note_change(
    connection: Connection,
    incident: Incident,
    change: str,
    changed_at: datetime,
    *,
    by: str | None = None,
    note: str | None = None,
) -> None:
    """Write down that something happened to an incident; `by` None: the alerter did it."""
    connection.execute(
        insert(change_table).values(
            incident_id=incident.id,
            at=changed_at,
            change=change,
            by=by,
            note=note or None,
            value=incident.value,
            worst=incident.worst,
            first_window=incident.first_window_s,
            last_window=incident.last_window_s,
        )
    )


def changes(store: Store, incident_id: UUID) -> list[IncidentChange]:
    """Return the changes of an incident, oldest first."""
    table = change_table
    statement = select(table).where(table.c.incident_id == incident_id).order_by(table.c.id)
    with store.engine.connect() as connection:
        return [
            IncidentChange(row.at, row.change, row.by, row.note, row.value, row.worst)
            for row in connection.execute(statement)
        ]


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """An incident with its changes, its deliveries and the repairs of its windows, oldest first: what `show` and its
    page add to `Incident`."""

    incident: Incident
    changes: Sequence[IncidentChange]
    deliveries: Sequence[Delivery]
    repairs: Sequence[RepairRecord] = ()

    def document(self, dashboard_url: str) -> dict[str, Any]:
        """Return what `lagloss alerts show --json` prints."""
        return {
            **self.incident.details(dashboard_url),
            "changes": [change.document() for change in self.changes],
            "deliveries": [delivery.document() for delivery in self.deliveries],
            "repairs": [repair.document() for repair in self.repairs],
        }


def read_record(store: Store, prefix: str) -> IncidentRecord:
    """Read the record of the one incident whose id begins so.

    Raises:
        UnknownIncident: no id begins so.
        AmbiguousIncident: several do.
    """
    incident_ = incident(store, prefix)
    first_s, last_s = incident_.first_window_s, incident_.last_window_s
    repairs = read_repair_records(store, incident_.pipeline, first_s, last_s + WINDOW_S)
    return IncidentRecord(incident_, changes(store, incident_.id), deliveries(store, incident_.id), repairs)

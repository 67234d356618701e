"""Rows of incidents and what goes with them, for tests of what reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, insert

from lagloss_server.store.ownership import ALERTING
from lagloss_server.store.schema.alerting import (
    IncidentChangeRow,
    IncidentRow,
    OutboxMessageRow,
    ReceiverRow,
)
from lagloss_server.store.schema.ownership import LeaseRow

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIRST = int(NOON.timestamp()) - 180
"""Start of the first window that breached, for what was opened at noon."""
WHERE = {"kind": "link", "name": "src->mid", "share": 0.98, "text": "94 lost, 98% of the loss", "lost": 94}
EXAMPLE = {
    "message_id": "m-1",
    "id_hash": "0f1e2d3c4b5a6978",
    "kind": "lost",
    "places": ["link src->mid"],
    "last_checkpoint": "src.out",
    "last_seen": "2026-11-21T11:57:12Z",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "span_id": "00f067aa0ba902b7",
    "trace_url": "https://traces.example/4bf92f3577b34da6a3ce929d0e0e4736",
}


def detail_of(**of: Any) -> dict[str, Any]:
    """The column `detail` of an incident of loss, as alerting writes it."""
    return {
        "where": [],
        "destinations": [],
        "examples": [],
        "messages": None,
        "lost": None,
        "blame": None,
        "breaches": [],
        "what": "loss_ratio",
        "unit": "ratio",
        "text": "3.20% of messages lost, target 1.00%",
        "worst_window": None,
        "windows": 2,
        "notes": [],
        "resolved_because": None,
        **of,
    }


def store_incident(
    connection: Connection,
    *,
    id_: UUID | None = None,
    opened_at: datetime = NOON,
    resolved_at: datetime | None = None,
    because: str | None = None,
    detail: dict[str, Any] | None = None,
    **columns: Any,
) -> UUID:
    """An incident of two windows of loss, with its opening and, where it has one, its end among the changes."""
    id_ = id_ or uuid4()
    first = int(opened_at.timestamp()) - 180
    shown = {"where": [WHERE], "examples": [EXAMPLE]}
    told = detail_of(**{"breaches": [[first, first + 60]], **shown, "resolved_because": because, **(detail or {})})
    row = {
        "pipeline": "chain",
        "rule": "loss",
        "kind": "loss",
        "severity": "critical",
        "state": "open" if resolved_at is None else "resolved",
        "first_window": first,
        "last_window": first + 60,
        "value": 0.032,
        "worst": 0.05,
        "target": 0.01,
    }
    values = {**row, "id": id_, "opened_at": opened_at, "resolved_at": resolved_at, "detail": told, **columns}
    connection.execute(insert(IncidentRow).values(**values))
    store_change(connection, id_, "opened", opened_at)
    if resolved_at is not None:
        store_change(connection, id_, "resolved", resolved_at)
    return id_


def store_change(connection: Connection, incident: UUID, change: str, at: datetime, by: str | None = None) -> None:
    connection.execute(
        insert(IncidentChangeRow).values(
            incident_id=incident,
            at=at,
            change=change,
            by=by,
            value=0.032,
            worst=0.05,
            first_window=FIRST,
            last_window=FIRST + 60,
        )
    )


def store_delivery(
    connection: Connection,
    incident: UUID | None,
    receiver: str = "hook",
    outcome: str | None = "sent",
    *,
    change: str = "opened",
    at: datetime = NOON,
    error: str | None = None,
) -> None:
    """A notification that was done a second after it was queued, or (outcome None) waits."""
    connection.execute(
        insert(OutboxMessageRow).values(
            receiver=receiver,
            incident_id=incident,
            action="trigger",
            change=change,
            group_key="chain",
            body={},
            created_at=at,
            attempts=0 if outcome is None else 1,
            next_attempt_at=at,
            outcome=outcome,
            done_at=None if outcome is None else at + timedelta(seconds=1),
            last_error=error,
        )
    )


def store_receiver(connection: Connection, name: str, kind: str = "webhook") -> None:
    connection.execute(insert(ReceiverRow).values(name=name, kind=kind, is_fallback=False))


def store_leader(connection: Connection, host: str, well_at: datetime) -> None:
    connection.execute(insert(LeaseRow).values(work=ALERTING, owner=f"{host}/1/0", since=well_at, well_at=well_at))

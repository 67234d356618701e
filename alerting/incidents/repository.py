"""Incidents and pending breaches in PostgreSQL. Statements only.

An incident is a row, and each of its changes another. A pending breach is a row of a rule that has begun to breach,
until that is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select, text, update

from alerting.incidents.lifecycle import KnownIncident
from alerting.rules import Rule
from alerting.rules.assessment import PendingBreach
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.changes import note_change
from lagloss_server.incidents.incident import Incident, Withheld
from lagloss_server.store.ownership import Lease
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import is_any, table_of
from lagloss_server.store.store import names_not_deleted

_table = table_of(alert_tables.IncidentRow)
_pending = table_of(alert_tables.PendingBreachRow)


class NotLeading(Exception):
    """Another alerter leads, which may have seen more: nothing of this one is written."""


def known(incident: Incident) -> KnownIncident:
    """Return what the lifecycle needs of it."""
    resolved = incident.resolved_at
    breaches = frozenset(expanded(incident.detail["breaches"]))
    pages = incident.severity == "critical"
    return KnownIncident(incident.id, incident.worst, breaches, resolved.timestamp() if resolved else None, pages)


def by_rule(incidents: Iterable[Incident]) -> dict[str, list[KnownIncident]]:
    """Return what the lifecycle needs of incidents, by their rules."""
    incidents_by_rule: dict[str, list[KnownIncident]] = {}
    for incident in incidents:
        incidents_by_rule.setdefault(incident.rule, []).append(known(incident))
    return incidents_by_rule


def lock(connection: Connection, pipeline: str, lead: Lease | None = None) -> datetime:
    """Lock the pipeline's incidents for this transaction: should two alerters ever believe that they lead, they take
    turns and see each other's rows. Return the database's time after that, which all writers share.

    Raises:
        NotLeading: the `lead` is no longer held. What was assessed before may be older than what its successor wrote.
    """
    take_turn(connection, pipeline)
    if lead is not None and not lead.is_held(connection):
        raise NotLeading("another alerter is the leader")
    return clock(connection)


def clock(connection: Connection) -> datetime:
    """Return the database's time."""
    now: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now.astimezone(UTC)


def take_turn(connection: Connection, pipeline: str) -> None:
    """Wait for the lock on the pipeline's incidents and hold it for the transaction. Callers that lock several
    pipelines must do so in name order (deadlock)."""
    connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"), {"key": f"lagloss-incidents/{pipeline}"}
    )


def read(
    connection: Connection, pipelines: Mapping[str, str | None], horizon_s: int, *, locks: bool = True
) -> dict[str, list[Incident]]:
    """Read open incidents of some pipelines, given with the addresses of their own runbooks, and resolved ones that
    reach into windows at or after `horizon_s`; of each pipeline the newest resolved first. `locks`: their rows are
    locked, so that an acknowledgement waits and is not overwritten."""
    row = _table.c
    query = (
        select(_table)
        .where(is_any(row.pipeline, pipelines), (row.state == "open") | (row.last_window >= horizon_s))
        .order_by(row.resolved_at.desc())
    )
    incidents: dict[str, list[Incident]] = {name: [] for name in pipelines}
    for incident in connection.execute(query.with_for_update() if locks else query):
        incidents[incident.pipeline].append(Incident.of_row(incident, pipelines[incident.pipeline]))
    return incidents


def pipelines_with_open(connection: Connection, among: Iterable[str] | None = None) -> set[str]:
    """Return the names of the pipelines, all or those `among` some, that have open incidents."""
    query = select(_table.c.pipeline).where(_table.c.state == "open")
    return set(connection.execute(query if among is None else query.where(is_any(_table.c.pipeline, among))).scalars())


def write(connection: Connection, incident: Incident, change: str, changed_at: datetime, note: str = "") -> None:
    """Upsert the incident's row, and note the change."""
    values = incident.row()
    changed = connection.execute(update(_table).where(_table.c.id == incident.id).values(**values))
    if not changed.rowcount:
        connection.execute(insert(_table).values(**values))
    note_change(connection, incident, change, changed_at, note=note)


def withhold(connection: Connection, incident: uuid.UUID, why: Withheld | None) -> None:
    columns = ("kind", "ref", "by", "reason")
    values = {f"withheld_{name}": None if why is None else getattr(why, name) for name in columns}
    connection.execute(update(_table).where(_table.c.id == incident).values(**values))


def ranges(windows: Iterable[int]) -> list[list[int]]:
    """Window starts (epoch s) as [[first, last], ...] of windows without a gap."""
    joined: list[list[int]] = []
    for start in sorted(windows):
        if joined and start == joined[-1][1] + WINDOW_S:
            joined[-1][1] = start
        else:
            joined.append([start, start])
    return joined


def expanded(stored: Sequence[Sequence[int]]) -> Iterable[int]:
    """Return the windows of such ranges."""
    return (start for first, last in stored for start in range(first, last + 1, WINDOW_S))


def write_pending(connection: Connection, pipeline: str, begun: Sequence[tuple[Rule, PendingBreach]]) -> None:
    """Replace the pipeline's pending breaches, if they changed."""
    rows = [_pending_row(pipeline, rule, breach) for rule, breach in begun]
    stored = connection.execute(select(_pending).where(_pending.c.pipeline == pipeline)).mappings()
    if {row["rule"]: dict(row) for row in stored} == {row["rule"]: row for row in rows}:
        return
    connection.execute(delete(_pending).where(_pending.c.pipeline == pipeline))
    if rows:
        connection.execute(insert(_pending), rows)


def forget_pending_of_deleted(connection: Connection) -> None:
    """Delete pending breaches of deleted pipelines."""
    connection.execute(delete(_pending).where(_pending.c.pipeline.not_in(names_not_deleted())))


def _pending_row(pipeline: str, rule: Rule, begun: PendingBreach) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "rule": rule.name,
        "kind": rule.kind,
        "severity": rule.severity,
        "breaches": begun.breaches,
        "needed": begun.needed,
        "of": begun.of,
        "first_window": begun.first_s,
        "last_window": begun.last_s,
        "text": rule.text(begun.value),
    }

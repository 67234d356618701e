"""Incidents in PostgreSQL: one row each, and a row for each of its changes. Statements only."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, select, text, update

from alerting.incidents.lifecycle import KnownIncident, Transition, judge
from alerting.rules import Rule
from alerting.rules.assessment import Assessment
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.changes import note_change
from lagloss_server.incidents.incident import Incident, Withheld
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import is_any, table_of

_table = table_of(alert_tables.IncidentRow)


def known(incident: Incident) -> KnownIncident:
    """Return what judging needs of it."""
    resolved = incident.resolved_at
    breaches = frozenset(expanded(incident.detail["breaches"]))
    pages = incident.severity == "critical"
    return KnownIncident(incident.id, incident.worst, breaches, resolved.timestamp() if resolved else None, pages)


def lock(connection: Connection, pipeline: str) -> datetime:
    """Lock the pipeline's incidents for this transaction: should two alerters ever believe that they lead, they take
    turns and see each other's rows. Return the database's time after that, which all writers share."""
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '10s'"))
    take_turn(connection, pipeline)
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
    connection: Connection, pipeline: str, horizon_s: int, runbooks: str | None = None, *, locks: bool = True
) -> list[Incident]:
    """Read open incidents of the pipeline, and resolved ones that reach into windows at or after `horizon_s`; the
    newest resolved first. `locks`: their rows are locked, so that an acknowledgement waits and is not overwritten.
    `runbooks`: its own."""
    row = _table.c
    asked = (
        select(_table)
        .where(row.pipeline == pipeline, (row.state == "open") | (row.last_window >= horizon_s))
        .order_by(row.resolved_at.desc())
    )
    asked = asked.with_for_update() if locks else asked
    return [Incident.of_row(found, runbooks) for found in connection.execute(asked)]


def pipelines_with_open(connection: Connection, among: Iterable[str] | None = None) -> set[str]:
    """Return the names of the pipelines, all or those `among` some, that have open incidents."""
    asked = select(_table.c.pipeline).where(_table.c.state == "open")
    return set(connection.execute(asked if among is None else asked.where(is_any(_table.c.pipeline, among))).scalars())


def judge_by(rule: Rule, assessment: Assessment, incidents: Iterable[Incident], now_s: float) -> Transition | None:
    """Return the next change of a rule's incident, of all `incidents` of its pipeline."""
    of_rule = [incident for incident in incidents if incident.rule == rule.name]
    is_open = next((known(incident) for incident in of_rule if incident.is_open), None)
    resolved = [known(incident) for incident in of_rule if not incident.is_open]
    return judge(rule.higher_is_worse, assessment, is_open, resolved, now_s, may_page=rule.severity == "critical")


def write(connection: Connection, incident: Incident, change: str, at: datetime, note: str = "") -> None:
    """Upsert the incident's row, and note the change."""
    values = incident.row()
    changed = connection.execute(update(_table).where(_table.c.id == incident.id).values(**values))
    if not changed.rowcount:
        connection.execute(insert(_table).values(**values))
    note_change(connection, incident, change, at, note=note)


def withhold(connection: Connection, incident: uuid.UUID, why: Withheld | None) -> None:
    columns = ("kind", "ref", "by", "reason")
    values = {f"withheld_{name}": None if why is None else getattr(why, name) for name in columns}
    connection.execute(update(_table).where(_table.c.id == incident).values(**values))


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
    """Return the windows of such ranges."""
    return (start for first, last in stored for start in range(first, last + 1, WINDOW_S))

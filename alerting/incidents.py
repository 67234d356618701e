"""Incidents in PostgreSQL: what the rule reads, and its change and message written in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from alerting.message import MAX_EXAMPLES, WINDOW_S, IncidentFacts, incident_body
from alerting.rules import RULE, Change, JudgedWindow, OpenIncident, judge
from lagloss.store import MissingMessage, Store, StoredPipeline
from lagloss.tables import Incident, OutboxMessage, Window

HORIZON_S: Final = 86_400
"""Windows older than this open and change nothing: closing last week again must not page anybody tonight."""
_SHOWN_WINDOWS: Final = 15
"""The newest lossy windows of an incident whose documents tell where messages were lost."""

_log = structlog.get_logger("lagloss.alerting")


@dataclass(frozen=True, slots=True)
class Incidents:
    """`notify`: whether anybody is to be told. Where nobody is, incidents are recorded and no message is queued:
    pages of last month must not go out on the day somebody sets a webhook."""

    store: Store
    notify: bool
    dashboard_url: str = ""

    def evaluate(self, pipeline: StoredPipeline, now: datetime | None = None) -> list[str]:
        """Brings the pipeline's incident up to its windows. Returns the changes made, in order."""
        changes = []
        while (change := self._evaluate_once(pipeline, now or datetime.now(UTC))) is not None:
            changes.append(change)
        return changes

    def _evaluate_once(self, pipeline: StoredPipeline, now: datetime) -> str | None:
        horizon_s = int(now.timestamp()) - HORIZON_S
        with self.store.engine.begin() as connection:
            # should two alerters ever believe that they lead, they take turns here and see each other's rows
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"),
                {"key": f"lagloss-incident/{pipeline.name}/{RULE}"},
            )
            row = _open_row(connection, pipeline.name)
            incident = None if row is None else OpenIncident(row.id, row.worst_ratio, _breaches(row))
            windows = _windows(connection, pipeline.name, horizon_s)
            change = judge(windows, incident, _handled(connection, pipeline.name, horizon_s))
            if change is None:
                return None
            self._write(connection, pipeline, row, change, now)
        _log.info(
            f"incident_{change.kind}", pipeline=pipeline.name, worst_ratio=change.worst_ratio, why=change.why or None
        )
        return change.kind

    def _write(
        self, connection: Connection, pipeline: StoredPipeline, row: Row[Any] | None, change: Change, now: datetime
    ) -> None:
        facts = IncidentFacts(
            id=uuid.uuid4() if row is None else row.id,
            pipeline=pipeline.name,
            rule=RULE,
            change=change.kind,
            why=change.why,
            opened_at=now if row is None else row.opened_at,
            resolved_at=now if change.kind == "resolved" else None,
            breaches=change.breaches,
            worst_ratio=change.worst_ratio,
        )
        target = pipeline.definition.spec.sla.loss.max
        body = incident_body(facts, target, *self._evidence(facts), self.dashboard_url)
        # when resolved as revised, none of its windows is lossy any more, and one that becomes so again is news
        still_lossy = {} if change.why == "revised" else change.breaches
        values = {
            "state": body["incident"]["state"],
            "resolved_at": facts.resolved_at,
            "first_window": min(change.breaches),
            "last_window": max(change.breaches),
            "worst_ratio": change.worst_ratio,
            "detail": {
                "breaches": {str(start): ratio for start, ratio in sorted(still_lossy.items())},
                "resolved_because": change.why or None,
                "where": body["where"],
                "examples": body["examples"],
                "target": target,
            },
        }
        if row is None:
            connection.execute(
                insert(Incident).values(
                    id=facts.id, pipeline=facts.pipeline, rule=RULE, opened_at=facts.opened_at, **values
                )
            )
        else:
            connection.execute(update(Incident).where(Incident.id == facts.id).values(**values))
        if self.notify:
            _queue(connection, facts, body)

    def _evidence(self, facts: IncidentFacts) -> tuple[Sequence[dict[str, Any]], list[MissingMessage]]:
        """Documents of the newest lossy windows, oldest first, and messages lost in the newest."""
        starts = sorted(facts.breaches)[-_SHOWN_WINDOWS:]
        documents = [
            document
            for start in starts
            for document in self.store.windows(facts.pipeline, start, start + WINDOW_S)
            if document["lost"] is not None
        ]
        missing = self.store.missing(facts.pipeline, starts[-1], MAX_EXAMPLES)
        return documents, [lost for lost in missing if lost.kind in ("lost", "perhaps")]


def _open_row(connection: Connection, pipeline: str) -> Row[Any] | None:
    table = Incident.__table__
    return connection.execute(
        select(table).where(table.c.pipeline == pipeline, table.c.rule == RULE, table.c.state == "open")
    ).one_or_none()


def _breaches(row: Row[Any]) -> dict[int, float]:
    return {int(start): ratio for start, ratio in row.detail["breaches"].items()}


def _windows(connection: Connection, pipeline: str, horizon_s: int) -> list[JudgedWindow]:
    rows = connection.execute(
        select(Window.window_start, Window.verdict, Window.messages, Window.lost_min, Window.history).where(
            Window.pipeline == pipeline, Window.window_start >= horizon_s
        )
    )
    return [
        JudgedWindow(row.window_start, row.verdict, row.lost_min / row.messages if row.messages else None, row.history)
        for row in rows
    ]


def _handled(connection: Connection, pipeline: str, horizon_s: int) -> set[int]:
    """Starts of the lossy windows of resolved incidents."""
    rows = connection.execute(
        select(Incident.__table__).where(
            Incident.pipeline == pipeline,
            Incident.rule == RULE,
            Incident.state == "resolved",
            Incident.last_window >= horizon_s,
        )
    )
    return {start for row in rows for start in _breaches(row)}


def _queue(connection: Connection, facts: IncidentFacts, body: dict[str, Any]) -> None:
    """Adds the message. One of an update that nobody has tried to send yet is out of date now and goes."""
    connection.execute(
        delete(OutboxMessage).where(
            OutboxMessage.incident_id == facts.id,
            OutboxMessage.change == "updated",
            OutboxMessage.attempts == 0,
            OutboxMessage.sent_at.is_(None),
            OutboxMessage.failed_at.is_(None),
        )
    )
    connection.execute(
        insert(OutboxMessage).values(
            incident_id=facts.id, change=facts.change, body=body, next_attempt_at=func.clock_timestamp()
        )
    )

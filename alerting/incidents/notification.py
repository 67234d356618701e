"""Notification of one incident to one receiver, or a report for it, as it lies in the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

Action = Literal["trigger", "update", "refresh", "acknowledge", "resolve", "test", "report"]
"""Action of the receiver: `trigger` an incident (also when it was reopened or escalated, and as a reminder), `update`
an open one, `refresh` one that is still open (only for receivers that expire alerts), `acknowledge` or `resolve` it. A
`test` is no incident, nor is a `report`, which the dashboard queues."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """`key` is the same at every attempt, and no other has it. `body` is `alerting.incidents.body.incident_body`'s; of
    a report, that of `dashboard.reports.schedule.receivers`. `claimed_at`: when this attempt was claimed, by the
    database's clock, which the host's may disagree with."""

    key: UUID
    action: Action
    body: Document
    claimed_at: datetime

    @property
    def dedup_key(self) -> str:
        """The incident's id, equal in all its notifications."""
        return str(self.body["incident"]["id"])

"""Notification of one incident to one receiver, as it lies in the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["trigger", "update", "refresh", "acknowledge", "resolve", "test"]
"""Action of the receiver: `trigger` an incident (also when it was reopened or escalated, and as a reminder), `update`
an open one, `refresh` one that is still open (only for receivers that expire alerts), `acknowledge` or `resolve` it. A
`test` is no incident."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """`id` is the same at every attempt. `body` is `alerting.incidents.body.incident_body`'s."""

    id: int
    action: Action
    body: Document

    @property
    def dedup_key(self) -> str:
        """The incident's id, equal in all its notifications."""
        return str(self.body["incident"]["id"])

"""A notification: what one receiver is told of one incident, as it lies in the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["trigger", "update", "refresh", "acknowledge", "resolve", "test"]
"""What the receiver is to do: `trigger` an incident (also when it was reopened or escalated, and as a reminder), know
more of an open one (`update`), hear that it is still open (`refresh`, only to receivers that forget), know that
somebody took it (`acknowledge`), end it (`resolve`). A `test` is no incident."""

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

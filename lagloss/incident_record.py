"""All there is of one incident, as `lagloss alerts show` and the dashboard tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lagloss.deliveries import Delivery, deliveries
from lagloss.incident_changes import Change, changes
from lagloss.incidents import Incident, incident
from lagloss.store import Store


@dataclass(frozen=True, slots=True)
class Record:
    """An incident, what happened to it, and what was sent of it; oldest first."""

    incident: Incident
    changes: Sequence[Change]
    deliveries: Sequence[Delivery]

    def document(self, dashboard_url: str) -> dict[str, Any]:
        """As `lagloss alerts show --json` prints it."""
        return {
            **self.incident.document(),
            "examples": self.incident.examples,
            "notes": self.incident.notes,
            "links": self.incident.links(dashboard_url),
            "changes": [change.document() for change in self.changes],
            "deliveries": [delivery.document() for delivery in self.deliveries],
        }


def read_record(store: Store, prefix: str) -> Record:
    """Of the one incident whose id begins so.

    Raises:
        UnknownIncident: none does.
        AmbiguousIncident: several do.
    """
    found = incident(store, prefix)
    return Record(found, changes(store, found.id), deliveries(store, found.id))

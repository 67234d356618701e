"""Body of a notification: one versioned JSON document with breach, start, places and commands.

It is built from an incident's row alone, so that a message can be built at any time without reading a window again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import Incident
from lagloss_server.model.window import rfc3339

VERSION: Final = 1

Document = dict[str, Any]
_SHOWN: Final = ("since", "windows", "where", "destinations", "blame", "examples", "notes", "links")
"""What receivers get of an incident's own document as it is."""


def incident_body(incident: Incident, change: str, labels: Mapping[str, str], dashboard_url: str) -> Document:
    """Lay out an incident's document for receivers.

    `labels`: of the definition's metadata; `change`: the change that is notified.
    """
    document, detail = incident.details(dashboard_url), incident.detail
    named = ("id", "pipeline", "rule", "kind", "severity", "state")
    dated = ("opened_at", "resolved_at", "resolved_because", "acknowledged_at", "acknowledged_by")
    worst_s = incident.worst_window_s
    return {
        "version": VERSION,
        "type": f"incident.{change}",
        "summary": _summary(incident),
        "incident": {
            **{name: document[name] for name in named},
            "labels": dict(labels),
            **{name: document[name] for name in dated},
        },
        "breach": {
            "what": detail["what"],
            "unit": incident.unit,
            **document["breach"],
            "window_start": rfc3339(incident.last_window_s),
            "window_end": rfc3339(incident.last_window_s + WINDOW_S),
            "worst_window_start": None if worst_s is None else rfc3339(worst_s),
            "messages": detail["messages"],
            "lost": detail["lost"],
        },
        **{name: document[name] for name in _SHOWN},
        "commands": {
            "acknowledge": f"lagloss alerts ack {incident.id}",
            "silence": f"lagloss alerts silence pipeline={incident.pipeline} rule={incident.rule} --for 2h "
            "--reason '…' --author …",
        },
    }


def _summary(incident: Incident) -> str:
    pipeline, rule, because = incident.pipeline, incident.rule, incident.resolved_because
    if because == "revised":
        return f"{pipeline}: {rule} revised: no breach after its windows were closed again or the rule changed"
    if because == "recovered":
        return f"{pipeline}: {rule} recovered after {incident.windows} min; at worst {incident.text}"
    if because == "expired":
        return f"{pipeline}: {rule} is too old to be followed, so its repair is unknown; last: {incident.text}"
    if not incident.is_open:
        return f"{pipeline}: {rule} is no longer evaluated ({because}); last: {incident.text}"
    place = next(iter(incident.where), None)
    share = f" ({fmt.percent(place['share'])})" if place and place["share"] is not None else ""
    most = f", most of it at {place['kind']} {place['name']}{share}" if place else ""
    who = f". {incident.named_cause}" if incident.named_cause else ""
    return f"{pipeline}: {incident.text}, since {rfc3339(incident.first_window_s)}{most}{who}"

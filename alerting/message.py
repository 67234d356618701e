"""The body of a notification: one versioned JSON document that says what breached, since when, where, and what to do.

It is made from an incident's row alone, so that a message can be made at any time without reading a window again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from alerting.assessment import Place
from lagloss.incidents import dashboard_link, incident_link, runbook_link
from lagloss.result import rfc3339
from lagloss.store import MissingMessage
from lagloss.times import moment
from lagloss.wire import WINDOW_S

VERSION: Final = 1
MAX_EXAMPLES: Final = 20
MAX_PLACES: Final = 10
MAX_NOTES: Final = 20

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Links:
    """Where a message leads to. `runbooks`: a pipeline's own, with a page of each kind; empty: those of the
    dashboard."""

    dashboard: str = ""
    runbooks: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is kept with an incident so that a message can say where and which: of its newest breached windows."""

    where: Sequence[Place] = ()
    examples: Sequence[MissingMessage] = ()
    messages: int | None = None
    lost: Document | None = None

    def document(self) -> Document:
        return {
            "where": [_place(place) for place in self.where[:MAX_PLACES]],
            "examples": [_example(lost) for lost in self.examples[:MAX_EXAMPLES]],
            "messages": self.messages,
            "lost": self.lost,
        }


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """An incident's row. `detail`: what `Evidence.document` gives, and `what`, `unit`, `text` (of the value) from the
    rule, `worst_window` (epoch s or null), `windows` (how many breached), `notes`, `resolved_because`."""

    id: UUID
    pipeline: str
    rule: str
    kind: str
    severity: str
    state: str
    opened_at: datetime
    resolved_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    first_window: int
    last_window: int
    value: float
    worst: float
    target: float
    detail: Mapping[str, Any]


def incident_body(facts: IncidentFacts, change: str, labels: Mapping[str, str], links: Links) -> Document:
    """`labels`: those of the definition's metadata. `change`: why it is sent."""
    detail = facts.detail
    return {
        "version": VERSION,
        "type": f"incident.{change}",
        "summary": _summary(facts),
        "incident": {
            "id": str(facts.id),
            "pipeline": facts.pipeline,
            "rule": facts.rule,
            "kind": facts.kind,
            "severity": facts.severity,
            "state": facts.state,
            "labels": dict(labels),
            "opened_at": moment(facts.opened_at),
            "resolved_at": moment(facts.resolved_at),
            "resolved_because": detail.get("resolved_because"),
            "acknowledged_at": moment(facts.acknowledged_at),
            "acknowledged_by": facts.acknowledged_by,
        },
        "breach": {
            "what": detail.get("what", facts.kind),
            "unit": detail.get("unit", "ratio"),
            "value": facts.value,
            "worst": facts.worst,
            "target": facts.target,
            "text": detail.get("text", ""),
            "window_start": rfc3339(facts.last_window),
            "window_end": rfc3339(facts.last_window + WINDOW_S),
            "worst_window_start": None if detail.get("worst_window") is None else rfc3339(detail["worst_window"]),
            "messages": detail.get("messages"),
            "lost": detail.get("lost"),
        },
        "since": rfc3339(facts.first_window),
        "windows": {
            "first": rfc3339(facts.first_window),
            "last": rfc3339(facts.last_window),
            "count": detail.get("windows", 1),
        },
        "where": list(detail.get("where", ())),
        "examples": list(detail.get("examples", ())),
        "notes": list(detail.get("notes", ())),
        "links": {
            "dashboard": dashboard_link(links.dashboard, facts.pipeline, facts.last_window),
            "incident": incident_link(links.dashboard, facts.id),
            "runbook": f"{links.runbooks.rstrip('/')}/{facts.kind}"
            if links.runbooks
            else runbook_link(links.dashboard, facts.kind),
        },
        "commands": {
            "acknowledge": f"lagloss alerts ack {facts.id}",
            "silence": f"lagloss alerts silence pipeline={facts.pipeline} rule={facts.rule} --for 2h --reason '…' "
            "--author …",
        },
    }


def _summary(facts: IncidentFacts) -> str:
    detail = facts.detail
    text = f"{facts.pipeline}: {detail.get('text') or facts.rule}"
    because = detail.get("resolved_because")
    if because == "revised":
        return (
            f"{facts.pipeline}: no breach of {facts.rule} after all: its windows were closed again, or the rule changed"
        )
    if because == "recovered":
        worst = detail.get("text") or facts.rule
        return f"{facts.pipeline}: {facts.rule} is well again after {detail.get('windows', 1)} min; at worst {worst}"
    if facts.state == "resolved":
        return f"{facts.pipeline}: {facts.rule} is no longer watched ({because}); it was {detail.get('text')}"
    place = next(iter(detail.get("where", ())), None)
    share = f" ({place['share']:.0%})" if place and place["share"] is not None else ""
    most = f", most of it at {place['kind']} {place['name']}{share}" if place else ""
    return f"{text}, since {rfc3339(facts.first_window)}{most}"


def _place(place: Place) -> Document:
    document = asdict(place)
    if place.lost is None:
        del document["lost"]
    return document


def _example(lost: MissingMessage) -> Document:
    return {
        "message_id": lost.message_id,
        "id_hash": f"{lost.id_hash % 2**64:016x}",
        "kind": lost.kind,
        "places": lost.places,
        "last_checkpoint": lost.last_checkpoint,
        "last_seen": moment(datetime.fromtimestamp(lost.last_seen_ms / 1_000, UTC)),
    }

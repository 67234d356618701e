"""Body of a notification: one versioned JSON document with breach, start, places and commands.

It is built from an incident's row alone, so that a message can be built at any time without reading a window again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from alerting.rules.assessment import BreachPlace
from lagloss.wire.format import WINDOW_S
from lagloss.wire.sketch import Sketch
from lagloss_server.base import format as fmt
from lagloss_server.base.times import moment
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks
from lagloss_server.incidents.incident import Incident
from lagloss_server.model.window import Window, rfc3339
from lagloss_server.queries.named_messages import NamedMessage
from lagloss_server.rules.rollup import PartSums
from lagloss_server.rules.traits import Of
from lagloss_server.store.store import MissingMessage

VERSION: Final = 1
MAX_EXAMPLES: Final = 20
MAX_PLACES: Final = 10
MAX_NOTES: Final = 20
BLAMED: Final[Mapping[str, Of]] = {
    "loss": "loss",
    "lag": "lag",
    "on-time": "lag",
    "dead-letters": "dead",
    "corruption": "corruption",
}
"""What the bad messages of an incident of this kind have suffered, where single messages are known to have."""

Document = dict[str, Any]
_SHOWN: Final = ("since", "windows", "where", "destinations", "blame", "examples", "notes", "links")
"""What receivers get of an incident's own document as it is."""


@dataclass(frozen=True, slots=True)
class IncidentEvidence:
    """Evidence stored with an incident for its messages, from its newest breached windows. `examples`: lost messages,
    or those that are late, dead or corrupted; `destinations`: those that suffer most first (`suffering`); `blame`: what
    the bad messages have in common."""

    where: Sequence[BreachPlace] = ()
    destinations: Sequence[Document] = ()
    examples: Sequence[MissingMessage | NamedMessage] = ()
    messages: int | None = None
    lost: Document | None = None
    blame: Document | None = None

    def document(self, links: TraceLinks = NO_LINKS) -> Document:
        return {
            "where": [_place(place) for place in self.where[:MAX_PLACES]],
            "destinations": list(self.destinations[:MAX_PLACES]),
            "examples": [_example(each, links) for each in self.examples[:MAX_EXAMPLES]],
            "messages": self.messages,
            "lost": self.lost,
            "blame": self.blame,
        }


def suffering(windows: Sequence[Window]) -> list[Document]:
    """Return what became of the messages due at each destination over some windows, those with the most lost, late or
    dead first: `due`, `lost`, `dead`, and the `on_time` of `on_time_of`."""
    found: defaultdict[str, list[PartSums]] = defaultdict(list)
    for there in (there for window in windows for there in window.destinations):
        found[there.name].append(PartSums.of_part(there, Sketch()))
    totals = {name: PartSums.merged(parts) for name, parts in found.items()}
    worst = sorted(totals.items(), key=lambda item: (item[1].on_time - item[1].on_time_of - item[1].dead, item[0]))
    return [
        {
            "name": name,
            **{count: getattr(sums, count) for count in ("due", "dead", "on_time", "on_time_of")},
            "lost": {"min": sums.lost_min, "max": sums.lost_max},
        }
        for name, sums in worst
    ]


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
        return f"{pipeline}: {rule} did not breach after all: its windows were closed again, or the rule changed"
    if because == "recovered":
        return f"{pipeline}: {rule} recovered after {incident.windows} min; at worst {incident.text}"
    if not incident.is_open:
        return f"{pipeline}: {rule} is no longer evaluated ({because}); it was {incident.text}"
    place = next(iter(incident.where), None)
    share = f" ({fmt.percent(place['share'])})" if place and place["share"] is not None else ""
    most = f", most of it at {place['kind']} {place['name']}{share}" if place else ""
    who = f". {incident.named_cause}" if incident.named_cause else ""
    return f"{pipeline}: {incident.text}, since {rfc3339(incident.first_window_s)}{most}{who}"


def _place(place: BreachPlace) -> Document:
    document = asdict(place)
    if place.lost is None:
        del document["lost"]
    return document


def _example(message: MissingMessage | NamedMessage, links: TraceLinks) -> Document:
    return {
        "message_id": message.message_id,
        "id_hash": f"{message.id_hash % 2**64:016x}",
        "kind": message.kind,
        "places": list(message.places),
        "last_checkpoint": message.last_checkpoint,
        "last_seen": moment(fmt.datetime_of(message.last_seen_ms / 1_000)),
        **(_more(message) if isinstance(message, NamedMessage) else {}),
        **links.document(message.trace, message.window_start_s),
    }


def _more(message: NamedMessage) -> Document:
    """Return how late a message was and what held it, and why a dead one died; of others nothing."""
    if message.kind == "late":
        return {"lag_ms": message.lag_ms, "hop": message.hop, "hop_ms": message.hop_ms}
    return {"reason": message.reason} if message.kind == "dead" else {}

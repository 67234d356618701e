"""What a webhook is sent: one versioned JSON body for each change of an incident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from lagloss.store import MissingMessage

VERSION: Final = 1
MAX_EXAMPLES: Final = 20
WINDOW_S: Final = 60

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """An incident as it stands after a change. Times in epoch s; `breaches`: loss ratio by window start."""

    id: UUID
    pipeline: str
    rule: str
    change: str
    why: str
    opened_at: datetime
    resolved_at: datetime | None
    breaches: Mapping[int, float]
    worst_ratio: float


def incident_body(
    facts: IncidentFacts,
    target_ratio: float,
    breached: Sequence[Document],
    missing: Sequence[MissingMessage],
    dashboard_url: str,
) -> dict[str, Any]:
    """`breached`: documents of the incident's lossy windows, oldest first; `missing`: messages lost in the last."""
    first_s, last_s = min(facts.breaches), max(facts.breaches)
    worst_s = max(facts.breaches, key=lambda start: (facts.breaches[start], start))
    last = breached[-1] if breached else None
    value = facts.breaches[last_s]
    where = shares(breached)
    return {
        "version": VERSION,
        "type": f"incident.{facts.change}",
        "summary": _summary(facts, value, target_ratio, where),
        "incident": {
            "id": str(facts.id),
            "pipeline": facts.pipeline,
            "rule": facts.rule,
            "state": "resolved" if facts.change == "resolved" else "open",
            "opened_at": rfc3339(facts.opened_at),
            "resolved_at": rfc3339(facts.resolved_at) if facts.resolved_at else None,
            "resolved_because": facts.why or None,
        },
        "breach": {
            "what": "loss_ratio",
            "value": value,
            "worst": facts.worst_ratio,
            "target": target_ratio,
            "window_start": utc(last_s),
            "window_end": utc(last_s + WINDOW_S),
            "worst_window_start": utc(worst_s),
            "messages": last["messages"] if last else None,
            "lost": last["lost"] if last else None,
        },
        "since": utc(first_s),
        "windows": {"first": utc(first_s), "last": utc(last_s), "count": len(facts.breaches)},
        "where": where,
        "examples": [_example(lost) for lost in missing[:MAX_EXAMPLES]],
        "links": {"dashboard": _link(dashboard_url, facts.pipeline, last_s)},
    }


def shares(breached: Sequence[Document]) -> list[dict[str, Any]]:
    """Where the messages were lost for certain over these windows: places with their share of the loss, worst first.

    A message may be lost at several places (branches), so the shares may add up to more than 1.
    """
    lost_all = sum(window["lost"]["min"] for window in breached)
    found: dict[tuple[str, str], int] = {}
    for window in breached:
        for node in window["nodes"]:
            found[("node", node["name"])] = found.get(("node", node["name"]), 0) + node["lost"]["min"]
        for link in window["links"]:
            name = f"{link['from']}->{link['to']}"
            found[("link", name)] = found.get(("link", name), 0) + link["lost"]["min"]
    worst = sorted(((lost, kind, name) for (kind, name), lost in found.items() if lost), key=lambda item: -item[0])
    return [
        {"kind": kind, "name": name, "lost": lost, "share": lost / lost_all if lost_all else None}
        for lost, kind, name in worst
    ]


def _summary(facts: IncidentFacts, value: float, target: float, where: list[dict[str, Any]]) -> str:
    if facts.why == "revised":
        return f"{facts.pipeline}: no loss after all; the windows were closed again with more evidence"
    place = f", most of it at {where[0]['kind']} {where[0]['name']} ({where[0]['share']:.0%})" if where else ""
    if facts.change == "resolved":
        return (
            f"{facts.pipeline}: loss is over after {len(facts.breaches)} min, at worst {facts.worst_ratio:.2%}{place}"
        )
    since = f"since {utc(min(facts.breaches))}"
    return f"{facts.pipeline}: {value:.2%} of messages lost, target {target:.2%}, {since}{place}"


def _example(lost: MissingMessage) -> dict[str, Any]:
    return {
        "message_id": lost.message_id,
        "id_hash": f"{lost.id_hash % 2**64:016x}",
        "kind": lost.kind,
        "places": lost.places,
        "last_checkpoint": lost.last_checkpoint,
        "last_seen": rfc3339(datetime.fromtimestamp(lost.last_seen_ms / 1_000, UTC)),
    }


def _link(dashboard_url: str, pipeline: str, window_start_s: int) -> str | None:
    if not dashboard_url:
        return None
    return f"{dashboard_url.rstrip('/')}/?{urlencode({'pipeline': pipeline, 'window': utc(window_start_s)}, safe=':')}"


def utc(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

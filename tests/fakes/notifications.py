"""Notifications as the alerter makes them, for tests of what is done with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from alerting.incidents.notification import Action, Notification

INCIDENT = "0d9e5cf6-2b8f-4a39-9f0a-4a1c2f0b7a11"


def notification(action: Action = "trigger", number: int = 1, **incident: Any) -> Notification:
    """One of a loss on `clicks`; `incident` replaces values of the incident."""
    return Notification(UUID(int=number), action, body(action, **incident), datetime.now(UTC))


def body(action: Action = "trigger", **incident: Any) -> dict[str, Any]:
    resolved = action == "resolve"
    change = {"update": "updated", "acknowledge": "acknowledged", "resolve": "resolved"}.get(action, "opened")
    return {
        "version": 1,
        "type": "test" if action == "test" else f"incident.{change}",
        "summary": "clicks: 3.20% of messages lost, target 1.00%, since 2026-11-21T08:40:00Z, most of it at link "
        "src->mid (98%)",
        "incident": {
            "id": INCIDENT,
            "pipeline": "clicks",
            "rule": "loss",
            "kind": "loss",
            "severity": "critical",
            "state": "resolved" if resolved else "open",
            "labels": {"team": "checkout"},
            "opened_at": "2026-11-21T08:43:02.120Z",
            "resolved_at": "2026-11-21T08:50:02.120Z" if resolved else None,
            "resolved_because": "recovered" if resolved else None,
            "acknowledged_at": "2026-11-21T08:44:00.000Z" if action == "acknowledge" else None,
            "acknowledged_by": "ada" if action == "acknowledge" else None,
            **incident,
        },
        "breach": {
            "what": "loss_ratio",
            "unit": "ratio",
            "value": 0.032,
            "worst": 0.05,
            "target": 0.01,
            "text": "3.20% of messages lost, target 1.00%",
            "window_start": "2026-11-21T08:42:00Z",
            "window_end": "2026-11-21T08:43:00Z",
            "worst_window_start": "2026-11-21T08:41:00Z",
            "messages": 3000,
            "lost": {"min": 96, "max": 96},
        },
        "since": "2026-11-21T08:40:00Z",
        "windows": {"first": "2026-11-21T08:40:00Z", "last": "2026-11-21T08:42:00Z", "count": 2},
        "where": [{"kind": "link", "name": "src->mid", "share": 0.98, "text": "94 lost, 98% of the loss", "lost": 94}],
        "examples": [
            {
                "message_id": "m-1",
                "id_hash": "0f00000000000001",
                "kind": "lost",
                "places": ["link src->mid"],
                "last_checkpoint": "src.out",
                "last_seen": "2026-11-21T08:42:10Z",
            }
        ],
        "notes": [],
        "links": {
            "dashboard": "http://lagloss.example/pipelines/clicks/windows/2026-11-21T08:42:00Z",
            "incident": f"http://lagloss.example/incidents/{INCIDENT}",
            "runbook": "http://docs.example/loss",
        },
        "commands": {
            "acknowledge": f"lagloss alerts ack {INCIDENT}",
            "silence": "lagloss alerts silence pipeline=clicks rule=loss --for 2h --reason '…' --author …",
        },
    }

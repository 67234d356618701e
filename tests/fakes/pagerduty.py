"""PagerDuty's Events API v2 as its documentation describes it: fields, limits, answers, alerts by their key.

Source: developer.pagerduty.com, "Events API v2 Overview" and "Send an Alert Event".
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from tests.fakes.http_receiver import HttpReceiver, Reply, Request

MAX_EVENT_BYTES = 512 * 1024
_TOP = {"routing_key", "event_action", "dedup_key", "payload", "images", "links", "client", "client_url"}
_PAYLOAD = {"summary", "source", "severity", "timestamp", "component", "group", "class", "custom_details"}


class FakePagerDuty(HttpReceiver):
    """`alerts`: state by deduplication key, `triggered`, `acknowledged` or `resolved`; `opened`: keys in the order in
    which alerts were opened, once for each alert."""

    def __init__(self, routing_key: str) -> None:
        super().__init__()
        self.url += "/v2/enqueue"
        self.routing_key = routing_key
        self.alerts: dict[str, str] = {}
        self.opened: list[str] = []
        self.events: list[dict[str, Any]] = []

    def answer(self, request: Request) -> Reply:
        try:
            event = json.loads(request.body.decode("utf-8"))
        except ValueError:
            return _invalid(["JSON is invalid"])
        errors = errors_of(event, len(request.body))
        if not errors and event["routing_key"] != self.routing_key:
            errors = ["Invalid routing key"]
        if errors:
            return _invalid(errors)
        self.events.append(event)
        self._take(event["dedup_key"], event["event_action"])
        done = {"status": "success", "message": "Event processed", "dedup_key": event["dedup_key"]}
        return Reply(202, json.dumps(done).encode())

    def _take(self, key: str, action: str) -> None:
        is_open = self.alerts.get(key) in ("triggered", "acknowledged")
        if action == "trigger":
            if not is_open:
                self.opened.append(key)
                self.alerts[key] = "triggered"
        elif is_open:  # else it is dropped
            self.alerts[key] = "acknowledged" if action == "acknowledge" else "resolved"


def errors_of(event: Any, size_bytes: int) -> list[str]:
    """What is wrong with an event, in words like PagerDuty's."""
    if size_bytes > MAX_EVENT_BYTES:
        return ["Event size is too large"]
    if not isinstance(event, dict):
        return ["Event is not an object"]
    errors = [f"'{name}' is not a known field" for name in event if name not in _TOP]
    if not isinstance(event.get("routing_key"), str) or len(event["routing_key"]) != 32:
        errors.append("Length of 'routing_key' is incorrect (should be 32 characters)")
    if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
        errors.append("'event_action' is missing or invalid")
    key = event.get("dedup_key")
    if not isinstance(key, str) or not 0 < len(key) <= 255:
        errors.append("'dedup_key' is missing or longer than 255 characters")
    if event.get("event_action") == "trigger":
        errors += _payload_errors(event.get("payload")) + _link_errors(event)
    return errors


def _payload_errors(payload: Any) -> list[str]:
    if not isinstance(payload, dict):
        return ["'payload' is missing or blank"]
    errors = [f"'payload.{name}' is not a known field" for name in payload if name not in _PAYLOAD]
    for name in ("summary", "source", "severity"):
        if not isinstance(payload.get(name), str) or not payload[name]:
            errors.append(f"'payload.{name}' is missing or blank")
    if len(str(payload.get("summary"))) > 1024:
        errors.append("'payload.summary' is longer than 1024 characters")
    if payload.get("severity") not in ("critical", "error", "warning", "info"):
        errors.append("'payload.severity' is invalid (must be one of: critical, error, warning, info)")
    errors += [
        f"'payload.{name}' is not a string"
        for name in ("component", "group", "class")
        if not isinstance(payload.get(name, ""), str)
    ]
    try:
        datetime.fromisoformat(payload.get("timestamp", "2026-01-01T00:00:00Z"))
    except (ValueError, TypeError):
        errors.append("'payload.timestamp' is not ISO 8601")
    if not isinstance(payload.get("custom_details", {}), dict):
        errors.append("'payload.custom_details' is not an object")
    return errors


def _link_errors(event: dict[str, Any]) -> list[str]:
    links = event.get("links", [])
    return [
        f"'links.{number}.href' is missing or no URL"
        for number, link in enumerate(links)
        if not str(link.get("href", "")).startswith(("http://", "https://"))
    ]


def _invalid(errors: list[str]) -> Reply:
    said = {"status": "invalid event", "message": "Event object is invalid", "errors": errors}
    return Reply(400, json.dumps(said).encode())

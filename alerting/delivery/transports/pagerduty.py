"""PagerDuty by its Events API v2: an incident here is an alert there, by its deduplication key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from alerting.delivery.rendering import TextSection, message
from alerting.delivery.transports.base import HttpConfig
from alerting.delivery.transports.http import HttpAnswer, HttpTarget, by_status
from alerting.incidents.notification import Action, Notification
from lagloss_server.base.errors import UnusableReceiver
from lagloss_server.net.deadline import Deadline
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.net.sanitize import one_line
from lagloss_server.net.secret import Secret

MAX_SUMMARY: Final = 1_024
MAX_LINK: Final = 2_000
ROUTING_KEY_LENGTH: Final = 32
BUSY_S: Final = 60.0
"""Wait after a 429 that names no time; PagerDuty advises "a few minutes", which is long for a page."""

_EVENTS: Final[Mapping[Action, str]] = {"acknowledge": "acknowledge", "resolve": "resolve"}
"""All else is a trigger: PagerDuty adds it to the open alert of the same key."""


class PagerDutyConfig(HttpConfig):
    """`routingKey` is the integration's; `url` is another where the account is in the EU region."""

    routing_key: Secret = Field(alias="routingKey")
    url: Secret = Secret("text", "https://events.pagerduty.com/v2/enqueue")

    def build(self) -> PagerDutyTransport:
        key = self.routing_key.reveal()
        if len(key) != ROUTING_KEY_LENGTH:
            raise UnusableReceiver(
                problem=f"expected PagerDuty's routing key to have {ROUTING_KEY_LENGTH} characters, found {len(key)}"
            )
        target = HttpTarget(self.url.reveal(), allow_private=self.allow_private, ca_file=self.ca_file, secrets=[key])
        return PagerDutyTransport(target, key)


class PagerDutyTransport:
    at_most: int = 1
    resend_s: float | None = None

    def __init__(self, target: HttpTarget, routing_key: str) -> None:
        self._target = target
        self._routing_key = routing_key
        self.timeout_s: float = target.timeout_s

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """Send notifications; a test is triggered and resolved at once, under a key of its own."""
        (notification,) = notifications
        deadline = Deadline(self.timeout_s)
        sent = self._post(event(notification, self._routing_key), deadline)
        if notification.action != "test" or not isinstance(sent, Sent):
            return sent
        return self._post(_ending(_test_key(notification), self._routing_key, "resolve"), deadline)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    def _post(self, document: Mapping[str, Any], deadline: Deadline) -> Outcome:
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return self._target.post(body, {}, meaning=_meaning, deadline=deadline)


def event(notification: Notification, routing_key: str) -> dict[str, Any]:
    """Return the PagerDuty event of this notification."""
    action = _EVENTS.get(notification.action, "trigger")
    key = _test_key(notification) if notification.action == "test" else one_line(notification.dedup_key, 255)
    ending = _ending(key, routing_key, action)
    return ending if action != "trigger" else {**ending, **_trigger(notification)}


def _ending(key: str, routing_key: str, action: str) -> dict[str, Any]:
    return {"routing_key": routing_key, "event_action": action, "dedup_key": key}


def _test_key(notification: Notification) -> str:
    return f"lagloss-test-{notification.key}"


def _trigger(notification: Notification) -> dict[str, Any]:
    body = notification.body
    incident: Mapping[str, Any] = body.get("incident") or {}
    links = body.get("links") or {}
    section = message([notification]).sections[0]
    where = body.get("where") or [{}]
    payload = {
        "summary": one_line(body.get("summary"), MAX_SUMMARY) or section.title,
        "source": one_line(incident.get("pipeline") or "", 255) or "lagloss",
        "severity": _severity(notification),
        "timestamp": incident.get("opened_at"),
        "component": one_line(where[0].get("name") or "", 255),
        "group": one_line(incident.get("pipeline") or "", 255),
        "class": one_line(incident.get("kind") or "", 255),
        "custom_details": _details(section, incident),
    }
    document: dict[str, Any] = {
        "payload": {name: value for name, value in payload.items() if value},
        "client": "lagloss",
        "links": [
            {"href": link, "text": text}
            for text, link in (
                ("Incident", links.get("incident")),
                ("Chart", links.get("dashboard")),
                ("Runbook", links.get("runbook")),
            )
            if _is_link(link)
        ],
    }
    if _is_link(links.get("incident")):
        document["client_url"] = links["incident"]
    return document


def _severity(notification: Notification) -> str:
    if notification.action == "test":
        return "info"
    return "critical" if notification.body["incident"].get("severity") == "critical" else "warning"


def _details(section: TextSection, incident: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event's details: the section's lines, those of one label as one text; the incident's labels; its
    id."""
    details: dict[str, Any] = {}
    for line in section.lines:
        details[line.label] = f"{details[line.label]}\n{line.text}" if line.label in details else line.text
    labels = list((incident.get("labels") or {}).items())[:50]
    return {
        **details,
        "Labels": {one_line(name, 100): one_line(value, 300) for name, value in labels},
        "Incident": one_line(incident.get("id") or "", 100),
        "Rule": one_line(incident.get("rule") or "", 200),
    }


def _is_link(link: object) -> bool:
    return isinstance(link, str) and link.startswith(("http://", "https://")) and one_line(link, MAX_LINK) == link


def _meaning(answer: HttpAnswer) -> Outcome:
    if answer.status == 400:
        return Refused(_refusal(answer.text))
    outcome = by_status(answer)
    if answer.status == 429 and isinstance(outcome, TryLater) and outcome.after_s is None:
        return TryLater(outcome.error, BUSY_S)
    return outcome


def _refusal(text: str) -> str:
    """Return PagerDuty's reason for refusing the event: {"status", "message", "errors"}."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return f"HTTP 400: {one_line(text, 300)}"
    errors = said.get("errors")
    listed = "; ".join(map(str, errors)) if isinstance(errors, list) else ""
    return f"HTTP 400: {one_line(said.get('message') or '', 200)}{f': {one_line(listed, 300)}' if listed else ''}"

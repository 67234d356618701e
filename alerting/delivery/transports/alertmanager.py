"""Alertmanager by its API v2: an open incident is an alert that has to be sent again before it expires."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import Field

from alerting.delivery.rendering import as_text, message
from alerting.delivery.transports.base import GROUP_AT_MOST, HttpConfig
from alerting.delivery.transports.http import MAX_BODY_BYTES, HttpTarget
from alerting.incidents.notification import Notification
from lagloss_server.base.fields import DurationMs
from lagloss_server.net.deadline import Deadline
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.net.sanitize import one_line
from lagloss_server.net.secret import Secret

LIVES: Final = 3
"""An alert expires after this many times `resend`, so two resendings may fail."""
MAX_LABEL: Final = 1_000
MAX_LABELS: Final = 50
_PATH: Final = "/api/v2/alerts"


class AlertmanagerConfig(HttpConfig):
    """`urls` are those of a cluster's members, without `/api/v2/alerts`: alerts go to each, one is enough."""

    urls: Annotated[tuple[Secret, ...], Field(min_length=1, max_length=16)]
    resend: Annotated[DurationMs, Field(ge=1_000)] = 60_000

    def build(self) -> AlertmanagerTransport:
        urls = [url.reveal().rstrip("/").removesuffix(_PATH) + _PATH for url in self.urls]
        targets = [HttpTarget(url, allow_private=self.allow_private, ca_file=self.ca_file) for url in urls]
        return AlertmanagerTransport(targets, self.resend / 1_000)


class AlertmanagerTransport:
    at_most: int = GROUP_AT_MOST

    def __init__(self, targets: Sequence[HttpTarget], resend_s: float) -> None:
        self._targets = targets
        self.resend_s: float | None = resend_s
        self._lives_s = LIVES * resend_s
        self.timeout_s = max(target.timeout_s for target in targets)
        self._pool = ThreadPoolExecutor(len(targets), thread_name_prefix="alertmanager")

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """Send only the last notification of each alert, which has its current state."""
        now = notifications[0].claimed_at
        last = {frozenset(labels(notification).items()): notification for notification in notifications}
        alerts = [alert(notification, now, self._lives_s) for notification in last.values()]
        bodies = batches(alerts, MAX_BODY_BYTES)
        deadline = Deadline(self.timeout_s)
        outcomes = list(self._pool.map(lambda target: _post(target, bodies, deadline), self._targets))
        return _of_cluster(outcomes)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _post(target: HttpTarget, bodies: Sequence[bytes], deadline: Deadline) -> Outcome:
    outcome: Outcome = Sent()
    for body in bodies:
        outcome = target.post(body, {}, deadline=deadline)
        if not isinstance(outcome, Sent):
            break
    return outcome


def _of_cluster(outcomes: Sequence[Outcome]) -> Outcome:
    """Combine the members' outcomes: sent if one accepted (members share notifications, not alerts), else retried if
    one may accept later."""
    if any(isinstance(outcome, Sent) for outcome in outcomes):
        return Sent()
    failures = [outcome for outcome in outcomes if not isinstance(outcome, Sent)]
    error = failures[0].error
    if len(failures) > 1:
        error = "; ".join(f"url {number}: {failure.error}" for number, failure in enumerate(failures, 1))
    later = [failure for failure in failures if isinstance(failure, TryLater)]
    if not later:
        return Refused(error)
    after = [failure.after_s for failure in later if failure.after_s is not None]
    return TryLater(error, min(after) if len(after) == len(later) else None)


def alert(notification: Notification, now: datetime, lives_s: float) -> dict[str, Any]:
    """Return the alert for API v2. Alertmanager identifies it by its labels, so no label may change."""
    body = notification.body
    incident: Mapping[str, Any] = body.get("incident") or {}
    starts = min(_moment(incident.get("opened_at")) or now, now)
    ends = now + timedelta(seconds=lives_s)
    if notification.action == "resolve":
        # not the present moment: to an Alertmanager whose clock is behind, that is still to come
        ends = max(starts, min(_moment(incident.get("resolved_at")) or now, now))
    if notification.action == "test":
        ends = now + timedelta(seconds=60)
    document: dict[str, Any] = {
        "labels": labels(notification),
        "annotations": _annotations(notification),
        "startsAt": starts.isoformat(timespec="milliseconds"),
        "endsAt": ends.isoformat(timespec="milliseconds"),
    }
    link = (body.get("links") or {}).get("dashboard")
    if isinstance(link, str) and _is_address(link):
        document["generatorURL"] = link
    return document


def labels(notification: Notification) -> dict[str, str]:
    """Return the labels: alertname (LaglossLoss, LaglossDeadLetters, ...), pipeline, rule, severity, and the
    definition's own labels unless they have one of these names."""
    incident: Mapping[str, Any] = notification.body.get("incident") or {}
    if notification.action == "test":
        return {"alertname": "LaglossTest", "severity": "none"}
    kind = "".join(word.capitalize() for word in re.split(r"[^A-Za-z0-9]+", str(incident.get("kind") or "")))
    values = {
        "alertname": f"Lagloss{kind}",
        "pipeline": one_line(incident.get("pipeline") or "", MAX_LABEL),
        "rule": one_line(incident.get("rule") or "", MAX_LABEL),
        "severity": one_line(incident.get("severity") or "", MAX_LABEL),
    }
    for name, value in sorted((incident.get("labels") or {}).items())[:MAX_LABELS]:
        values.setdefault(_label_name(str(name)), one_line(value, MAX_LABEL))
    return {name: value for name, value in values.items() if value}  # an empty label is one that is not there


def _label_name(name: str) -> str:
    valid = re.sub(r"[^A-Za-z0-9_]", "_", name[:200])
    return f"_{valid}" if not valid or valid[0].isdigit() else valid


def _annotations(notification: Notification) -> dict[str, str]:
    said = message([notification])
    body = notification.body
    links, commands = body.get("links") or {}, body.get("commands") or {}
    values = {
        "summary": said.sections[0].summary,
        "description": as_text(said).strip(),
        "dashboard": links.get("dashboard"),
        "runbook_url": links.get("runbook"),
        "acknowledge": commands.get("acknowledge"),
        "silence": commands.get("silence"),
        "incident": (body.get("incident") or {}).get("id"),
    }
    return {name: str(value)[:10_000] for name, value in values.items() if value}


def batches(alerts: Sequence[Mapping[str, Any]], limit: int) -> list[bytes]:
    """JSON lists of these alerts, in order, none longer than `limit` bytes unless one alert alone is."""
    groups: list[list[bytes]] = [[]]
    size = 2
    for document in alerts:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        if groups[-1] and size + len(text) + 1 > limit:
            groups.append([])
            size = 2
        groups[-1].append(text)
        size += len(text) + 1
    return [b"[" + b",".join(batch) + b"]" for batch in groups]


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_address(link: str) -> bool:
    try:
        return urlsplit(link).scheme in ("http", "https") and one_line(link, 2_000) == link and link.isascii()
    except ValueError:
        return False

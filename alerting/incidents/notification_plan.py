"""Plan of notifications: what to send to each receiver of an incident, from what was sent so far. Pure.

It keeps no state: the plan follows from the incident's status, its routes, and the outbox. So a silence that ends, a
route that changes, an escalation or a restart need no case of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from alerting.incidents.notification import Action, Document
from alerting.incidents.routing import RoutedReceiver
from lagloss_server.incidents.incident import Withheld

FALLBACK_AFTER_S: Final = 300.0
"""A trigger that its receiver has not accepted for this long also goes to the fallback; retries continue."""
NEWS_FACTOR: Final = 1.5
"""A worst value this many times as far from the target as in the receiver's last message is sent as an update."""


@dataclass(frozen=True, slots=True)
class IncidentStatus:
    """Current status of an incident. `change`: its newest change; `withheld`: why notifications are suppressed."""

    is_open: bool
    is_acknowledged: bool
    change: str
    body: Document
    withheld: Withheld | None = None


@dataclass(frozen=True, slots=True)
class SentNotification:
    """One row of the outbox, of this incident and one receiver. `due_at`: when the next attempt is; `outcome`: sent or
    failed; None while on its way."""

    id: int
    receiver: str
    action: Action
    change: str
    created_at: datetime
    due_at: datetime
    body: Document
    group_key: str
    attempts: int = 0
    outcome: str | None = None

    @property
    def is_untried(self) -> bool:
        return self.outcome is None and self.attempts == 0


@dataclass(frozen=True, slots=True)
class PlannedNotification:
    """One message to put into the outbox; `note` goes into its body."""

    receiver: str
    action: Action
    change: str
    group_key: str
    wait_s: float = 0
    note: str | None = None


@dataclass(frozen=True, slots=True)
class NotificationPolicy:
    """Settings independent of routes. `resend_s`: by receiver, for those that expire alerts that are not resent."""

    fallback: str | None = None
    resend_s: Mapping[str, float] = field(default_factory=dict)


def plan(
    status: IncidentStatus,
    sent: Sequence[SentNotification],
    goes_to: Mapping[str, RoutedReceiver],
    policy: NotificationPolicy,
    now: datetime,
    leads_since: datetime | None = None,
) -> list[PlannedNotification]:
    """Return the notifications to queue now. `sent`: oldest first, without dropped ones; `leads_since`: from when on
    the alerter that leads could send them."""
    episodes = {row.receiver: _episode(sent, row.receiver) for row in sent}
    if not status.is_open:
        return [
            PlannedNotification(receiver, "resolve", status.change, episode[-1].group_key)
            for receiver, episode in episodes.items()
            if _was_triggered(episode)
        ]
    orders: list[PlannedNotification] = []
    for receiver in dict.fromkeys([*goes_to, *episodes]):
        episode = episodes.get(receiver, [])
        if not any(row.action == "trigger" for row in episode):
            if receiver in goes_to and status.withheld is None and not status.is_acknowledged:
                orders.append(_first_trigger(goes_to[receiver], has_history=receiver in episodes))
        elif _was_triggered(episode):
            resend_s = policy.resend_s.get(receiver)
            orders += _further(status, episode, goes_to.get(receiver), resend_s, now)
    if not any(order.receiver == policy.fallback for order in orders):
        orders += _through_fallback(status, episodes, goes_to, policy, now, leads_since)
    return orders


def to_withdraw(status: IncidentStatus, sent: Sequence[SentNotification]) -> list[SentNotification]:
    """Return the notifications without an attempt that are not to be sent as long as the incident is withheld or
    acknowledged. What is due when that ends is planned anew; not so what failed elsewhere and goes to the fallback."""
    if not status.is_open or (status.withheld is None and not status.is_acknowledged):
        return []
    rows = []
    for receiver in {row.receiver for row in sent}:
        episode = _episode(sent, receiver)
        untried = [row for row in episode if row.is_untried and row.change != "fallback"]
        if any(row.action == "trigger" and row not in untried for row in episode):  # so it knows of the incident
            is_withheld = status.withheld is not None
            untried = [
                row
                for row in untried
                if row.change == "reminder" or (is_withheld and row.action in ("trigger", "update"))
            ]
        rows += untried
    return rows


def seconds_since_trigger(sent: Sequence[SentNotification], now: datetime) -> float:
    """Return the seconds since the earliest trigger to a receiver that has had no resolve after it; 0 if there is
    none."""
    triggered_at = (
        row.created_at
        for receiver in {row.receiver for row in sent}
        for row in _episode(sent, receiver)
        if row.action == "trigger"
    )
    return max(((now - moment).total_seconds() for moment in triggered_at), default=0.0)


def _episode(sent: Sequence[SentNotification], receiver: str) -> list[SentNotification]:
    """Return the notifications to this receiver since its last resolve."""
    rows = [row for row in sent if row.receiver == receiver]
    ends = [number for number, row in enumerate(rows) if row.action == "resolve"]
    return rows[ends[-1] + 1 :] if ends else rows


def _was_triggered(episode: Sequence[SentNotification]) -> bool:
    """Return whether the receiver has, or may have, a trigger. One that refused every trigger has none."""
    return any(row.action == "trigger" and row.outcome != "failed" for row in episode)


def _first_trigger(destination: RoutedReceiver, has_history: bool) -> PlannedNotification:
    change = "escalated" if destination.is_escalated else "reopened" if has_history else "opened"
    return PlannedNotification(destination.receiver, "trigger", change, destination.group_key, destination.group_wait_s)


def _further(
    status: IncidentStatus,
    episode: Sequence[SentNotification],
    destination: RoutedReceiver | None,
    resend_s: float | None,
    now: datetime,
) -> Iterator[PlannedNotification]:
    """Yield what to send to a receiver that has the incident, one message at a time: the next evaluation sends the
    rest."""
    receiver, group_key = episode[-1].receiver, episode[-1].group_key
    notified = [row for row in episode if row.action in ("trigger", "update")]
    since_trigger = episode[max(index for index, row in enumerate(episode) if row.action == "trigger") :]
    triggered_s = (now - max(row.created_at for row in episode if row.action == "trigger")).total_seconds()
    heard_s = (now - episode[-1].created_at).total_seconds()
    if status.is_acknowledged and not any(row.action == "acknowledge" for row in since_trigger):
        yield PlannedNotification(receiver, "acknowledge", "acknowledged", group_key)
    elif status.withheld is None and is_raised(notified[-1].body, status.body):
        yield PlannedNotification(receiver, "trigger", "raised", group_key)
    elif status.withheld is None and is_news(notified[-1].body, status.body):
        yield PlannedNotification(receiver, "update", "updated", group_key)
    elif (
        status.withheld is None
        and not status.is_acknowledged
        and destination is not None
        and all(row.outcome is not None for row in notified)  # or all reminders of an outage come at its end
        and triggered_s >= destination.repeat_s
    ):
        yield PlannedNotification(receiver, "trigger", "reminder", group_key)
    elif resend_s is not None and heard_s >= resend_s:
        yield PlannedNotification(receiver, "refresh", "refresh", group_key)


def is_raised(document: Document, now: Document) -> bool:
    """Return whether the receiver of the one body knows of a ticket that is a page now."""
    before, after = (body["incident"]["severity"] for body in (document, now))
    return bool(before != "critical" and after == "critical")


def is_of_severity(row: SentNotification, severity: str) -> bool:
    """Return whether a notification was of the incident as it is now, and not of the ticket that it was before; the end
    of one counts for both."""
    return row.action == "resolve" or bool(row.body["incident"]["severity"] == severity)


def is_news(document: Document, now: Document) -> bool:
    """Return whether a receiver of the one body is to get the other: the worst value is 1.5 times as far from the
    target, most of it is at another place, or a window was revised."""
    before, after = document["breach"], now["breach"]
    is_worse = abs(after["worst"] - after["target"]) > NEWS_FACTOR * abs(before["worst"] - before["target"])
    has_notes = not set(now["notes"]) <= set(document["notes"])
    return is_worse or has_notes or _main_place(document) != _main_place(now)


def _main_place(body: Document) -> str | None:
    """Return the place with more than half of the breach; without such a place the first one may change each minute."""
    return next((place["name"] for place in body["where"][:1] if (place["share"] or 0) > 0.5), None)


def _through_fallback(
    status: IncidentStatus,
    episodes: Mapping[str, Sequence[SentNotification]],
    goes_to: Collection[str],
    policy: NotificationPolicy,
    now: datetime,
    leads_since: datetime | None,
) -> Iterator[PlannedNotification]:
    """Yield one trigger to the fallback, for the first receiver that has not accepted its own for too long, or refused
    it: the outbox raises a refusal only once, though the incident can be reopened."""
    fallback = policy.fallback
    if fallback is None or status.withheld is not None or episodes.get(fallback):
        return
    for receiver, episode in episodes.items():
        triggers = [row for row in episode if row.action == "trigger"]
        if triggers and not _was_triggered(episode) and receiver in goes_to and not status.is_acknowledged:
            note = f"receiver {receiver} has refused this incident before"
            yield PlannedNotification(fallback, "trigger", "fallback", triggers[-1].group_key, note=note)
            return
        for row in (row for row in triggers if row.outcome is None):
            stuck_s = _stuck_s(row, now, leads_since)
            if stuck_s >= FALLBACK_AFTER_S:
                note = f"receiver {receiver} has not accepted this for {stuck_s / 60:.0f} min; retries continue"
                yield PlannedNotification(fallback, "trigger", "fallback", row.group_key, note=note)
                return


def _stuck_s(row: SentNotification, now: datetime, leads_since: datetime | None) -> float:
    """Return how long a receiver has not accepted a notification. One without an attempt waits behind others if it is
    due and an alerter leads."""
    if row.attempts:
        return (now - row.created_at).total_seconds()
    return 0.0 if leads_since is None else (now - max(row.due_at, leads_since)).total_seconds()

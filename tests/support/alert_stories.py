"""Stories of alerting in which anything may happen at any time, on a real database, and what must hold all the while.

Evaluators and senders of two alerters take turns as the story has it; receivers answer, refuse, do not answer, or have
taken what nobody recorded. Time goes on by moving the database's rows into the past.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notification import Notification
from alerting.incidents.notification_plan import NotificationPolicy
from alerting.incidents.notifier import Notifier
from alerting.incidents.outbox import ClaimedMessages, Outbox
from alerting.incidents.repository import expanded
from alerting.incidents.routing import Escalation, ReceiverRoute
from lagloss.errors import LaglossError
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.incidents.incident import Withheld
from lagloss_server.model.rule_places import of_pipeline
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow, OutboxMessageRow
from lagloss_server.store.store import Store
from tests.support.alerting_world import START, close_window, only_loss, rows

PIPELINES: Final = ("first", "second")
ROUTED: Final = ("hook", "chat")
FALLBACK: Final = "mail"
RECEIVERS: Final = (*ROUTED, "boss", FALLBACK)
OWNERS: Final = ("first", "second")
CLAIM_S: Final = 20.0
RULES: Final = (
    "",
    "loss: off",
    "loss: {page: {minMessages: 0, breaches: 1, of: 1}}",
    "loss: {page: off}",
    "onTime: {target: 0.99}",
    "blind: {breaches: 2, of: 2}",
    "upstream: [first]",
)
VERDICTS: Final = {"loss": 40, "ok": 0, "unknown": 0, "idle": 0}


class Died(Exception):
    """The alerter died before its commit."""


@dataclass(frozen=True, slots=True)
class MortalTeller(Notifier):
    """Tells, and then dies if the story says so."""

    story: Random = field(default_factory=Random)

    def notify(self, *given: Any) -> dict[UUID, Withheld | None]:
        withheld = Notifier.notify(self, *given)
        if self.story.random() < 0.1:
            raise Died
        return withheld


@dataclass
class InHand:
    """A claim that a sender holds. `outcome` is what it will record; None until the receiver was asked."""

    outbox: Outbox
    claimed: ClaimedMessages
    outcome: Outcome | None = None


@dataclass
class Story:
    """`heard`: by incident and receiver, what it was sent in the order of arrival, with its number in the outbox.
    `refused`: messages it refused."""

    store: Store
    random: Random
    heard: dict[tuple[UUID, str], list[tuple[int, Notification]]] = field(default_factory=lambda: defaultdict(list))
    refused: set[int] = field(default_factory=set)
    in_hand: list[InHand] = field(default_factory=list)
    windows: dict[tuple[str, int], tuple[str, bool]] = field(default_factory=dict)
    revisions: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notifier = MortalTeller(
            (ReceiverRoute((), ROUTED, repeat_s=500, escalations=(Escalation(400, ("boss",)),)),),
            policy=NotificationPolicy(FALLBACK, {"chat": 60.0}),
            story=self.random,
        )
        self.evaluators = [Evaluator(self.store, self.notifier) for _ in OWNERS]
        for name in PIPELINES:
            self.store.apply(only_loss(name=name))
        with self.store.engine.begin() as connection:
            connection.execute(
                text("INSERT INTO lease VALUES ('alerting', :owner, now(), now())"), {"owner": OWNERS[0]}
            )
        self.leader = OWNERS[0]

    def happen(self) -> None:
        """Something does."""
        events = {
            self.close: 10,
            self.evaluate: 8,
            self.claim: 10,
            self.ask: 8,
            self.record: 8,
            self.time_passes: 4,
            self.new_alerter: 1,
            self.another_leads: 1,
            self.silence: 1,
            self.unsilence: 1,
            self.acknowledge: 1,
            self.define: 1,
            self.delete: 0.5,
        }
        self.random.choices([*events], [*events.values()])[0]()
        self.check()

    def close(self) -> None:
        """Windows close, in any order, or are closed again; a few are history."""
        name, first = self.random.choice(PIPELINES), self.random.randrange(30)
        verdict = self.random.choice([*VERDICTS])
        for minute in range(first, first + self.random.choice((1, 2, 4))):
            history = self.random.random() < 0.1
            revision = self.revisions[name, minute] = self.revisions.get((name, minute), 0) + 1
            more = {"reasons": ("evidence:mid",)} if verdict == "unknown" else {}
            close_window(self.store, minute, verdict, VERDICTS[verdict], revision, name=name, history=history, **more)
            self.windows[name, minute] = (verdict, history)

    def define(self) -> None:
        name, rules = self.random.choice(PIPELINES), self.random.choice(RULES)
        self.store.apply(only_loss("" if name in rules else rules, name=name))

    def delete(self) -> None:
        living = self.store.names()
        if living:
            self.store.delete(self.random.choice(living))

    def evaluate(self) -> None:
        self.look(self.random.choice(self.evaluators))

    def look(self, evaluator: Evaluator) -> list[str]:
        """As the alerter does; it may die in the middle."""
        changes: list[str] = []
        pipelines = self.store.pipelines()
        try:
            for pipeline in pipelines:
                changes += evaluator.evaluate(pipeline)
            changes += evaluator.end_incidents_of_deleted()
        except Died:
            self.new_alerter()
        return changes

    def new_alerter(self) -> None:
        self.evaluators[self.random.randrange(len(OWNERS))] = Evaluator(self.store, self.notifier)

    def another_leads(self) -> None:
        self.leader = self.random.choice(OWNERS)
        with self.store.engine.begin() as connection:
            connection.execute(text("UPDATE lease SET owner = :owner"), {"owner": self.leader})

    def silence(self) -> None:
        matcher = self.random.choice(("pipeline=first", "rule=loss", "severity=warning"))
        incident_actions.silence(self.store, [matcher], reason="known", author="ann", for_s=400)

    def unsilence(self) -> None:
        for found in incident_actions.silences(self.store)[:1]:
            incident_actions.unsilence(self.store, found.id, "ann")

    def acknowledge(self) -> None:
        is_open = [row for row in rows(self.store, IncidentRow) if row.state == "open"]
        if is_open:
            with suppress(LaglossError):  # somebody has already
                incident_actions.acknowledge(self.store, str(self.random.choice(is_open).id), "ann")

    def claim(self) -> None:
        owner, receiver = self.random.choice(OWNERS), self.random.choice(RECEIVERS)
        self.take(owner, receiver, at_most=self.random.choice((1, 50)))

    def take(self, owner: str, receiver: str, at_most: int) -> InHand | None:
        outbox = Outbox(self.store.engine, receiver, FALLBACK)
        claimed = outbox.claim(owner, CLAIM_S, at_most)
        if claimed is None:
            return None
        assert owner == self.leader, "who does not lead claims nothing"
        self.in_hand.append(InHand(outbox, claimed))
        return self.in_hand[-1]

    def ask(self) -> None:
        """A receiver is asked, and answers, or not; its answer may be lost, with what it took."""
        asked = [each for each in self.in_hand if each.outcome is None]
        if asked:
            self.answer(self.random.choice(asked), self.random.choice(("sent", "sent", "refused", "busy", "lost", "")))

    def answer(self, held: InHand, answer: str) -> None:
        receiver, notifications = held.outbox.receiver, held.claimed.notifications
        outcomes: dict[str, Outcome] = {"sent": Sent(), "refused": Refused("HTTP 400")}
        held.outcome = outcomes.get(answer, TryLater("no answer"))
        if answer in ("sent", "lost"):
            for number, notification in zip(held.claimed.ids, notifications, strict=True):
                self.heard[UUID(notification.body["incident"]["id"]), receiver].append((number, notification))
        if answer == "refused":
            self.refused.update(held.claimed.ids)

    def record(self) -> None:
        """What came of a claim is recorded, or its sender dies before that."""
        asked = [each for each in self.in_hand if each.outcome is not None]
        if asked:
            held = self.random.choice(asked)
            self.in_hand.remove(held)
            if held.outcome is not None and self.random.random() < 0.8:
                held.outbox.record(held.claimed, held.outcome)

    def time_passes(self) -> None:
        self.later(self.random.choice((2.0, 70.0, 420.0, 1_000.0)))

    def later(self, seconds: float) -> None:
        """All rows are so much older. Who has not sent within its claim's time never does."""
        if seconds > CLAIM_S:
            self.in_hand = [held for held in self.in_hand if held.outcome is not None]
        moments = {
            "incident": ("opened_at", "resolved_at", "acknowledged_at"),
            "outbox": ("created_at", "next_attempt_at", "done_at"),
            "silence": ("starts_at", "ends_at"),
        }
        with self.store.engine.begin() as connection:
            for table, columns in moments.items():
                moved = ", ".join(f"{column} = {column} - make_interval(secs => {seconds})" for column in columns)
                connection.execute(text(f"UPDATE {table} SET {moved}"))

    def settle(self) -> None:
        """Everything that can be sent is, and nothing is in the way any more."""
        self.random.random = lambda: 1.0  # type: ignore[method-assign]  # nobody dies any more
        self.later(1_000)
        while self.in_hand:
            held = self.in_hand.pop()
            held.outbox.record(held.claimed, held.outcome or TryLater("no answer"))
        for _ in range(30):
            self.later(301)
            changes = self.look(self.evaluators[0])
            sent = [self._send_all(receiver) for receiver in RECEIVERS]
            if not changes and not any(sent):
                return
            self.later(-301)  # or there is always somebody to remind
        raise AssertionError("alerting does not come to rest")

    def _send_all(self, receiver: str) -> int:
        sent = 0
        while (held := self.take(self.leader, receiver, at_most=50)) is not None:
            self.answer(held, "sent")
            self.in_hand.remove(held)
            held.outbox.record(held.claimed, Sent())
            sent += 1
        return sent

    def check(self) -> None:
        """What holds at any moment."""
        incidents = rows(self.store, IncidentRow)
        is_open = [(row.pipeline, row.rule) for row in incidents if row.state == "open"]
        assert len(is_open) == len(set(is_open)), "of a rule, one incident is open"
        held: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in incidents:
            held[row.pipeline, row.rule] += expanded(row.detail["breaches"])
        for starts in held.values():
            assert len(starts) == len(set(starts)), "a window is in one incident"
        for (incident, receiver), notifications in self.heard.items():
            self._check_sequence(incident, receiver, notifications)

    def _check_sequence(self, incident: UUID, receiver: str, notifications: list[tuple[int, Notification]]) -> None:
        numbers = [number for number, _ in notifications]
        assert numbers == sorted(numbers), f"{receiver} heard {incident} in the wrong order"
        assert len(set(numbers)) == len({notification.key for _, notification in notifications}), (
            "a key of its own each"
        )
        heard = list({number: notification.action for number, notification in notifications}.items())
        told = self._queued(incident, receiver)
        episodes, knows = 0, False
        for number, action in heard:
            if action == "trigger":
                episodes, knows = episodes + (not knows), True
            else:
                refused = [each for each in told if each.id < number and each.id in self.refused]
                assert knows or refused, f"{receiver} heard {action} of {incident} before it opened"
                knows = knows and action != "resolve"
        reopened = [
            row
            for row in rows(self.store, IncidentChangeRow)
            if (row.incident_id, row.change) == (incident, "reopened")
        ]
        assert episodes <= 1 + len(reopened), f"{receiver} heard of {incident} again after its end"

    def _queued(self, incident: UUID, receiver: str) -> list[Any]:
        return [
            row for row in rows(self.store, OutboxMessageRow) if (row.incident_id, row.receiver) == (incident, receiver)
        ]

    def check_end(self) -> None:
        """What holds once all is sent: who is routed knows of what is open, and nobody of anything else."""
        self.check()
        before = len(rows(self.store, OutboxMessageRow))
        assert self.look(Evaluator(self.store, self.notifier)) == [], "an alerter made anew changes nothing"
        assert len(rows(self.store, OutboxMessageRow)) == before, "and tells nothing"
        for row in rows(self.store, IncidentRow):
            for receiver in RECEIVERS:
                heard = self.heard.get((row.id, receiver), [])
                actions = [
                    notification.action for _, notification in heard if notification.action in ("trigger", "resolve")
                ]
                knows = actions[-1:] == ["trigger"]
                was_refused = any(each.id in self.refused for each in self._queued(row.id, receiver))
                if row.state != "open":
                    assert not knows or was_refused, f"{receiver} does not know that {row.rule} is over"
                elif row.withheld_kind is None and row.acknowledged_at is None and receiver in ROUTED:
                    assert knows or was_refused, f"{receiver} does not know that {row.rule} is open"
        self._check_loss()

    def _check_loss(self) -> None:
        """Each lossy window is in an incident, and one that pages in a page."""
        for pipeline in self.store.pipelines():
            name, settings = pipeline.name, of_pipeline(pipeline.definition.spec.alerts.loss)
            if settings is None:
                continue
            closed = sorted(minute for (of, minute), (_, history) in self.windows.items() if of == name and not history)
            held = {
                (start, row.severity)
                for row in rows(self.store, IncidentRow)
                if (row.pipeline, row.rule) == (name, "loss")
                for start in expanded(row.detail["breaches"])
            }
            lossy = {each for each in closed if self.windows[name, each][0] == "loss"}
            missed = {START + 60 * each for each in lossy} - {start for start, _ in held}
            assert not missed, f"{name}: windows in no incident: {missed}"
            for at, page in enumerate([] if settings.page is None else [settings.page] * len(closed)):
                last = lossy.intersection(closed[max(0, at - page.of + 1) : at + 1])
                if closed[at] in last and len(last) >= page.breaches:
                    assert (START + 60 * closed[at], "critical") in held, f"{name}: no page of {closed[at]}"

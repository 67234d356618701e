"""A sender and its claim: it holds longer than the sending takes, and who was asleep meanwhile sends nothing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from alerting.delivery import sender as sending
from alerting.delivery.sender import HeldLead, Sender
from alerting.incidents.notification import Notification
from alerting.incidents.outbox import ClaimedMessages, Outbox
from alerting.metrics import AlertingMetrics
from lagloss_server.net.outcome import Outcome, Sent
from tests.fakes.notifications import notification


class OneMessage(Outbox):
    """Has one message for the first who claims."""

    def __init__(self) -> None:
        self.receiver = "hook"
        self.claims_s: list[float] = []
        self.asked_again = threading.Event()

    def claim(self, owner: str, claim_s: float, at_most: int) -> ClaimedMessages | None:
        self.claims_s.append(claim_s)
        if len(self.claims_s) > 1:
            self.asked_again.set()
            return None
        return ClaimedMessages(uuid.uuid4(), [1], (notification(),), ("opened",), 1, (0.0,))

    def record(self, claimed: ClaimedMessages, outcome: Outcome) -> Outcome:
        return outcome

    def next_due_s(self) -> float | None:
        return None


class Kept:
    at_most: int = 1
    resend_s: float | None = None
    timeout_s: float = 7.0

    def __init__(self) -> None:
        self.sent: list[Notification] = []

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        self.sent += notifications
        return Sent()

    def close(self) -> None:
        pass


def run(outbox: OneMessage) -> Kept:
    """Lets a sender work until there is nothing more to claim."""
    transport = Kept()
    sender = Sender(outbox, transport, HeldLead("me"), AlertingMetrics())
    sender.start()
    assert outbox.asked_again.wait(5)
    sender.stop()
    sender.join(5)
    return transport


def test_a_claim_holds_longer_than_the_claiming_and_the_sending_together() -> None:
    outbox = OneMessage()
    assert len(run(outbox).sent) == 1
    assert outbox.claims_s[0] >= Kept.timeout_s + sending.CLAIM_MARGIN_S


def test_who_was_asleep_between_claim_and_sending_leaves_the_message_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = iter([0.0, sending.CLAIM_MARGIN_S + 0.1])
    monkeypatch.setattr(sending, "_now_s", lambda: next(clock, 100.0))
    assert run(OneMessage()).sent == []

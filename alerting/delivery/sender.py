"""Sender of a receiver's messages: a thread per receiver, so that one that hangs delays no other."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

import structlog

from alerting.delivery.transports.base import Transport
from alerting.incidents.outbox import ClaimedMessages, Outbox
from alerting.leader_election import AWAY, pause_s
from alerting.metrics import AlertingMetrics
from lagloss_server.base.turns import WatchedLoop
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater

CLAIM_MARGIN_S: Final = 10.0
"""How much longer a claim holds than the longest sending takes."""
TURN_MARGIN_S: Final = 120.0
"""How much longer than its sending a turn may take until it counts as hung."""
IDLE_S: Final = 2.0
"""Interval at which the outbox is read even without a wake-up."""
BUG_PAUSE_S: Final = 10.0
"""Pause after an unexpected exception."""

_log = structlog.get_logger("lagloss.alerting")


@dataclass(slots=True)
class HeldLead:
    """Whether this process leads: the session that owns the lead, else None. Written by the alerter's thread, read by
    the senders'."""

    owner: str | None = None


class Sender:
    """Sends what the outbox holds for one receiver, while this alerter leads."""

    def __init__(self, outbox: Outbox, transport: Transport, lead: HeldLead, metrics: AlertingMetrics) -> None:
        self.receiver = outbox.receiver
        self.loop = WatchedLoop(f"sending to {outbox.receiver}", transport.timeout_s + TURN_MARGIN_S)
        self._outbox = outbox
        self._transport = transport
        self._lead = lead
        self._metrics = metrics
        self._apart = False
        """The transport failed on a group: its messages go one by one, so that the one it fails on delays no other."""
        self._paused_until_s = float("-inf")
        """The receiver has named a pause, which ends then (monotonic clock)."""
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"sender-{self.receiver}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread: the outbox may have a message to send."""
        self._woken.set()

    def stop(self) -> None:
        """Stop the thread after the current sending; the next leader sends the rest."""
        self._stopping = True
        self._woken.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end, at most this long."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._transport.close()

    def _run(self) -> None:
        failures = 0
        while not self._stopping:
            self.loop.finished()
            self._woken.clear()
            try:
                while self._send_some():
                    self.loop.finished()
                wait_s = self._until_due_s()
                failures = 0
            except AWAY as error:
                failures += 1
                wait_s = pause_s(failures)
                _log.warning(
                    "outbox_unreachable", receiver=self.receiver, error=type(error).__name__, again_in_s=wait_s
                )
            except Exception:
                wait_s = BUG_PAUSE_S  # our bug; the message is due again when its claim runs out
                _log.exception("sending_failed", receiver=self.receiver)
            self._woken.wait(wait_s)

    def _until_due_s(self) -> float:
        due_s = self._outbox.next_due_s() if self._lead.owner is not None else None
        return IDLE_S if due_s is None else min(max(due_s, self._pause_s(), 0.05), IDLE_S)

    def _pause_s(self) -> float:
        return self._paused_until_s - time.monotonic()

    def _send_some(self) -> bool:
        """Claim, send and record one message or group; return whether there was one."""
        owner = self._lead.owner
        if owner is None or self._stopping or self._pause_s() > 0:
            return False
        claimed_at_s = _now_s()
        claim_s = self._transport.timeout_s + CLAIM_MARGIN_S
        at_most = 1 if self._apart else self._transport.at_most
        claimed = self._outbox.claim(owner, claim_s, at_most)
        if claimed is None:
            self._apart = False
            return False
        if _now_s() - claimed_at_s > CLAIM_MARGIN_S:
            return True  # we were asleep: another sender may be sending it by now
        began_s = time.monotonic()
        outcome = self._send(claimed)
        if isinstance(outcome, TryLater) and outcome.after_s is not None:
            self._paused_until_s = time.monotonic() + outcome.after_s
        outcome = self._outbox.record(claimed, outcome)
        self._note(claimed, outcome, time.monotonic() - began_s)
        return True

    def _send(self, claimed: ClaimedMessages) -> Outcome:
        try:
            return self._transport.send(claimed.notifications)
        except Exception as error:  # our bug: until it is fixed, it is retried, and raised through the fallback
            _log.exception("transport_failed", receiver=self.receiver, messages=claimed.ids)
            self._apart = len(claimed.ids) > 1
            return TryLater(f"the transport failed ({type(error).__name__})")

    def _note(self, claimed: ClaimedMessages, outcome: Outcome, took_s: float) -> None:
        facts = {"receiver": self.receiver, "messages": claimed.ids, "changes": claimed.changes}
        name = {Sent: "sent", Refused: "failed", TryLater: "retried"}[type(outcome)]
        self._metrics.notified(self.receiver, name, len(claimed.ids), took_s, claimed.age_s)
        match outcome:
            case Sent():
                _log.info("message_sent", **facts, attempts=claimed.attempts)
            case Refused(error):
                _log.error("message_failed", **facts, error=error)
            case TryLater(error):
                _log.warning("message_retried", **facts, error=error, attempts=claimed.attempts)


def _now_s() -> float:
    """Return a clock that continues while the machine sleeps, which `time.monotonic` does not everywhere."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

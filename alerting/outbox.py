"""The outbox: messages are claimed, sent and recorded, each of the three in a statement of its own.

A claim is a lease: it moves `next_attempt_at` past the longest a sending takes. An alerter that dies between claim and
record leaves a message that is due again: it is sent at least once. Within an incident, later messages wait for
earlier ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

import structlog
from sqlalchemy import Engine, text

from alerting.webhook import TIMEOUT_S, Refused, Sent, TryLater, Webhook

LEASE_S: Final = 4 * TIMEOUT_S
"""httpx limits connect, write, read and waiting for a connection one by one."""
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 300.0
GIVE_UP_AFTER_S: Final = 86_400

_log = structlog.get_logger("lagloss.alerting")

_CLAIM: Final = text(
    """
    UPDATE outbox SET attempts = attempts + 1, next_attempt_at = clock_timestamp() + make_interval(secs => :lease_s)
    WHERE id = (
        SELECT due.id FROM outbox AS due
        WHERE due.sent_at IS NULL AND due.failed_at IS NULL AND due.next_attempt_at <= clock_timestamp()
          AND NOT EXISTS (
            SELECT FROM outbox AS before
            WHERE before.incident_id = due.incident_id AND before.id < due.id
              AND before.sent_at IS NULL AND before.failed_at IS NULL)
        ORDER BY due.next_attempt_at, due.id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, body, change, attempts, extract(epoch FROM clock_timestamp() - created_at)::float8 AS age_s
    """
)
_SENT: Final = text(
    "UPDATE outbox SET sent_at = clock_timestamp(), last_error = NULL WHERE id = :id AND sent_at IS NULL"
)
_FAILED: Final = text("UPDATE outbox SET failed_at = clock_timestamp(), last_error = :error WHERE id = :id")
_LATER: Final = text(
    "UPDATE outbox SET next_attempt_at = clock_timestamp() + make_interval(secs => :after_s), last_error = :error "
    "WHERE id = :id"
)
_NEXT_DUE: Final = text(
    "SELECT extract(epoch FROM min(next_attempt_at) - clock_timestamp())::float8 FROM outbox "
    "WHERE sent_at IS NULL AND failed_at IS NULL"
)


@dataclass(frozen=True, slots=True)
class Claimed:
    id: int
    change: str
    body: dict[str, Any]
    attempts: int
    age_s: float


class Outbox:
    def __init__(self, engine: Engine, webhook: Webhook) -> None:
        self._engine = engine
        self._webhook = webhook

    def send_one(self) -> bool:
        """Claims, sends and records one due message; whether there was one."""
        claimed = self._claim()
        if claimed is None:
            return False
        self._record(claimed, self._webhook.post(claimed.id, claimed.body))
        return True

    def next_due_s(self) -> float | None:
        """Seconds until the next message is due (0 or less: now); None when nothing waits."""
        with self._engine.connect() as connection:
            due: float | None = connection.execute(_NEXT_DUE).scalar()
        return due

    def _claim(self) -> Claimed | None:
        with self._engine.begin() as connection:
            row = connection.execute(_CLAIM, {"lease_s": LEASE_S}).one_or_none()
        return None if row is None else Claimed(row.id, row.change, row.body, row.attempts, row.age_s)

    def _record(self, message: Claimed, answer: Sent | Refused | TryLater) -> None:
        if isinstance(answer, TryLater) and message.age_s > GIVE_UP_AFTER_S:
            answer = Refused(f"given up after {message.attempts} attempts in a day; the last: {answer.error}")
        with self._engine.begin() as connection:
            match answer:
                case Sent():
                    connection.execute(_SENT, {"id": message.id})
                    _log.info("message_sent", message=message.id, change=message.change, attempts=message.attempts)
                case Refused(error):
                    connection.execute(_FAILED, {"id": message.id, "error": error})
                    _log.error("message_failed", message=message.id, change=message.change, error=error)
                case TryLater(error, after_s):
                    wait_s = max(backoff_s(message.attempts, random.random()), after_s or 0)
                    connection.execute(_LATER, {"id": message.id, "error": error, "after_s": wait_s})
                    _log.warning("message_retried", message=message.id, error=error, again_in_s=round(wait_s, 1))


def backoff_s(attempts: int, chance: float) -> float:
    """Doubles from 1 s to 5 min, times 0.75 to 1.25 (`chance` in [0, 1)), so that receivers are not hit in step."""
    return min(FIRST_RETRY_S * 2.0 ** min(attempts - 1, 20), LONGEST_RETRY_S) * (0.75 + chance / 2)

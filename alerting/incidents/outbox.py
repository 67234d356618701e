"""The outbox: messages are queued, claimed and recorded, each in a statement of its own.

An alerter that dies between claim and record leaves messages that are due again when the claim expires: they are sent
at least once. Of one incident and receiver, later messages wait for earlier ones, so a trigger is never sent after its
resolve.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, insert, select, text

from alerting.incidents.notification import Notification
from alerting.incidents.notification_plan import PlannedNotification, SentNotification
from alerting.incidents.repository import take_turn
from lagloss_server.model.canary import CANARY
from lagloss_server.net.outcome import GIVE_UP_AFTER_S, LONGEST_WAIT_S, Outcome, Refused, Sent, TryLater
from lagloss_server.store.ownership import ALERTING, Claims
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.schema.core import table_of

_KEYS: Final = uuid.UUID("0b5c3c0e-6d0f-5d42-8f3a-5a4f3a9b7e61")
KEPT_S: Final = 90 * 86_400
"""How long messages of incidents that are over are kept."""
CANARY_KEPT_S: Final = 2 * 86_400
"""How long the canary's incidents are kept once they are over, and its messages."""

_TYPES: Final = {"fallback": "opened", "refresh": "updated"}
"""Title of a message whose change says why it is sent, not what has become of the incident."""

_CLAIMS: Final = Claims(OutboxMessageRow)
_IS_FIRST: Final = """NOT EXISTS (
        SELECT FROM outbox AS before
        WHERE before.incident_id = due.incident_id AND before.receiver = due.receiver
          AND before.id < due.id AND before.done_at IS NULL)"""
_NEXT: Final = text(
    f"""
    id = ANY(ARRAY(
      WITH free AS (
        SELECT id FROM outbox AS due
        WHERE receiver = :receiver AND done_at IS NULL AND next_attempt_at <= clock_timestamp()
          AND {_IS_FIRST}
        ORDER BY next_attempt_at, id LIMIT 1000),
      -- the conditions once more, under the lock: another sender may have claimed it meanwhile
      unlocked AS (
        SELECT group_key FROM outbox
        WHERE id = ANY(ARRAY(SELECT id FROM free)) AND done_at IS NULL AND next_attempt_at <= clock_timestamp()
        ORDER BY next_attempt_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
      SELECT id FROM outbox
      WHERE id = ANY(ARRAY(SELECT id FROM free)) AND done_at IS NULL AND next_attempt_at <= clock_timestamp()
        AND group_key = (SELECT group_key FROM unlocked)
      ORDER BY next_attempt_at, id LIMIT :at_most FOR UPDATE SKIP LOCKED))
    AND EXISTS (SELECT FROM lease WHERE work = :lead AND owner = :owner)
    """
)
"""Condition of the messages that are due first, of one group, while the session that asks leads: those that no other
transaction holds. No more are looked at than a group can have many times over; the others are claimed by the next
statement."""
_FALLBACK: Final = text(
    """
    INSERT INTO outbox (receiver, incident_id, action, change, group_key, body)
    SELECT :fallback, incident_id, 'trigger', 'fallback', group_key,
        jsonb_set(body, '{notes}', body->'notes' || to_jsonb(CAST(:note AS text)))
    FROM outbox AS failed
    WHERE id = ANY(:ids) AND action IN ('trigger', 'update') AND receiver <> :fallback
      AND NOT EXISTS (
        SELECT FROM outbox AS told
        WHERE told.incident_id = failed.incident_id AND told.receiver = :fallback AND told.action = 'trigger'
          AND told.id > coalesce((SELECT max(id) FROM outbox AS ended WHERE ended.incident_id = failed.incident_id
                                  AND ended.receiver = :fallback AND ended.action = 'resolve'
                                  AND ended.id < failed.id), 0))
    RETURNING incident_id
    """
)
_FALLBACK_END: Final = text(
    """
    INSERT INTO outbox (receiver, incident_id, action, change, group_key, body)
    SELECT DISTINCT ON (ended.incident_id) CAST(:fallback AS text), ended.incident_id, 'resolve', ended.change,
        ended.group_key, ended.body
    FROM outbox AS failed
    JOIN outbox AS ended ON ended.incident_id = failed.incident_id AND ended.receiver = failed.receiver
      AND ended.action = 'resolve' AND ended.id > failed.id
    WHERE failed.id = ANY(:ids) AND failed.incident_id = ANY(:incidents)
    ORDER BY ended.incident_id, ended.id
    """
)
_CONCERNED: Final = text(
    "SELECT DISTINCT pipeline FROM incident JOIN outbox ON outbox.incident_id = incident.id "
    "WHERE outbox.id = ANY(:ids) ORDER BY pipeline"
)
_NEXT_DUE: Final = text(
    f"""
    SELECT extract(epoch FROM min(next_attempt_at) - clock_timestamp())::float8 FROM outbox AS due
    WHERE receiver = :receiver AND done_at IS NULL AND {_IS_FIRST}
    """
)
_OVER: Final = (
    "SELECT id FROM incident WHERE pipeline = :canary "
    "AND resolved_at < clock_timestamp() - make_interval(secs => :kept_s)"
)
"""The canary's incidents that are over: there is one in each hour."""
_TIDY: Final = text(
    """
    DELETE FROM outbox WHERE done_at < clock_timestamp() - make_interval(secs => :kept_s)
      AND NOT EXISTS (SELECT FROM incident WHERE incident.id = incident_id AND state = 'open')
    """
)
_TIDY_CANARY: Final = (
    "DELETE FROM outbox WHERE receiver = :canary AND done_at < clock_timestamp() - make_interval(secs => :kept_s)",
    f"DELETE FROM outbox WHERE incident_id IN ({_OVER})",
    f"DELETE FROM incident_change WHERE incident_id IN ({_OVER})",
    f"DELETE FROM incident WHERE id IN ({_OVER})",
)
_DROP: Final = text(
    "UPDATE outbox SET done_at = clock_timestamp(), outcome = 'dropped', "
    "last_error = 'this receiver was removed from the alerting file' "
    "WHERE done_at IS NULL AND receiver <> ALL(:receivers)"
)
_WITHDRAW: Final = text(
    "UPDATE outbox SET done_at = clock_timestamp(), outcome = 'dropped' "
    "WHERE id = ANY(:ids) AND attempts = 0 AND done_at IS NULL"
)
_SUPERSEDE: Final = text(
    "UPDATE outbox SET done_at = clock_timestamp(), outcome = 'dropped' WHERE incident_id = :incident "
    "AND receiver = :receiver AND action IN ('update', 'refresh') AND attempts = 0 AND done_at IS NULL"
)
_FORGET_REFRESHES: Final = text(
    "DELETE FROM outbox WHERE incident_id = :incident AND receiver = :receiver AND action = 'refresh' "
    "AND done_at IS NOT NULL"
)
"""Of which one is sent each minute: once another message follows, none depends on them."""


@dataclass(frozen=True, slots=True)
class ClaimedMessages:
    """Messages that go to one receiver together. `claim` is what lets their outcome be recorded. `ages_s`: of each, in
    seconds."""

    claim: uuid.UUID
    ids: list[int]
    notifications: tuple[Notification, ...]
    changes: tuple[str, ...]
    attempts: int
    ages_s: tuple[float, ...]

    @property
    def age_s(self) -> float:
        """Age of the oldest message in seconds."""
        return max(self.ages_s)

    @property
    def overdue(self) -> list[int]:
        """Ids of the messages that are given up if this attempt fails."""
        return [number for number, age_s in zip(self.ids, self.ages_s, strict=True) if age_s > GIVE_UP_AFTER_S]


def notifications_of(connection: Connection, incidents: Iterable[uuid.UUID]) -> dict[uuid.UUID, list[SentNotification]]:
    """Read the notifications queued or sent of these incidents, oldest first, without dropped ones."""
    table = table_of(OutboxMessageRow)
    rows = connection.execute(
        select(table)
        .where(table.c.incident_id.in_(list(incidents)), table.c.outcome.is_distinct_from("dropped"))
        .order_by(table.c.id)
    )
    by_incident: dict[uuid.UUID, list[SentNotification]] = {}
    for row in rows:
        sent = SentNotification(
            row.id,
            row.receiver,
            row.action,
            row.change,
            row.created_at,
            row.next_attempt_at,
            row.body,
            row.group_key,
            row.attempts,
            row.outcome,
        )
        by_incident.setdefault(row.incident_id, []).append(sent)
    return by_incident


def withdraw(connection: Connection, rows: Iterable[SentNotification]) -> None:
    """Drop messages, unless a sender has claimed them meanwhile."""
    connection.execute(_WITHDRAW, {"ids": [row.id for row in rows]})


def queue(
    connection: Connection, incident: uuid.UUID, body: dict[str, Any], orders: Sequence[PlannedNotification]
) -> None:
    """Add the messages; drop older updates that have had no attempt yet, and forget refreshes that are done."""
    for order in orders:
        for statement in (_SUPERSEDE, _FORGET_REFRESHES):
            connection.execute(statement, {"incident": incident, "receiver": order.receiver})
        connection.execute(
            insert(OutboxMessageRow).values(
                key=key_of(incident, order),
                receiver=order.receiver,
                incident_id=incident,
                action=order.action,
                change=order.change,
                group_key=order.group_key,
                body={
                    **body,
                    "type": f"incident.{_TYPES.get(order.change, order.change)}",
                    "notes": [*body["notes"], *([order.note] if order.note else [])],
                },
                next_attempt_at=text("clock_timestamp() + make_interval(secs => :wait_s)").bindparams(
                    wait_s=order.wait_s
                ),
            )
        )


def key_of(incident: uuid.UUID, order: PlannedNotification) -> uuid.UUID:
    """Return the key of a message: of the one that opens an incident always the same, so that a receiver is not paged
    again by a database that has forgotten it. Of any other none that another message has had, or will have."""
    opens = order.change == "opened"
    return uuid.uuid5(_KEYS, f"{incident}/{order.receiver}") if opens else uuid.uuid4()


class Outbox:
    """Outbox of one receiver, as its sender uses it. `fallback`: receiver of the messages that this one refuses;
    `longest_wait_s`: before a retry, if the receiver names no pause."""

    def __init__(
        self, engine: Engine, receiver: str, fallback: str | None, longest_wait_s: float = LONGEST_WAIT_S
    ) -> None:
        self._engine = engine
        self.receiver = receiver
        self._fallback = fallback
        self._longest_wait_s = longest_wait_s

    def claim(self, owner: str, claim_s: float, at_most: int) -> ClaimedMessages | None:
        """Claim the messages that are due first, of one group; return None if none are, or if the session `owner` does
        not lead any more."""
        with self._engine.begin() as connection:
            return self.claim_in(connection, owner, claim_s, at_most)

    def claim_in(self, connection: Connection, owner: str, claim_s: float, at_most: int) -> ClaimedMessages | None:
        """Claim messages in a transaction of the caller's."""
        params = {"receiver": self.receiver, "at_most": at_most, "lead": ALERTING, "owner": owner}
        claim, rows = _CLAIMS.claim(connection, claim_s, _NEXT.bindparams(**params))
        if not rows:
            return None
        rows.sort(key=lambda row: row.id)
        ids = [row.id for row in rows]
        now = rows[0].created_at + timedelta(seconds=rows[0].age_s)
        notifications = tuple(Notification(row.key, row.action, row.body, now) for row in rows)
        changes = tuple(row.change for row in rows)
        ages_s = tuple(row.age_s for row in rows)
        return ClaimedMessages(claim, ids, notifications, changes, max(row.attempts for row in rows), ages_s)

    def record(self, claimed: ClaimedMessages, outcome: Outcome) -> Outcome:
        """Record the outcome, unless the claim has expired and another sender holds the messages. Refused messages, and
        those given up after a day, are raised through the fallback in the same commit. Return the recorded outcome; of
        a group, that of the messages that are tried again."""
        with self._engine.begin() as connection:
            match outcome:
                case Sent():
                    _CLAIMS.finish(connection, claimed.claim, "sent", None, _are(claimed.ids))
                case Refused(error):
                    self._fail(connection, claimed, claimed.ids, error)
                case TryLater(error):
                    given_up = outcome.given_up(claimed.attempts)
                    if claimed.overdue:
                        self._fail(connection, claimed, claimed.overdue, given_up.error)
                    wait_s = outcome.wait_s(claimed.attempts, longest_s=self._longest_wait_s)
                    _CLAIMS.defer(connection, claimed.claim, wait_s, error, _are(claimed.ids))
                    return outcome if len(claimed.overdue) < len(claimed.ids) else given_up
        return outcome

    def _fail(self, connection: Connection, claimed: ClaimedMessages, ids: list[int], error: str) -> None:
        """Record a failure and raise it through the fallback, with the resolve if the incident is over by now:
        evaluation would not send that there. It takes turns with evaluation."""
        for pipeline in connection.execute(_CONCERNED, {"ids": ids}).scalars().all():
            take_turn(connection, pipeline)
        failed = [row.id for row in _CLAIMS.finish(connection, claimed.claim, "failed", error, _are(ids))]
        if self._fallback is None or not failed:
            return
        note = f"receiver {self.receiver} refused this: {error}"
        raised = {"fallback": self._fallback, "ids": failed, "note": note}
        incidents = connection.execute(_FALLBACK, raised).scalars().all()
        connection.execute(_FALLBACK_END, {"fallback": self._fallback, "ids": failed, "incidents": incidents})

    def next_due_s(self) -> float | None:
        """Return the seconds until the next message is due (0 or less: now); None when nothing waits."""
        with self._engine.connect() as connection:
            due: float | None = connection.execute(_NEXT_DUE, {"receiver": self.receiver}).scalar()
        return due


def _are(ids: Sequence[int]) -> ColumnElement[bool]:
    return _CLAIMS.table.c.id.in_(ids)


def drop_all_but(connection: Connection, receivers: Sequence[str]) -> None:
    """Drop waiting messages of all other receivers."""
    connection.execute(_DROP, {"receivers": list(receivers)})


def tidy(engine: Engine) -> None:
    """Delete messages that were done long ago, except those of open incidents, whose plan still depends on them; and
    incidents of the canary."""
    with engine.begin() as connection:
        connection.execute(_TIDY, {"kept_s": KEPT_S})
        for statement in _TIDY_CANARY:
            connection.execute(text(statement), {"canary": CANARY, "kept_s": CANARY_KEPT_S})

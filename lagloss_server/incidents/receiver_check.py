"""A rehearsal: a notification that is no incident goes the way of all others, to see that one receiver gets it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import uuid4

from sqlalchemy import Row, func, insert, select, update

from lagloss_server.base.errors import NoAlerter, UnknownReceiver
from lagloss_server.base.times import moment
from lagloss_server.incidents.actions import notify
from lagloss_server.incidents.deliveries import outbox_table
from lagloss_server.model.window import rfc3339
from lagloss_server.store import audit
from lagloss_server.store.ownership import ALERTING, read_holder
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

WAIT_S: Final = 30.0
_POLL_S: Final = 0.2

receiver_table = table_of(alert_tables.ReceiverRow)


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """`sent`; `refused`: permanently; `retried`: not accepted in time, and the alerter keeps trying."""

    outcome: Literal["sent", "refused", "retried"]
    attempts: int
    error: str | None


def request_test(store: Store, receiver: str, by: str) -> int:
    """Queues a test for a receiver; the message's number.

    Raises:
        UnknownReceiver: the leading alerter has none of this name; with the names there are.
    """
    with store.engine.begin() as connection:
        names = list(connection.execute(select(receiver_table.c.name).order_by(receiver_table.c.name)).scalars())
        if receiver not in names:
            receivers = (
                f"existing receivers: {', '.join(names)}"
                if names
                else "no receivers are known: no alerter has become leader yet"
            )
            raise UnknownReceiver(receiver=receiver, known=receivers)
        message = insert(outbox_table).values(
            receiver=receiver, action="test", change="test", group_key="test", body=body(by, time.time())
        )
        number = connection.execute(message.returning(outbox_table.c.id)).scalar_one()
        notify(connection, f"test/{number}")
        audit.note(connection, "receiver.test", receiver, by=by)
    return int(number)


def await_test(store: Store, message: int, *, wait_s: float = WAIT_S) -> CheckOutcome:
    """Wait for the outcome of the test and return it.

    Raises:
        NoAlerter: no alerter tried to send it. It is taken back: it must not go out when an alerter starts next week.
    """
    deadline = time.monotonic() + wait_s
    while True:
        row = _row(store, message)
        if row.done_at is not None:
            return CheckOutcome("sent" if row.outcome == "sent" else "refused", row.attempts, row.last_error)
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    if row.attempts == 0 and _take_back(store, message):
        raise NoAlerter(receiver=row.receiver, waited_s=wait_s, detail=_leads(store))
    return CheckOutcome("retried", row.attempts, row.last_error)


def body(by: str, now_s: float) -> dict[str, Any]:
    """Return a body in the shape of an incident's, so that every receiver shows it like one."""
    start_s = int(now_s) // 60 * 60
    sent_at, since = moment(datetime.fromtimestamp(now_s, UTC)), rfc3339(start_s)
    return {
        "version": 1,
        "type": "test",
        "summary": f"test notification requested by {by}: nothing is wrong",
        "incident": {
            "id": str(uuid4()),
            "pipeline": "test",
            "rule": "test",
            "kind": "test",
            "severity": "warning",
            "state": "open",
            "labels": {},
            "opened_at": sent_at,
            "resolved_at": None,
            "resolved_because": None,
            "acknowledged_at": None,
            "acknowledged_by": None,
        },
        "breach": {
            "what": "test",
            "unit": "times",
            "value": 0.0,
            "worst": 0.0,
            "target": 0.0,
            "text": "this is a test; nothing is wrong",
            "window_start": since,
            "window_end": rfc3339(start_s + 60),
            "worst_window_start": None,
            "messages": None,
            "lost": None,
        },
        "since": since,
        "windows": {"first": since, "last": since, "count": 0},
        "where": [],
        "destinations": [],
        "blame": None,
        "examples": [],
        "notes": [f"requested by {by}"],
        "links": {"dashboard": None, "incident": None, "runbook": None},
        "commands": {"acknowledge": "", "silence": ""},
    }


def _row(store: Store, message: int) -> Row[Any]:
    columns = ("receiver", "done_at", "outcome", "attempts", "last_error")
    statement = select(*(outbox_table.c[name] for name in columns)).where(outbox_table.c.id == message)
    with store.engine.connect() as connection:
        return connection.execute(statement).one()


def _take_back(store: Store, message: int) -> bool:
    """Return whether it is out of the queue; not if an alerter has claimed it just now."""
    table = outbox_table
    untouched = (table.c.id == message) & (table.c.attempts == 0) & table.c.done_at.is_(None)
    values = {"outcome": "dropped", "done_at": func.clock_timestamp(), "last_error": "no alerter was leader"}
    with store.engine.begin() as connection:
        return bool(connection.execute(update(table).where(untouched).values(**values)).rowcount)


def _leads(store: Store) -> str:
    with store.engine.connect() as connection:
        leader = read_holder(connection, ALERTING)
    if leader is None:
        return "no alerter has become leader yet"
    return f"the last leader, on {leader.host}, sent its last heartbeat at {moment(leader.well_at)}"

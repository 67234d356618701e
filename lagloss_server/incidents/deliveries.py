"""Deliveries: messages to receivers that were sent, wait to be sent, or failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict
from uuid import UUID

from sqlalchemy import Row, func, select

from lagloss_server.base.times import moment
from lagloss_server.incidents.incident import incident_table
from lagloss_server.model.canary import CANARY
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

FAILED_FOR: Final = timedelta(days=7)
"""Deliveries that failed longer ago are not brought up any more."""
MAX_FAILED: Final = 200

outbox_table = table_of(alert_tables.OutboxMessageRow)
WITHOUT_BODY: Final = [column for column in outbox_table.c if column.name != "body"]


class DeliveryDocument(TypedDict):
    """One message to one receiver: see `Delivery`."""

    id: int
    receiver: str
    action: str
    change: str
    outcome: str
    attempts: int
    last_error: str | None
    created_at: str | None
    next_attempt_at: str | None
    done_at: str | None
    pipeline: str | None
    rule: str | None
    works_since: str | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one receiver. `outcome` is sent, failed, dropped or waiting; `pipeline` and `rule` are None of a
    test and a report. `works_since`: when the receiver first took something after this failed."""

    id: int
    receiver: str
    action: str
    change: str
    outcome: str
    attempts: int
    last_error: str | None
    created_at: datetime
    next_attempt_at: datetime | None
    done_at: datetime | None
    pipeline: str | None = None
    rule: str | None = None
    works_since: datetime | None = None

    def document(self) -> DeliveryDocument:
        return {
            "id": self.id,
            "receiver": self.receiver,
            "action": self.action,
            "change": self.change,
            "outcome": self.outcome,
            "attempts": self.attempts,
            "last_error": self.last_error,
            "created_at": moment(self.created_at),
            "next_attempt_at": moment(self.next_attempt_at),
            "done_at": moment(self.done_at),
            "pipeline": self.pipeline,
            "rule": self.rule,
            "works_since": moment(self.works_since),
        }


def deliveries(store: Store, incident_id: UUID) -> list[Delivery]:
    """Return an incident's deliveries, sent or waiting, oldest first."""
    table = outbox_table
    statement = select(*WITHOUT_BODY).where(table.c.incident_id == incident_id).order_by(table.c.id)
    with store.engine.connect() as connection:
        return [delivery(row) for row in connection.execute(statement)]


def failed_deliveries(store: Store, now: datetime | None = None) -> list[Delivery]:
    """Return messages that were given up in the last 7 days, newest first, 200 at most."""
    outbox, about = outbox_table, incident_table
    works_since = func.min(outbox.c.done_at).filter(outbox.c.outcome == "sent")
    done = (
        select(
            *WITHOUT_BODY,
            works_since.over(partition_by=outbox.c.receiver, order_by=outbox.c.done_at, rows=(0, None)).label(
                "works_since"
            ),
        )
        .where(outbox.c.done_at > (now or datetime.now(UTC)) - FAILED_FOR)
        .subquery()
    )
    statement = (
        select(done, about.c.pipeline, about.c.rule)
        .outerjoin(about, about.c.id == done.c.incident_id)
        .where(done.c.outcome == "failed", about.c.pipeline.is_distinct_from(CANARY))
        .order_by(done.c.done_at.desc(), done.c.id.desc())
        .limit(MAX_FAILED)
    )
    with store.engine.connect() as connection:
        return [delivery(row, row.pipeline, row.rule, row.works_since) for row in connection.execute(statement)]


def delivery(
    row: Row[Any], pipeline: str | None = None, rule: str | None = None, works_since: datetime | None = None
) -> Delivery:
    """Make a delivery of a row with the columns WITHOUT_BODY."""
    return Delivery(
        id=row.id,
        receiver=row.receiver,
        action=row.action,
        change=row.change,
        outcome=row.outcome or "waiting",
        attempts=row.attempts,
        last_error=row.last_error,
        created_at=row.created_at,
        next_attempt_at=None if row.outcome else row.next_attempt_at,
        done_at=row.done_at,
        pipeline=pipeline,
        rule=rule,
        works_since=works_since,
    )

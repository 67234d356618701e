"""Deliveries of notifications, receivers, and the leading alerter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from sqlalchemy import ColumnElement, Row, case, func, select

from dashboard.queries.incident_filters import PAGE_SIZE, IncidentFilters, within
from lagloss_server.incidents.deliveries import WITHOUT_BODY, Delivery, DeliveryDocument, delivery, outbox_table
from lagloss_server.incidents.incident import incident_table
from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.ownership import ALERTING, LeaseHolder, read_holder
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

_receiver_table = table_of(alert_tables.ReceiverRow)
_FIRST: Final = ("failed", "waiting", "sent", "dropped")
"""Outcomes by urgency."""
_OUTCOME: Final[ColumnElement[str]] = func.coalesce(outbox_table.c.outcome, "waiting")


class DeliveriesDocument(TypedDict):
    """A page of deliveries: see `Deliveries`. `total`: on all pages."""

    deliveries: list[DeliveryDocument]
    page: int
    total: int
    outcomes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Deliveries:
    """A page of deliveries, failed ones first, then those that wait; the newest first of each. `outcomes`: how many
    there are of each, on all pages."""

    deliveries: Sequence[Delivery]
    page: int
    outcomes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())

    def document(self) -> DeliveriesDocument:
        deliveries = [delivery.document() for delivery in self.deliveries]
        return {"deliveries": deliveries, "page": self.page, "total": self.total, "outcomes": self.outcomes}


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A receiver of the leading alerter."""

    name: str
    kind: str
    is_fallback: bool


def read_deliveries(
    store: Store, filters: IncidentFilters, span: TimeRange, page: int = 1, size: int = PAGE_SIZE
) -> Deliveries:
    """Read deliveries of a span, sent or waiting. Pages count from 1. Tests of receivers belong to no pipeline."""
    outbox, about = outbox_table, incident_table.c
    rank = case({outcome: index for index, outcome in enumerate(_FIRST)}, value=_OUTCOME, else_=len(_FIRST))
    statement = (
        select(*WITHOUT_BODY, about.pipeline, about.rule)
        .select_from(outbox.outerjoin(incident_table, about.id == outbox.c.incident_id))
        .where(*_queued(filters, span))
        .order_by(rank, outbox.c.id.desc())
        .limit(size)
        .offset((page - 1) * size)
    )
    with store.engine.connect() as connection:
        # mypy takes rows of more than nine columns for something other than rows
        rows: list[Row[Any]] = list(connection.execute(statement))
    deliveries = [delivery(row, row.pipeline, row.rule) for row in rows]
    return Deliveries(deliveries, page, count_outcomes(store, filters, span))


def count_outcomes(store: Store, filters: IncidentFilters, span: TimeRange) -> dict[str, int]:
    """Return how many deliveries there are of each outcome, in the order in which they are shown."""
    joined = outbox_table.outerjoin(incident_table, incident_table.c.id == outbox_table.c.incident_id)
    statement = select(_OUTCOME, func.count()).select_from(joined).where(*_queued(filters, span)).group_by(_OUTCOME)
    with store.engine.connect() as connection:
        counted: dict[str, int] = dict(connection.execute(statement).all())
    return {outcome: counted[outcome] for outcome in _FIRST if outcome in counted}


def read_receivers(store: Store) -> list[ReceiverStatus]:
    """Return those that the leading alerter knows, by name."""
    with store.engine.connect() as connection:
        rows = connection.execute(select(_receiver_table).order_by(_receiver_table.c.name))
        return [ReceiverStatus(row.name, row.kind, row.is_fallback) for row in rows]


def read_leader(store: Store) -> LeaseHolder | None:
    """None: no alerter has led yet."""
    with store.engine.connect() as connection:
        return read_holder(connection, ALERTING)


def _queued(filters: IncidentFilters, span: TimeRange) -> list[ColumnElement[bool]]:
    row = outbox_table.c
    return [row.done_at.is_(None) | within(row.done_at, span), *filters.of(incident_table.c)]

"""Building: from settings and the alerting file to an alerter with all its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from zoneinfo import ZoneInfo

from sqlalchemy import Engine, func, select

from alerting.config import AlertingFile, MaintenanceSpec, RouteSpec, load_alerting, with_canary
from alerting.delivery.sender import HeldLead, Sender
from alerting.delivery.transports.base import Transport
from alerting.delivery.transports.kinds import build as build_transport
from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notification_plan import NotificationPolicy
from alerting.incidents.notifier import Notifier
from alerting.incidents.outbox import Outbox
from alerting.incidents.routing import Escalation, ReceiverRoute
from alerting.incidents.suppression import Maintenance
from alerting.metrics import AlertingMetrics
from alerting.service import Alerter
from lagloss_server.base.settings import Settings
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.model.canary import is_listed
from lagloss_server.net.outcome import LONGEST_WAIT_S
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

STATEMENT_TIMEOUT: Final = "120s"
"""For a read of all pipelines, the longest statement."""
TRANSACTION_IDLE: Final = "10s"
"""So long at most the locks of an alerter that is paused or cut off hold up its successor."""
RESEND_WAIT_S: Final = 5.0
"""Longest pause before a retry to a receiver that expires what is not sent again: once it is back, alerts live on."""


@dataclass(frozen=True, slots=True)
class AlertingSetup:
    """Everything `python -m alerting` runs. `receivers`: by name, what kind they are."""

    alerter: Alerter
    metrics: AlertingMetrics
    receivers: Mapping[str, str]
    store: Store

    def close(self) -> None:
        self.store.close()


def build(settings: Settings) -> AlertingSetup:
    """Build the alerter without opening any connection. Raise a LaglossError for invalid settings or an invalid
    file."""
    database_url = settings.require_database()
    file = with_canary(load_alerting(settings), settings.canary_url if settings.canary == "on" else "")
    transports = {receiver.name: build_transport(receiver.kind, receiver.config) for receiver in file.receivers}
    session = {"statement_timeout": STATEMENT_TIMEOUT, "idle_in_transaction_session_timeout": TRANSACTION_IDLE}
    store = Store(database_url, **session)
    metrics, lead = AlertingMetrics(), HeldLead()
    evaluator = Evaluator(
        store,
        notifier(file, transports, _dashboard_url(settings)),
        lambda pipeline: metrics.failed_evaluations.labels(pipeline).inc(),
        TraceLinks(settings.trace_url),
    )
    senders = [
        Sender(_outbox(store.engine, name, file.fallback, transport), transport, lead, metrics)
        for name, transport in transports.items()
    ]
    metrics.waiting(lambda: _waiting(store.engine, transports))
    receivers = [
        {"name": receiver.name, "kind": receiver.kind, "is_fallback": receiver.name == file.fallback}
        for receiver in file.receivers
    ]
    alerter = Alerter(database_url, evaluator, senders, lead, receivers, metrics)
    listed = {receiver.name: receiver.kind for receiver in file.receivers if is_listed(receiver.name)}
    return AlertingSetup(alerter, metrics, listed, store)


def notifier(file: AlertingFile, transports: Mapping[str, Transport], dashboard_url: str = "") -> Notifier:
    """Build the notifier from the file's routes, maintenance windows and receivers."""
    resend_s = {name: transport.resend_s for name, transport in transports.items()}
    policy = NotificationPolicy(file.fallback, {name: every for name, every in resend_s.items() if every is not None})
    maintenance = [_maintenance(window) for window in file.maintenance]
    return Notifier([_route(route) for route in file.routes], maintenance, policy, dashboard_url)


def _outbox(engine: Engine, receiver: str, fallback: str | None, transport: Transport) -> Outbox:
    longest_wait_s = LONGEST_WAIT_S if transport.resend_s is None else min(transport.resend_s, RESEND_WAIT_S)
    return Outbox(engine, receiver, fallback if is_listed(receiver) else None, longest_wait_s)


def _route(spec: RouteSpec) -> ReceiverRoute:
    return ReceiverRoute(
        matchers=spec.match,
        receivers=spec.to,
        continues=spec.continue_,
        repeat_s=spec.repeat / 1_000,
        group_by=spec.group_by,
        group_wait_s=spec.group_wait / 1_000,
        escalations=tuple(Escalation(step.after / 1_000, step.to) for step in spec.escalate),
    )


def _maintenance(spec: MaintenanceSpec) -> Maintenance:
    return Maintenance(
        spec.name,
        spec.match,
        spec.recurrence(),
        ZoneInfo(spec.timezone),
        timedelta(milliseconds=spec.duration),
        spec.reason,
    )


def _waiting(engine: Engine, receivers: Iterable[str]) -> dict[str, int]:
    """Return how many notifications wait, by receiver."""
    table = table_of(OutboxMessageRow)
    counts = (
        select(table.c.receiver, func.count().label("waiting"))
        .where(table.c.done_at.is_(None))
        .group_by(table.c.receiver)
    )
    with engine.connect() as connection:
        waiting: dict[str, int] = {row.receiver: row.waiting for row in connection.execute(counts)}
    return {receiver: waiting.get(receiver, 0) for receiver in receivers}


def _dashboard_url(settings: Settings) -> str:
    if settings.dashboard_url or not settings.dashboard_port:
        return settings.dashboard_url.rstrip("/")
    return f"http://{settings.bind_address}:{settings.dashboard_port}"

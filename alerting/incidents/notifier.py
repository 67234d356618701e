"""Notifier: queues the notifications of incidents in the outbox, in the transaction that changed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, case, select

from alerting.incidents import outbox
from alerting.incidents import repository as incidents
from alerting.incidents.body import incident_body
from alerting.incidents.notification_plan import (
    IncidentStatus,
    NotificationPolicy,
    PlannedNotification,
    SentNotification,
    is_of_severity,
    plan,
    seconds_since_trigger,
    to_withdraw,
)
from alerting.incidents.routing import ReceiverRoute, receivers_of
from alerting.incidents.suppression import (
    ActiveSilence,
    Maintenance,
    SuppressionContext,
    blind_upstream,
    suppression_reason,
)
from alerting.rules import Rule
from lagloss_server.incidents.actions import holding_silences
from lagloss_server.incidents.changes import note_change
from lagloss_server.incidents.incident import Incident, Withheld
from lagloss_server.model.canary import is_listed
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.matchers import labels_of
from lagloss_server.store.ownership import ALERTING, read_holder
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import is_any, table_of

BLIND: str = "blind"


@dataclass(frozen=True, slots=True)
class NotificationContext:
    """What notifications depend on besides the incidents: those `sent` of each of them, the silences in force, the
    pipelines that are `blind`, each with the upstream one that withholds its incident, and since when the alerter
    leads."""

    sent: Mapping[UUID, Sequence[SentNotification]]
    silences: Sequence[ActiveSilence] = ()
    blind: Mapping[str, str | None] = field(default_factory=dict)
    leads_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is due of an incident: `orders` with this `body`, after those `withdrawn`. `withheld`: why its notifications
    are, as of now."""

    incident: Incident
    withheld: Withheld | None
    body: dict[str, Any]
    withdrawn: Sequence[SentNotification]
    orders: Sequence[PlannedNotification]

    @property
    def is_due(self) -> bool:
        return bool(self.orders or self.withdrawn) or self.withheld != self.incident.withheld


@dataclass(frozen=True, slots=True)
class Notifier:
    """Routes, maintenance windows and policy of the alerting file, applied to incidents. `dashboard_url`: base of the
    links in messages."""

    routes: Sequence[ReceiverRoute] = ()
    maintenance: Sequence[Maintenance] = ()
    policy: NotificationPolicy = field(default_factory=NotificationPolicy)
    dashboard_url: str = ""

    def notify(
        self,
        connection: Connection,
        pipeline: StoredPipeline,
        incidents: Sequence[Incident],
        open_rules: Mapping[str, str],
        rules: Mapping[str, Rule],
        now: datetime,
    ) -> dict[UUID, Withheld | None]:
        """Queue the notifications due for the pipeline's incidents, in the transaction that changed them. Return what
        withholds them now. `open_rules`: rules with an open incident, besides those of `incidents`, and its
        severity."""
        context = self.read_context(connection, [pipeline], incidents, now)
        withheld = {}
        for planned in self._planned(context, pipeline, incidents, open_rules, rules, now):
            self._note_withheld(connection, planned.incident, planned.withheld, now)
            self._queue(connection, planned, now)
            withheld[planned.incident.id] = planned.withheld
        return withheld

    def read_context(
        self, connection: Connection, pipelines: Iterable[StoredPipeline], incidents: Sequence[Incident], now: datetime
    ) -> NotificationContext:
        """Read what the notifications of these incidents of some pipelines depend on."""
        sent = outbox.notifications_of(connection, [incident.id for incident in incidents])
        if not sent and not any(incident.is_open for incident in incidents):
            return NotificationContext({})
        upstream = {name for pipeline in pipelines for name in pipeline.definition.spec.alerts.upstream}
        blind = _blind(connection, upstream) if upstream else {}
        leader = read_holder(connection, ALERTING)
        return NotificationContext(sent, _silences(connection, now), blind, None if leader is None else leader.since)

    def is_due(
        self,
        context: NotificationContext,
        pipeline: StoredPipeline,
        incidents: Sequence[Incident],
        rules: Mapping[str, Rule],
        now: datetime,
    ) -> bool:
        """Return whether `notify` would write something of these incidents of a pipeline, which are all it has."""
        planned = self._planned(context, pipeline, incidents, {}, rules, now)
        return any(plan.is_due for plan in planned)

    def _planned(
        self,
        context: NotificationContext,
        pipeline: StoredPipeline,
        incidents: Sequence[Incident],
        open_rules: Mapping[str, str],
        rules: Mapping[str, Rule],
        now: datetime,
    ) -> Iterator[_Planned]:
        labels = pipeline.definition.metadata.labels
        around = SuppressionContext(
            open_rules={
                **open_rules,
                **{incident.rule: incident.severity for incident in incidents if incident.is_open},
            },
            blind_upstream=blind_upstream(pipeline.name, pipeline.definition.spec.alerts.upstream, context.blind),
        )
        if is_listed(pipeline.name):  # a silence of all would silence the canary, too
            around = replace(around, silences=context.silences, maintenance=self.maintenance)
        for incident in _concerned(context, incidents):
            rule = rules.get(incident.rule)
            inhibited_by = rule.inhibited_by if rule is not None else ()
            matched = labels_of(incident, labels)
            withheld = suppression_reason(matched, inhibited_by, around, now) if incident.is_open else None
            yield self._plan(context, incident, labels, withheld, now)

    def notify_deleted(self, connection: Connection, incidents: Sequence[Incident], now: datetime) -> None:
        """Queue what is due of a deleted pipeline's incidents, which are over."""
        context = self.read_context(connection, [], incidents, now)
        for incident in _concerned(context, incidents):
            self._queue(connection, self._plan(context, incident, {}, None, now), now)

    def _note_withheld(
        self, connection: Connection, incident: Incident, withheld: Withheld | None, now: datetime
    ) -> None:
        if withheld == incident.withheld:
            return
        incidents.withhold(connection, incident.id, withheld)
        if incident.is_open:
            change = "released" if withheld is None else "withheld"
            note_change(connection, incident, change, now, note=None if withheld is None else str(withheld))

    def _plan(
        self,
        context: NotificationContext,
        incident: Incident,
        labels: Mapping[str, str],
        withheld: Withheld | None,
        now: datetime,
    ) -> _Planned:
        change = "opened" if incident.is_open else "resolved"
        body = incident_body(incident, change, labels, self.dashboard_url)
        listed = is_listed(incident.pipeline)  # reminders of the canary's prove that this works, so nothing ends them
        is_acknowledged = listed and incident.acknowledged_at is not None
        status = IncidentStatus(incident.is_open, is_acknowledged, change, body, withheld)
        withdrawn = to_withdraw(status, context.sent.get(incident.id, ()))
        sent = [row for row in context.sent.get(incident.id, ()) if row not in withdrawn]
        triggered_s = seconds_since_trigger([row for row in sent if is_of_severity(row, incident.severity)], now)
        unacknowledged_s = None if incident.acknowledged_at else triggered_s
        goes_to = receivers_of(self.routes, labels_of(incident, labels), unacknowledged_s)
        policy = self.policy if listed else NotificationPolicy()
        orders = plan(status, sent, goes_to, policy, now, context.leads_since)
        return _Planned(incident, withheld, body, withdrawn, orders)

    def _queue(self, connection: Connection, planned: _Planned, now: datetime) -> None:
        if planned.withdrawn:
            outbox.withdraw(connection, planned.withdrawn)
        outbox.queue(connection, planned.incident.id, planned.body, planned.orders)
        escalated = [order.receiver for order in planned.orders if order.change == "escalated"]
        if escalated:
            note_change(connection, planned.incident, "escalated", now, note=f"to {', '.join(escalated)}")


def _concerned(context: NotificationContext, incidents: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that may need notifications: open ones, and those whose resolve is not sent to every
    receiver."""
    return [
        incident
        for incident in incidents
        if incident.is_open or any(row.action != "resolve" for row in context.sent.get(incident.id, ()))
    ]


def _silences(connection: Connection, now: datetime) -> list[ActiveSilence]:
    return [
        ActiveSilence(silence.id, silence.parsed, silence.author, silence.reason)
        for silence in holding_silences(connection, now)
    ]


def _blind(connection: Connection, pipelines: Iterable[str]) -> dict[str, str | None]:
    """Return those of these pipelines that are blind now, each with the upstream one that withholds its incident, and
    the blind ones that these are withheld by, and so on."""
    table = table_of(alert_tables.IncidentRow)
    cause = case((table.c.withheld_kind == "upstream", table.c.withheld_ref)).label("cause")
    blind = select(table.c.pipeline, cause).where(table.c.state == "open", table.c.kind == BLIND)
    chain = blind.where(is_any(table.c.pipeline, pipelines)).cte(recursive=True)
    chain = chain.union(blind.where(table.c.pipeline == chain.c.cause))
    causes: dict[str, str | None] = {}
    for row in connection.execute(select(chain)):
        causes[row.pipeline] = row.cause or causes.get(row.pipeline)
    return causes

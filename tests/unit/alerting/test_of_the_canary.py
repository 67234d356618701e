"""What the alerter does otherwise for the incidents of the canary than for those of other pipelines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from alerting.delivery.sender import HeldLead
from alerting.incidents.notification_plan import SentNotification
from alerting.incidents.notifier import NotificationContext, Notifier
from alerting.incidents.routing import ReceiverRoute
from alerting.metrics import AlertingMetrics
from alerting.service import Alerter
from lagloss_server.model.canary import CANARY, REMIND_S
from tests.unit.alerting.delivery.test_body import OPEN


@pytest.mark.parametrize(("pipeline", "changes"), [(CANARY, ["reminder"]), ("chain", ["acknowledged"])])
def test_an_acknowledgement_ends_the_reminders_of_other_pipelines_only(pipeline: str, changes: list[str]) -> None:
    notifier = Notifier([ReceiverRoute((), ("pager",), repeat_s=REMIND_S)])
    opened, now = OPEN.opened_at, OPEN.opened_at + timedelta(seconds=REMIND_S + 1)
    incident = replace(OPEN, pipeline=pipeline, acknowledged_at=opened, acknowledged_by="ada")
    body = notifier._plan(NotificationContext({}), OPEN, {}, None, opened).body
    sent = SentNotification(1, "pager", "trigger", "opened", opened, opened, body, "chain", attempts=1, outcome="sent")

    planned = notifier._plan(NotificationContext({OPEN.id: [sent]}), incident, {}, None, now)

    assert [order.change for order in planned.orders] == changes


@pytest.mark.parametrize(("pipeline", "count"), [(CANARY, None), ("chain", 1.0)])
def test_changes_of_its_incidents_are_not_counted(pipeline: str, count: float | None) -> None:
    metrics = AlertingMetrics()
    evaluator: Any = SimpleNamespace(store=None, evaluate=lambda _stored: ["loss opened"])
    alerter = Alerter("", evaluator, [], HeldLead(), [], metrics)
    alerter._catalogue = SimpleNamespace(find=lambda name: name)  # type: ignore[assignment]

    alerter._evaluate(pipeline)

    labels = {"rule": "loss", "change": "opened"}
    assert metrics.registry.get_sample_value("lagloss_alerting_incident_changes_total", labels) == count

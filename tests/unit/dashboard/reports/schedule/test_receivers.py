"""Reports as messages to receivers: what each kind gets, by which key, and what alerting makes of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerting.delivery.rendering import as_text, message
from alerting.delivery.transports import slack
from alerting.incidents.notification import Notification
from dashboard.reports import render
from dashboard.reports.ranges import CalendarRange
from dashboard.reports.schedule import receivers
from dashboard.reports.schedule.mail import MadeReport, ReportPart
from dashboard.reports.schedule.receivers import bodies, combined, problem_of
from lagloss_server.net.outcome import Refused, Sent, TryLater
from tests.fakes import slack as fake_slack
from tests.fakes.notifications import notification
from tests.support.report_figures import incident, report

RUN = ("weekly", "FREQ=WEEKLY", 7)
DOCUMENT = json.loads(render(report("clicks", "", incident()), "json"))
PARTS = (
    ReportPart("orders", "✔ MET", ("Loss MET.",), "https://l.example/pipelines/orders", (), "met"),
    ReportPart("clicks", "✖ MISSED", ("Loss MISSED: 3 %.", "Loss rose."), "", (), "missed", DOCUMENT),
)


def made(*parts: ReportPart, notes: tuple[str, ...] = ()) -> MadeReport:
    return MadeReport("weekly", "SLA report weekly: 2026-W46 (UTC)", CalendarRange(0, 60, "UTC"), parts, notes)


def as_notification(body: dict[str, object]) -> Notification:
    return replace(notification(), action="report", body=json.loads(json.dumps(body)))


def test_a_webhook_gets_the_json_report_of_each_pipeline_under_a_key_of_its_own() -> None:
    orders, clicks = bodies(made(*PARTS), "webhook", *RUN)
    assert clicks["parts"][0]["document"] == DOCUMENT
    assert [part["title"] for body in (orders, clicks) for part in body["parts"]] == ["orders", "clicks"]
    assert orders["idempotency_key"] != clicks["idempotency_key"]
    assert [each["idempotency_key"] for each in bodies(made(*PARTS), "webhook", *RUN)] == [
        orders["idempotency_key"], clicks["idempotency_key"],
    ]  # fmt: skip
    assert (
        bodies(made(*PARTS), "webhook", "weekly", "FREQ=WEEKLY", 8)[0]["idempotency_key"] != orders["idempotency_key"]
    )


def test_a_document_that_no_message_can_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "MAX_DOCUMENT_BYTES", 10)
    assert bodies(made(PARTS[1]), "webhook", *RUN)[0]["parts"][0]["document"] is None


def test_slack_gets_one_summary_with_the_worst_first_and_a_link() -> None:
    (body,) = bodies(made(*PARTS, notes=("Not all windows are closed yet for clicks.",)), "slack", *RUN)
    assert all("document" not in part for part in body["parts"])
    payload = slack.payload(message([as_notification(body)]))
    assert fake_slack.error_of(payload) is None
    assert payload["text"] == "🔴 SLA report weekly: 2026-W46 (UTC)"
    first, second = ([block["text"]["text"] for block in each["blocks"]] for each in payload["attachments"])
    assert first == [
        "🔴 *clicks*\n✖ MISSED",
        "*Note:* Not all windows are closed yet for clicks.\n• Loss MISSED: 3 %.\n• Loss rose.",
    ]
    assert second == ["🟢 *orders*\n✔ MET", "• Loss MET.", "*Report:* <https://l.example/pipelines/orders>"]


def test_a_report_of_one_pipeline_or_none_reads_well() -> None:
    (body,) = bodies(made(PARTS[0]), "apprise", *RUN)
    assert as_text(message([as_notification(body)])).splitlines() == [
        "orders: ✔ MET", "", "Loss MET.", "Report: https://l.example/pipelines/orders",
    ]  # fmt: skip
    (empty,) = bodies(made(notes=("There is no pipeline.",)), "slack", *RUN)
    assert as_text(message([as_notification(empty)])) == "There is no pipeline.\n"
    assert fake_slack.error_of(slack.payload(message([as_notification(empty)]))) is None


@given(st.lists(st.text(max_size=3_000), min_size=4, max_size=4), st.integers(1, 40))
def test_slack_takes_whatever_stands_in_a_report(texts: list[str], parts: int) -> None:
    each = ReportPart(texts[0], texts[1], (texts[2], texts[3]), f"https://l.example/{texts[0]}", (), "unproven")
    (body,) = bodies(made(*[each] * parts), "slack", *RUN)
    payload = slack.payload(message([as_notification(body)]))
    assert fake_slack.error_of(payload) is None
    assert all(fake_slack.stray_controls(text) == "" for text in fake_slack.texts(payload))


def test_receivers_that_cannot_have_a_report_are_named() -> None:
    assert problem_of("chat", "slack") == Sent()
    assert problem_of("gone", None) == TryLater("receiver gone: the active alerter has no receiver of this name")
    assert problem_of("pager", "pagerduty") == Refused(
        "receiver pager is of kind pagerduty; reports can go to slack, webhook, apprise"
    )


def test_what_may_still_work_is_tried_again() -> None:
    assert combined([]) == combined([Sent(), Sent()]) == Sent()
    assert combined([Sent(), Refused("no")]) == Refused("no")
    assert combined([Refused("no"), TryLater("later", 5.0), TryLater("much later", 9.0)]) == TryLater(
        "no; later; much later", 9.0
    )

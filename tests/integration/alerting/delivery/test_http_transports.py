"""PagerDuty, Slack and webhooks, against fakes that hold to the documented contracts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from alerting.delivery.transports.base import Transport
from alerting.delivery.transports.http import MAX_BODY_BYTES
from alerting.delivery.transports.kinds import KINDS, build
from alerting.incidents.notification import Action
from lagloss_server.net.outcome import Refused, Sent, TryLater
from tests.fakes.http_receiver import HttpReceiver, Reply
from tests.fakes.notifications import INCIDENT, notification
from tests.fakes.pagerduty import FakePagerDuty
from tests.fakes.slack import FakeSlack, texts

KEY = "0123456789abcdef0123456789abcdef"
WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()


def made(kind: str, **config: Any) -> Transport:
    return build(kind, KINDS[kind].model_validate({"allowPrivate": True, **config}))


@pytest.fixture
def pagerduty() -> Iterator[FakePagerDuty]:
    with FakePagerDuty(KEY) as fake:
        yield fake


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as fake:
        yield fake


def send(transport: Transport, *actions: Action) -> list[object]:
    return [transport.send([notification(action, number)]) for number, action in enumerate(actions, 1)]


def test_pagerduty_has_one_alert_from_trigger_to_resolve(pagerduty: FakePagerDuty) -> None:
    transport = made("pagerduty", routingKey=KEY, url=pagerduty.url)

    assert send(transport, "trigger", "update", "trigger", "acknowledge") == [Sent()] * 4
    assert pagerduty.alerts == {INCIDENT: "acknowledged"}
    assert send(transport, "resolve") == [Sent()]
    assert pagerduty.alerts == {INCIDENT: "resolved"}
    assert pagerduty.opened == [INCIDENT]
    assert [event["event_action"] for event in pagerduty.events] == ["trigger"] * 3 + ["acknowledge", "resolve"]


def test_a_page_at_pagerduty_says_what_where_and_what_to_do(pagerduty: FakePagerDuty) -> None:
    send(made("pagerduty", routingKey=KEY, url=pagerduty.url), "trigger")

    (event,) = pagerduty.events
    payload = event["payload"]
    assert payload["summary"].startswith("clicks: 3.20% of messages lost")
    assert (payload["source"], payload["severity"], payload["class"]) == ("clicks", "critical", "loss")
    assert (payload["component"], payload["timestamp"]) == ("src->mid", "2026-11-21T08:43:02.120Z")
    assert payload["custom_details"]["Where"] == "link src->mid: 94 lost, 98% of the loss"
    assert payload["custom_details"]["Labels"] == {"team": "checkout"}
    assert [link["text"] for link in event["links"]] == ["Incident", "Chart", "Runbook"]
    assert (event["client"], event["client_url"]) == ("lagloss", event["links"][0]["href"])


def test_a_report_reaches_a_webhook_under_its_own_idempotency_key() -> None:
    with HttpReceiver() as receiver:
        transport = made("webhook", url=receiver.url)
        body = {"version": 1, "type": "report", "idempotency_key": "report-0f", "report": {}, "notes": [], "parts": []}
        assert transport.send([replace(notification(), action="report", body=body)]) == Sent()
        assert transport.send([notification()]) == Sent()
    reported, notified = receiver.requests
    assert json.loads(reported.body) == body
    assert (reported.headers["idempotency-key"], reported.headers["webhook-id"]) == ("report-0f", "report-0f")
    assert notified.headers["idempotency-key"] == notified.headers["webhook-id"] == f"lagloss-{UUID(int=1)}"


def test_a_test_at_pagerduty_is_over_at_once_and_touches_no_incident(pagerduty: FakePagerDuty) -> None:
    transport = made("pagerduty", routingKey=KEY, url=pagerduty.url)
    assert send(transport, "trigger", "test") == [Sent(), Sent()]
    assert pagerduty.alerts == {INCIDENT: "triggered", f"lagloss-test-{UUID(int=2)}": "resolved"}


def test_what_pagerduty_finds_wrong_is_told_without_the_key(pagerduty: FakePagerDuty) -> None:
    wrong = "f" * 32
    outcome = made("pagerduty", routingKey=wrong, url=pagerduty.url).send([notification()])
    assert outcome == Refused("HTTP 400: Event object is invalid: Invalid routing key")

    errors = {"status": "invalid event", "message": "Event object is invalid", "errors": [f"no key {wrong}"]}
    for body in (json.dumps(errors).encode(), b"[" * 60_000, b"\xff\xfe", json.dumps({"errors": 1}).encode()):
        pagerduty.replies = [Reply(400, body)]
        outcome = made("pagerduty", routingKey=wrong, url=pagerduty.url).send([notification()])
        assert isinstance(outcome, Refused)
        assert wrong not in outcome.error


def test_an_answer_is_not_cut_within_a_secret_so_that_half_of_it_is_told(pagerduty: FakePagerDuty) -> None:
    transport = made("pagerduty", routingKey=KEY, url=pagerduty.url)
    for before in (165, 190, 280, 290):  # where texts are cut, and what is left when it is replaced
        pagerduty.replies = [Reply(400, f"{'x' * before}{KEY} and so on".encode())]
        outcome = transport.send([notification()])
        assert isinstance(outcome, Refused)
        assert KEY[:4] not in outcome.error


def test_a_busy_pagerduty_is_tried_again_after_what_it_asks_for_or_a_minute(pagerduty: FakePagerDuty) -> None:
    pagerduty.replies = [Reply(429), Reply(429, b"", {"retry-after": "5"}), Reply(502)]
    transport = made("pagerduty", routingKey=KEY, url=pagerduty.url)
    assert send(transport, "trigger", "trigger", "trigger", "trigger") == [
        TryLater("HTTP 429", 60.0),
        TryLater("HTTP 429", 5.0),
        TryLater("HTTP 502"),
        Sent(),
    ]


def test_slack_shows_a_notification_with_its_colour_and_places(slack: FakeSlack) -> None:
    assert send(made("slack", url=slack.url), "trigger", "resolve") == [Sent(), Sent()]

    opened, resolved = slack.messages
    assert opened["blocks"][0]["text"]["text"] == "🔴 [critical, opened] clicks: loss"
    assert opened["attachments"][0]["color"] != resolved["attachments"][0]["color"]
    shown = "\n".join(texts(opened))
    assert "*Where:* link src-&gt;mid: 94 lost, 98% of the loss" in shown
    assert "*Runbook:* <http://docs.example/loss>" in shown
    assert f"*Acknowledge:* `lagloss alerts ack {INCIDENT}`" in shown


def test_slack_shows_a_group_in_one_message(slack: FakeSlack) -> None:
    group = [notification(number=number, id=str(number), pipeline=f"p{number}") for number in range(1, 4)]
    assert made("slack", url=slack.url).send(group) == Sent()
    (message,) = slack.messages
    assert len(message["attachments"]) == 3
    assert message["blocks"][0]["text"]["text"].startswith("🔴 3 incidents (3 critical): p1, p2, p3")


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (400, "invalid_payload"), (403, "action_prohibited"), (403, "invalid_token"), (404, "no_service"),
        (404, "channel_not_found"), (410, "channel_is_archived"), (400, "something_new"),
    ],
)  # fmt: skip
def test_what_slack_refuses_is_told_in_its_word_and_never_tried_again(slack: FakeSlack, status: int, word: str) -> None:
    slack.gone = (status, word)
    (outcome,) = send(made("slack", url=slack.url), "trigger")
    assert isinstance(outcome, Refused)
    assert word in outcome.error
    assert slack.path.rpartition("/")[2] not in outcome.error


def test_a_busy_slack_is_tried_later(slack: FakeSlack) -> None:
    slack.replies = [Reply(429, b"rate_limited", {"retry-after": "3"}), Reply(500, b"rollup_error")]
    assert send(made("slack", url=slack.url), "trigger", "trigger") == [
        TryLater("HTTP 429: too many messages", 3.0),
        TryLater("HTTP 500: rollup_error"),
    ]


def test_a_wrong_slack_address_is_refused_without_showing_it(slack: FakeSlack) -> None:
    (outcome,) = send(made("slack", url=slack.url + "Y"), "trigger")
    assert isinstance(outcome, Refused)
    assert "no_service: the webhook was removed" in outcome.error


def test_a_webhook_is_signed_so_that_the_librarys_own_check_takes_it() -> None:
    with HttpReceiver() as receiver:
        transport = made("webhook", url=receiver.url, secret=WEBHOOK_SECRET)
        assert transport.send([notification(number=7)]) == Sent()

    (request,) = receiver.requests
    assert Webhook(WEBHOOK_SECRET).verify(request.body, dict(request.headers)) == notification().body
    assert request.headers["webhook-id"] == f"lagloss-{UUID(int=7)}"
    with pytest.raises(WebhookVerificationError):
        Webhook(WEBHOOK_SECRET).verify(request.body + b" ", dict(request.headers))


def test_a_webhook_is_signed_by_the_databases_time_whatever_the_hosts_clock() -> None:
    now = datetime.now(UTC) - timedelta(hours=1)
    with HttpReceiver() as receiver:
        assert (
            made("webhook", url=receiver.url, secret=WEBHOOK_SECRET).send([replace(notification(), claimed_at=now)])
            == Sent()
        )
    (request,) = receiver.requests
    assert request.headers["webhook-timestamp"] == str(int(now.timestamp()))
    signature = Webhook(WEBHOOK_SECRET).sign(request.headers["webhook-id"], now, request.body.decode())
    assert request.headers["webhook-signature"] == signature


def test_a_date_to_retry_after_counts_by_the_clock_of_who_names_it() -> None:
    with HttpReceiver() as receiver:
        receiver.ahead_s = 3_000.0
        moment = datetime.now(UTC) + timedelta(seconds=receiver.ahead_s + 60)
        receiver.replies = [Reply(503, b"", {"retry-after": format_datetime(moment, usegmt=True)})]
        (outcome,) = send(made("webhook", url=receiver.url), "trigger")
    assert isinstance(outcome, TryLater)
    assert outcome.after_s == pytest.approx(60, abs=5)


def test_a_webhook_bears_the_same_id_at_every_attempt_and_without_a_secret_no_signature() -> None:
    with HttpReceiver() as receiver:
        receiver.replies = [Reply(500)]
        transport = made("webhook", url=receiver.url)
        assert [transport.send([notification(number=7)]) for _ in range(2)] == [TryLater("HTTP 500"), Sent()]
    assert [request.headers["webhook-id"] for request in receiver.requests] == [f"lagloss-{UUID(int=7)}"] * 2
    assert "webhook-signature" not in receiver.requests[0].headers


def test_a_webhook_body_that_is_too_long_is_refused_and_strange_strings_are_not() -> None:
    with HttpReceiver() as receiver:
        transport = made("webhook", url=receiver.url, secret=WEBHOOK_SECRET)
        assert isinstance(transport.send([replace(notification(), body={"a": "x" * MAX_BODY_BYTES})]), Refused)
        strange = {"a": "\ud800 \0 😀 </script>"}
        assert transport.send([replace(notification(), body=strange)]) == Sent()
    assert receiver.requests[0].json() == strange

"""Alerts in a real Alertmanager."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from alerting.delivery.transports.alertmanager import AlertmanagerConfig, AlertmanagerTransport
from alerting.incidents.notification import Action, Notification
from lagloss_server.net.outcome import Refused, Sent, TryLater
from tests.fakes.alertmanager import Alertmanager, run_alertmanager
from tests.fakes.http_receiver import HttpReceiver, Reply
from tests.fakes.notifications import notification


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with run_alertmanager(Path(tmp_path_factory.mktemp("alertmanager"))) as running:
        yield running


def transport(*urls: str, resend: str = "60s") -> AlertmanagerTransport:
    return AlertmanagerConfig.model_validate({"urls": urls, "resend": resend, "allowPrivate": True}).build()


def about(pipeline: str, action: Action = "trigger") -> Notification:
    opened = datetime.now(UTC) - timedelta(minutes=5)
    resolved = datetime.now(UTC).isoformat() if action == "resolve" else None
    return notification(action, pipeline=pipeline, id=pipeline, opened_at=opened.isoformat(), resolved_at=resolved)


def of(alertmanager: Alertmanager, pipeline: str) -> list[dict[str, Any]]:
    return [alert for alert in alertmanager.alerts() if alert["labels"].get("pipeline") == pipeline]


def until(condition: Callable[[], Any], what: str, timeout_s: float = 15) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, f"waited {timeout_s} s in vain for: {what}"
        time.sleep(0.05)


def test_an_incident_is_one_alert_until_it_is_resolved(alertmanager: Alertmanager) -> None:
    sender = transport(alertmanager.url)

    for action in ("trigger", "update", "refresh", "acknowledge"):
        assert sender.send([about("clicks", action)]) == Sent()  # type: ignore[arg-type]
    (alert,) = of(alertmanager, "clicks")
    assert alert["labels"]["alertname"] == "LaglossLoss"
    assert alert["annotations"]["runbook_url"] == "http://docs.example/loss"
    assert "src->mid: 94 lost" in alert["annotations"]["description"]
    assert alert["generatorURL"].startswith("http://lagloss.example/")

    assert sender.send([about("clicks", "resolve")]) == Sent()
    until(lambda: not of(alertmanager, "clicks"), "the alert to end")
    sender.close()


def test_an_alert_that_is_not_sent_again_expires_and_one_that_is_lives_on(alertmanager: Alertmanager) -> None:
    sender = transport(alertmanager.url, resend="1s")

    began = time.monotonic()
    assert sender.send([about("kept"), about("left")]) == Sent()
    assert sender.resend_s == 1
    while of(alertmanager, "left"):
        sender.send([about("kept", "refresh")])
        assert time.monotonic() - began < 15
        time.sleep(0.1)
    assert time.monotonic() - began > 2  # three times its second, less what Alertmanager rounds
    assert of(alertmanager, "kept")
    sender.close()


def test_of_a_group_that_opens_and_resolves_an_incident_only_the_end_arrives(alertmanager: Alertmanager) -> None:
    sender = transport(alertmanager.url)
    assert sender.send([about("short"), about("other"), about("short", "resolve")]) == Sent()
    assert of(alertmanager, "other")
    assert not of(alertmanager, "short")
    sender.close()


def test_an_alert_expires_by_the_databases_time_whatever_the_hosts_clock() -> None:
    now = datetime.now(UTC) - timedelta(hours=1)
    with HttpReceiver() as receiver:
        sender = transport(receiver.url)
        assert sender.send([replace(about("clicks"), claimed_at=now)]) == Sent()
        sender.close()
    ((alert,),) = (request.json() for request in receiver.requests)
    assert alert["endsAt"] == (now + timedelta(minutes=3)).isoformat(timespec="milliseconds")


def test_a_test_is_an_alert_of_its_own_name(alertmanager: Alertmanager) -> None:
    sender = transport(alertmanager.url)
    assert sender.send([notification("test")]) == Sent()
    assert [alert for alert in alertmanager.alerts() if alert["labels"]["alertname"] == "LaglossTest"]
    sender.close()


def test_a_cluster_has_it_if_one_member_has_it_and_all_are_told(alertmanager: Alertmanager) -> None:
    with HttpReceiver() as second, HttpReceiver() as third:
        third.replies = [Reply(500, b"no")]
        sender = transport("http://127.0.0.1:1", third.url, second.url, alertmanager.url)
        assert sender.send([about("cluster")]) == Sent()
        assert [len(member.requests) for member in (second, third)] == [1, 1]
    assert of(alertmanager, "cluster")
    sender.close()


def test_a_cluster_that_refuses_is_told_apart_from_one_that_is_away() -> None:
    with HttpReceiver() as first, HttpReceiver() as second:
        sender = transport(first.url, second.url)
        first.replies, second.replies = [Reply(400, b'"bad"')] * 2, [Reply(401), Reply(503, b"", {"retry-after": "9"})]
        refused, later = sender.send([about("x")]), sender.send([about("x")])
    assert refused == Refused('url 1: HTTP 400: "bad"; url 2: HTTP 401')
    assert later == TryLater('url 1: HTTP 400: "bad"; url 2: HTTP 503', 9.0)
    sender.close()

"""Apprise's services, by its JSON over HTTP."""

from __future__ import annotations

import logging
import threading

import pytest

from alerting.delivery.transports.apprise_services import AppriseConfig, AppriseTransport
from lagloss_server.net.outcome import Sent, TryLater
from tests.fakes.http_receiver import HttpReceiver, Reply, Request
from tests.fakes.notifications import notification


def made(*receivers: HttpReceiver) -> AppriseTransport:
    urls = [f"json://s3cret-user:s3cret-word@127.0.0.1:{receiver.port}/s3cret-path" for receiver in receivers]
    return AppriseConfig.model_validate({"urls": urls}).build()


def test_apprise_carries_title_text_and_kind() -> None:
    with HttpReceiver() as receiver:
        assert made(receiver).send([notification()]) == Sent()
    said = receiver.requests[0].json()
    assert said["title"] == "[critical, opened] clicks: loss"
    assert "Where:       link src->mid: 94 lost" in said["message"]
    assert said["type"] == "failure"


@pytest.mark.parametrize(
    ("url", "at_most"),
    [("json://localhost/", 16), ("discord://123456789012345678901234/abcdefghijklmnopqrstuvwxyz", 1)],
)
def test_a_group_is_no_longer_than_a_service_takes(url: str, at_most: int) -> None:
    assert AppriseConfig.model_validate({"urls": [url]}).build().at_most == at_most


@pytest.mark.parametrize("name", ["@everyone", "@here", "<@123>", "<@&456>", "<!channel>", "<#C01>", "@ann"])
def test_an_id_calls_nobody_in_a_chat(name: str) -> None:
    told = notification()
    told.body["examples"][0]["message_id"] = name
    told.body["notes"] = ["ask ann@example.org"]
    with HttpReceiver() as receiver:
        assert made(receiver).send([told]) == Sent()
    said = receiver.requests[0].json()["message"]
    assert name not in said
    assert name in said.replace("\u2060", "")
    assert "ask ann@example.org" in said


def test_a_service_that_fails_is_tried_again_alone_and_no_secret_is_told_or_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with HttpReceiver() as first, HttpReceiver() as second:
        second.replies = [Reply(500, b"s3cret-path")]
        transport = made(first, second)
        for service in transport._services:
            service[0].request_rate_per_sec = 0  # else it waits 5.5 s before it asks a service again
        outcome = transport.send([notification()])
        assert outcome == TryLater("Apprise did not deliver to URL number 2")
        assert transport.send([notification()]) == Sent()
    assert [len(receiver.requests) for receiver in (first, second)] == [1, 2]
    printed = "".join(capfd.readouterr()) + caplog.text
    assert "s3cret" not in printed


def test_a_service_that_hangs_is_given_up_at_the_limit_and_not_asked_again_meanwhile() -> None:
    over = threading.Event()

    class Hanging(HttpReceiver):
        def answer(self, request: Request) -> Reply:
            over.wait(20)
            return Reply()

    with Hanging() as receiver, HttpReceiver() as other:
        transport = made(receiver, other)
        transport.timeout_s = 0.5
        for _ in range(2):
            outcome = transport.send([notification()])
            assert outcome == TryLater("Apprise did not deliver to URL number 1; timed out after 0.5 s: 1")
        assert [len(each.requests) for each in (receiver, other)] == [1, 1]
        over.set()
        for thread in transport._asking.values():
            thread.join()

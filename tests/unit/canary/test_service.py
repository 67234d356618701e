"""The canary's HTTP side, and a service that is off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy.exc import OperationalError

from alerting.config import AlertingFile, with_canary
from alerting.delivery.transports.kinds import build
from alerting.incidents.notification import Notification
from canary.__main__ import _take_notices
from canary.heartbeat import Heartbeat
from canary.metrics import CanaryMetrics
from canary.service import CanaryService
from lagloss_server.model.canary import NOTICE_PATH
from lagloss_server.net.health_server import serve_health
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.ops.processes import choose_port

EMPTY = AlertingFile.model_validate({"apiVersion": "lagloss/v1", "kind": "Alerting", "receivers": []})


class Taking:
    """What stands for the service: takes notices, or raises."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def take_notice(self, body: dict[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.bodies.append(body)


@pytest.fixture
def served() -> Iterator[tuple[str, Taking]]:
    taking, port = Taking(), choose_port("the canary")
    end = serve_health(
        "canary",
        CanaryMetrics().registry,
        lambda: None,
        "127.0.0.1",
        port,
        more=lambda app: _take_notices(app, taking),  # type: ignore[arg-type]
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(100):
        try:
            httpx2.get(f"{url}/livez")
            break
        except httpx2.TransportError:
            threading.Event().wait(0.05)
    yield url, taking
    end()


def sent(url: str, body: dict[str, Any]) -> Outcome:
    """What the alerter's own transport makes of a notification to the canary."""
    (receiver,) = with_canary(EMPTY, url).receivers
    transport = build(receiver.kind, receiver.config)
    return transport.send([Notification(id=1, action="trigger", body=body)])


def test_the_alerters_webhook_is_taken_and_errors_are_told_apart(served: tuple[str, Taking]) -> None:
    url, taking = served

    assert sent(url, {"incident": {}}) == Sent()
    assert taking.bodies == [{"incident": {}}]
    taking.error = KeyError("breach")
    assert isinstance(sent(url, {}), Refused)
    taking.error = OperationalError("x", None, Exception("away"))
    assert isinstance(sent(url, {}), TryLater)
    assert httpx2.post(f"{url}{NOTICE_PATH}", content=b"[1]", headers={"content-type": "application/json"}).is_error
    assert httpx2.get(f"{url}/metrics").text.count("lagloss_canary_ok 0.0") == 1


def test_a_canary_that_is_off_is_healthy_and_does_nothing() -> None:
    metrics = CanaryMetrics()
    service = CanaryService(
        "127.0.0.1:9",
        "postgresql://nobody@127.0.0.1:9/x",
        "http://127.0.0.1:9",
        Heartbeat("", "", metrics),
        metrics,
        35,
        is_on=False,
    )
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=[stop])
    thread.start()
    while service.health_problem() == "starting":
        threading.Event().wait(0.01)
    assert service.health_problem() is None
    stop.set()
    thread.join(5)
    assert not thread.is_alive()

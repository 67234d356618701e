"""The canary's HTTP side, and a service that is off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from math import isnan
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx2
import pytest
from sqlalchemy.exc import OperationalError

from alerting.config import AlertingFile, with_canary
from alerting.delivery.transports.kinds import build
from alerting.incidents.notification import Notification
from canary import sender as senders
from canary import service as services
from canary.__main__ import _take_notices
from canary.heartbeat import VALID_S, Heartbeat
from canary.metrics import CanaryMetrics
from canary.sender import Disturbed, boot_s
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
    return transport.send([Notification(UUID(int=1), "trigger", body, datetime.now(UTC))])


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


def service_of(metrics: CanaryMetrics, *, is_on: bool = True) -> CanaryService:
    heartbeat = Heartbeat("", "", metrics)
    kafka, database, collector = "127.0.0.1:9", "postgresql://nobody@127.0.0.1:9/x", "http://127.0.0.1:9"
    return CanaryService(kafka, database, collector, heartbeat, metrics, 35, is_on=is_on, settle_s=0.0)


def ok(metrics: CanaryMetrics) -> float:
    """The gauge at a scrape."""
    value = metrics.registry.get_sample_value("lagloss_canary_ok")
    assert value is not None
    return value


def test_a_canary_that_is_off_is_healthy_and_does_nothing() -> None:
    metrics = CanaryMetrics()
    service = service_of(metrics, is_on=False)
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=[stop], daemon=True)
    thread.start()
    while service.health_problem() == "starting":
        threading.Event().wait(0.01)
    assert service.health_problem() is None
    assert isnan(ok(metrics)), "no alert compares it"
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_the_gauge_falls_when_the_witness_says_nothing_any_more_and_of_a_stand_by() -> None:
    metrics = CanaryMetrics()
    service = service_of(metrics)
    assert ok(metrics) == 0
    service._heartbeat.say("")
    assert ok(metrics) == 1
    service._heartbeat.note_trouble("waiting for PostgreSQL")
    assert ok(metrics) == 1
    service._heartbeat.say("", boot_s() - VALID_S - 1.0)
    assert ok(metrics) == 0
    service._heartbeat.say("")
    service._heartbeat.say(None)
    assert ok(metrics) == 0


def test_a_round_that_fails_is_said_with_its_reason_and_forgotten_after_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "ROUND_S", 0.005)
    service, heard = service_of(CanaryMetrics()), threading.Event()
    words: list[str | None] = []
    monkeypatch.setattr(service._heartbeat, "note_trouble", words.append)
    monkeypatch.setattr(service._heartbeat, "say", lambda word: (words.append(word), heard.set()))
    errors: list[Exception] = [OperationalError("x", None, Exception("away\nhint")), ValueError("a row")]

    def judge() -> str:
        if errors:
            raise errors.pop(0)
        return ""

    owner: Any = SimpleNamespace(judge=judge, prune=lambda _before_s: None)
    with service._judging(owner):
        assert heard.wait(10)
    assert words[:3] == ["waiting for PostgreSQL: away", "failed: ValueError: a row", ""]


FIRST_S = 1_764_000_020.0


class Day:
    """Clocks, an event to stop by, and what stands for owner, sender and lease: a wait moves the clocks on, and after
    `ends_s` all is over. `jumps`: by how much the wall clock is set, by the time since the start."""

    def __init__(self, ends_s: float, jumps: dict[float, float]) -> None:
        self.boot_s, self.wall_s = 0.0, FIRST_S
        self.sent: list[float] = []
        self.session = SimpleNamespace(has_ended=False)
        self._ends_s, self._jumps = ends_s, jumps

    def is_set(self) -> bool:
        return self.boot_s >= self._ends_s

    def wait(self, wait_s: float) -> bool:
        self.boot_s, self.wall_s = self.boot_s + wait_s, self.wall_s + wait_s
        for at_s in [at_s for at_s in self._jumps if at_s <= self.boot_s]:
            self.wall_s += self._jumps.pop(at_s)
        return self.is_set()

    def send(self, _sender: Any, start_s: int, tick: Any, _waiting: Any) -> None:
        self.sent.append(start_s)
        with suppress(Disturbed):
            while self.wall_s < start_s + 60:
                tick(1.0)

    def idle(self) -> None:
        """Do nothing."""

    def confirm(self, *_: Any) -> None:
        """Do nothing."""

    def clock_was_set(self, _jump_s: float) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("at_s", "jump_s"), [(130.0, -3_600.0), (130.0, -30.0), (130.0, 3_600.0), (10.0, -3_600.0), (10.0, -30.0)]
)
def test_the_next_minute_after_a_clock_was_set_is_of_that_clock(
    monkeypatch: pytest.MonkeyPatch, at_s: float, jump_s: float
) -> None:
    service, day = service_of(CanaryMetrics()), Day(420.0, {at_s: jump_s})
    for module in (services, senders):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: day.wall_s))
        monkeypatch.setattr(module, "boot_s", lambda: day.boot_s)
    everything: Any = day
    service._send_minutes(everything, everything, everything, everything)

    before = [FIRST_S + 40, FIRST_S + 100] if at_s > 100 else []
    after = day.sent[len(before) :]
    assert day.sent[: len(before)] == before
    assert 0 < after[0] - (FIRST_S + at_s + jump_s) <= 65
    assert after == [after[0] + 60 * number for number in range(len(after))]
    assert len(after) >= 4

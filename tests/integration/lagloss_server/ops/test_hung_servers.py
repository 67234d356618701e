"""A server that hangs, with its connections open, shows on every service that it concerns, and heals by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import psutil
import pytest

from lagloss_server.base.instances import read_endpoints
from pipeline_under_test.harness.stack import ScenarioStack

SERVICES = ("aggregator", "alerting", "collector", "dashboard", "taps")
SHOWN_S = 30
HANGS_S = 40
HEALED_S = 90
HUNG = {
    "PostgreSQL": (("postgres",), SERVICES),
    "Kafka": (("java", "kafka.Kafka"), ("aggregator", "collector", "taps")),
    "Spark": (("java", "org.apache.spark"), ("aggregator",)),
}
"""Words of its processes' command lines, and the services that it concerns, by server."""


@pytest.fixture(scope="module")
def stack() -> Iterator[ScenarioStack]:
    with ScenarioStack() as made:
        yield made


def processes(*words: str) -> list[psutil.Process]:
    """The processes of one server below this test's `lagloss up`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            text = " ".join(process.cmdline())
            if all(word in text for word in words):
                found.append(process)
    return found


class Probes:
    """What all services answer at a time, each asked by a client that waits as long as a kubelet's may."""

    def __init__(self, stack: ScenarioStack) -> None:
        endpoints = read_endpoints(stack.directory)
        self._urls = {name: endpoints[name] for name in SERVICES}

    def get(self, path: str) -> dict[str, tuple[int, str]]:
        with ThreadPoolExecutor(len(SERVICES)) as pool:
            return dict(zip(self._urls, pool.map(lambda url: _get(url + path), self._urls.values()), strict=True))

    def statuses(self, path: str) -> dict[str, int]:
        return {name: status for name, (status, _) in self.get(path).items()}

    def until(self, expected: dict[str, int], within_s: float) -> None:
        ends = time.monotonic() + within_s
        while (answers := self.get("/healthz")) and {name: status for name, (status, _) in answers.items()} != expected:
            assert time.monotonic() < ends, answers
            assert set(self.statuses("/livez").values()) == {200}
            time.sleep(0.5)

    def until_named(self, path: str, services: Collection[str], server: str, within_s: float) -> None:
        """Wait until all of these name the server that hangs, as one that does not respond or that they wait for; on a
        busy machine one may not answer in time."""
        ends = time.monotonic() + within_s
        while (texts := [text for name, (_, text) in self.get(path).items() if name in services]) and not all(
            server.lower() in text.lower() and ("has not responded for" in text or text.startswith("waiting for"))
            for text in texts
        ):
            assert time.monotonic() < ends, texts
            time.sleep(0.5)


def _get(url: str) -> tuple[int, str]:
    try:
        answer = httpx2.get(url, timeout=2)
    except httpx2.TransportError as error:
        return 0, repr(error)
    return answer.status_code, answer.text


@pytest.mark.slow
@pytest.mark.parametrize("server", HUNG)
def test_a_server_that_hangs_shows_on_every_service_and_heals_by_itself(stack: ScenarioStack, server: str) -> None:
    words, concerned = HUNG[server]
    probes, victims = Probes(stack), processes(*words)
    well = dict.fromkeys(SERVICES, 200)
    assert victims
    probes.until(well, HEALED_S)
    began = time.monotonic()
    for victim in victims:
        victim.send_signal(signal.SIGSTOP)
    try:
        probes.until(well | dict.fromkeys(concerned, 503), SHOWN_S)
        for path in ("/healthz", "/readyz"):
            probes.until_named(path, concerned, server, SHOWN_S)
        if server == "PostgreSQL":
            assert probes.get("/readyz?exclude=postgresql")["collector"][0] == 200
            while time.monotonic() - began < HANGS_S:
                assert set(probes.statuses("/livez").values()) == {200}
                assert set(probes.statuses("/healthz").values()) == {503}
                time.sleep(1)
        assert probes.statuses("/metrics") == well
    finally:
        for victim in victims:
            victim.send_signal(signal.SIGCONT)
    probes.until(well, HEALED_S)

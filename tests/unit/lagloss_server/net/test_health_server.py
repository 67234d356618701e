"""/healthz of a service without other routes: for this machine all of it, for strangers no names of servers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from lagloss_server.net.health_server import serve_health
from lagloss_server.ops.processes import choose_port

STRANGER = "127.0.0.6"
"""A peer that is not this machine's own process: how a mesh delivers what comes from elsewhere."""


@pytest.fixture
def trouble() -> list[str | None]:
    return [None]


@pytest.fixture
def url(trouble: list[str | None]) -> Iterator[str]:
    port = choose_port("health")
    end = serve_health("test", CollectorRegistry(), lambda: trouble[0], "0.0.0.0", port, lambda: "ok; all of it")
    base = f"http://127.0.0.1:{port}"
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        try:
            httpx2.get(f"{base}/livez")
            break
        except httpx2.TransportError:
            time.sleep(0.02)
    yield base
    end()


def asked(url: str, path: str, address: str = "127.0.0.1") -> tuple[int, str]:
    with httpx2.Client(transport=httpx2.HTTPTransport(local_address=address)) as client:
        answer = client.get(url + path)
    return answer.status_code, answer.text


def test_a_stranger_learns_what_is_waited_for_and_no_name_of_a_host_or_user(
    url: str, trouble: list[str | None]
) -> None:
    trouble[0] = "waiting for postgresql since 2026-11-21T08:40:00Z: connection to db.corp, user lagloss: refused"
    for path in ("/healthz", "/readyz"):
        assert asked(url, path) == (503, trouble[0])
        assert asked(url, path, STRANGER) == (503, "waiting for postgresql since 2026-11-21T08:40:00Z")


def test_what_has_no_details_is_the_same_for_all(url: str, trouble: list[str | None]) -> None:
    assert asked(url, "/readyz") == asked(url, "/readyz", STRANGER) == (200, "ok; all of it")
    trouble[0] = "starting"
    assert asked(url, "/readyz") == asked(url, "/readyz", STRANGER) == (503, "starting")
    assert asked(url, "/livez", STRANGER) == (200, "ok")

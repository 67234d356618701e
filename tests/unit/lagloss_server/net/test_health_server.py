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
def url(trouble: list[str | None], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    port = choose_port("health")
    end = serve_health("test", CollectorRegistry(), lambda: trouble[0], "0.0.0.0", port, lambda: "ok; all of it")
    base = f"http://127.0.0.1:{port}"
    awaited(base)
    yield base
    end()


def awaited(url: str) -> None:
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        try:
            httpx2.get(f"{url}/livez")
            break
        except httpx2.TransportError:
            time.sleep(0.02)


def asked(url: str, path: str, address: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    with httpx2.Client(transport=httpx2.HTTPTransport(local_address=address)) as client:
        answer = client.get(url + path, headers=headers)
    return answer.status_code, answer.text


def test_a_stranger_learns_what_is_waited_for_and_no_name_of_a_host_or_user(
    url: str, trouble: list[str | None]
) -> None:
    trouble[0] = "waiting for postgresql since 2026-11-21T08:40:00Z: connection to db.corp, user lagloss: refused"
    for path in ("/healthz", "/readyz"):
        assert asked(url, path) == (503, trouble[0])
        assert asked(url, path, STRANGER) == (503, "waiting for postgresql since 2026-11-21T08:40:00Z")


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "via"])
def test_no_header_makes_a_stranger_a_process_of_this_machine(url: str, trouble: list[str | None], header: str) -> None:
    trouble[0] = "waiting for postgresql: db.corp"
    claimed = {header: "for=127.0.0.1" if header == "forwarded" else "127.0.0.1"}
    for address in (STRANGER, "127.0.0.1"):  # the second hands on what another asks
        assert asked(url, "/readyz", address, **claimed) == (503, "waiting for postgresql")


def test_what_listens_on_loopback_answers_to_its_names_alone() -> None:
    port = choose_port("health")
    own = {"own_url": "http://lagloss.corp:9000", "url_setting": "LAGLOSS_TAPS_URL"}
    end = serve_health("test", CollectorRegistry(), lambda: None, "127.0.0.1", port, **own)
    try:
        url = f"http://127.0.0.1:{port}"
        awaited(url)
        assert asked(url, "/metrics", host="lagloss.corp:9000")[0] == 200
        code, text = asked(url, "/metrics", host="evil.example")
        assert code == 421
        assert "LAGLOSS_TAPS_URL" in text
    finally:
        end()


def test_what_has_no_details_is_the_same_for_all(url: str, trouble: list[str | None]) -> None:
    assert asked(url, "/readyz") == asked(url, "/readyz", STRANGER) == (200, "ok; all of it")
    trouble[0] = "starting"
    assert asked(url, "/readyz") == asked(url, "/readyz", STRANGER) == (503, "starting")
    assert asked(url, "/livez", STRANGER) == (200, "ok")

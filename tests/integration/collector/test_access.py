"""Who is trusted without a token: a process of this machine that asks itself, and nobody who only looks like one."""

from __future__ import annotations

import httpx2
import pytest

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.conftest import fresh_database
from tests.integration.collector.test_collector import batch, beacon
from tests.integration.conftest import DEFINITION, YAML, Collector, serving

MESH = "127.0.0.6"
"""Where Istio's sidecar delivers from what came from anywhere."""


def from_address(collector: Collector, address: str) -> httpx2.Client:
    transport = httpx2.HTTPTransport(local_address=address)
    return httpx2.Client(base_url=collector.url, transport=transport, timeout=30)


def test_what_a_sidecar_delivers_needs_a_token(collector: Collector, pipeline: str) -> None:
    with from_address(collector, MESH) as client:
        assert client.post("/v1/beacons", json=batch(pipeline, beacon())).status_code == 401
        answer = client.put(f"/v1/pipelines/{pipeline}", content=DEFINITION.replace("NAME", pipeline), headers=YAML)
        assert answer.status_code == 401
    assert collector.client.post("/v1/beacons", json=batch(pipeline, beacon())).status_code == 202


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Forwarded-For": "10.0.0.7"}, 401),
        ({"Forwarded": "for=10.0.0.7"}, 401),
        ({"Via": "1.1 proxy"}, 401),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_who_was_sent_here_by_a_proxy_or_a_page_is_not_this_machine(
    collector: Collector, pipeline: str, headers: dict[str, str], status: int
) -> None:
    assert collector.client.post("/v1/beacons", json=batch(pipeline, beacon()), headers=headers).status_code == status


def test_a_body_without_a_type_is_refused(collector: Collector, pipeline: str) -> None:
    """As a page of any site may send it without asking."""
    body = b'{"pipeline": "%b", "node": "src", "beacons": []}' % pipeline.encode()
    assert collector.client.post("/v1/beacons", content=body).status_code == 415


def test_headers_of_a_proxy_make_nobody_a_process_of_this_machine(
    kafka_bootstrap: str, postgres: EmbeddedPostgres
) -> None:
    settings = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "FORWARDED_ALLOW_IPS": "*"}
    with (
        fresh_database(postgres) as database_url,
        serving(LAGLOSS_DATABASE_URL=database_url, **settings) as (_, client),
        httpx2.Client(
            base_url=client.base_url, transport=httpx2.HTTPTransport(local_address=MESH), timeout=30
        ) as other,
    ):
        answer = other.get("/v1/pipelines", headers={"X-Forwarded-For": "127.0.0.1"})
        assert answer.status_code == 401


def test_a_collector_that_others_reach_trusts_no_address(kafka_bootstrap: str, postgres: EmbeddedPostgres) -> None:
    settings = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_BIND_ADDRESS": "0.0.0.0"}
    with (
        fresh_database(postgres) as database_url,
        serving(LAGLOSS_DATABASE_URL=database_url, **settings) as (_, client),
    ):
        assert client.get("/v1/pipelines").status_code == 401


def test_strangers_learn_no_names_of_hosts(collector: Collector) -> None:
    with from_address(collector, MESH) as client:
        assert client.get("/healthz").json() == {"kafka": "ok", "postgresql": "ok"}


def test_a_key_of_another_route_is_not_answered_with_its_answer(collector: Collector, pipeline: str) -> None:
    headers = {"Idempotency-Key": f"of-two-routes-{pipeline}"}
    assert collector.client.post("/v1/beacons", json=batch(pipeline, beacon()), headers=headers).status_code == 202
    body = {"resourceSpans": []}
    assert collector.client.post("/v1/traces", json=body, headers=headers).status_code == 422

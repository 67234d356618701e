"""The collector over HTTP, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import httpx
import psutil
import pytest

from lagloss.embedded.kafka import EmbeddedKafka
from lagloss.topics import BEACONS, REPORTS, create_topics
from lagloss.wire import decode_block, decode_report
from tests.integration.kafka_log import read_all, wait_for


@pytest.fixture(scope="module")
def collector(kafka_bootstrap: str) -> Iterator[httpx.Client]:
    create_topics(kafka_bootstrap)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"LAGLOSS_COLLECTOR_PORT": str(port), "LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap}
    process = subprocess.Popen([sys.executable, "-m", "collector"], env=env, stdout=subprocess.DEVNULL)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

        def healthy() -> bool:
            try:
                return client.get("/healthz").status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait_for(healthy, timeout_s=30, what="the collector")
            yield client
        finally:
            process.terminate()
            assert process.wait(20) in (0, -signal.SIGTERM)  # uvicorn takes its leave with the signal it got
            decoded = [decode_report(value) for _, _, _, value in read_all(kafka_bootstrap, REPORTS)]
            newest = {report.emitter: report for report in decoded if report.pipeline.startswith("web-")}
            assert {report.closed for report in newest.values()} == {True}


@pytest.fixture
def pipeline() -> str:
    return f"web-{uuid.uuid4().hex[:8]}"


def beacon(**fields: object) -> dict[str, object]:
    return {"checkpoint": "in", "message_id": "m", "event_time": time.time_ns() // 1_000_000, **fields}


def batch(pipeline: str, *beacons: dict[str, object], **fields: object) -> dict[str, object]:
    return {"pipeline": pipeline, "node": "src", "beacons": list(beacons), **fields}


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))


def test_202_means_that_the_log_holds_the_beacons(collector: httpx.Client, kafka_bootstrap: str, pipeline: str) -> None:
    before = metric(collector, "lagloss_collector_beacons_total")
    sent = batch(
        pipeline,
        beacon(event_time=1_000 * int(time.time()), observed_at=1_000 * int(time.time()) + 42),
        beacon(checkpoint="out:x"),
        beacon(checkpoint="filtered", reason="robot"),
        beacon(checkpoint="dead", replay="again"),
        beacon(checkpoint="out", event_time=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())),
        first=True,
    )
    answer = collector.post("/v1/beacons", json=sent)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 5})
    blocks = [decode_block(value) for _, _, _, value in read_all(kafka_bootstrap, BEACONS)]
    found = {block.checkpoint: block for block in blocks if block.pipeline == pipeline}
    assert {(b.checkpoint, b.reason, b.replay, b.count) for b in found.values()} == {
        ("src.in", None, None, 1),
        ("src.out:x", None, None, 1),
        ("src.filtered", "robot", None, 1),
        ("src.dead", "unspecified", "again", 1),
        ("src.out", None, None, 1),
    }
    assert found["src.in"].message_ids == b"\x01m"
    assert found["src.in"].lag_ms.tolist() == [42.0]
    assert metric(collector, "lagloss_collector_beacons_total") == before + 5

    def tallied() -> set[int]:
        decoded = [decode_report(value) for _, _, _, value in read_all(kafka_bootstrap, REPORTS)]
        mine = [report for report in decoded if report.pipeline == pipeline]
        return {report.final_through for report in mine if report.tallies}

    wait_for(lambda: bool(tallied()), what="a report")
    assert tallied() == {0}  # its clients pass no counts: never final


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (beacon(message_id=""), "message_id"),
        (beacon(message_id="x" * 256), "message_id"),
        (beacon(message_id=5), "message_id"),
        (beacon(checkpoint="src.in"), "checkpoint"),
        (beacon(event_time="2026-01-01T00:00:00"), "event_time"),
        (beacon(event_time=True), "event_time"),
        (beacon(event_time=1e300), "event_time"),
        (beacon(event_time=5), "event_time"),
        (beacon(event_time=4e12), "event_time"),
        (beacon(observed_at="yesterday"), "observed_at"),
        (beacon(colour="red"), "colour"),
        ({"checkpoint": "in", "message_id": "m"}, "event_time"),
    ],
)
def test_422_names_the_position_and_field_and_takes_nothing(
    collector: httpx.Client, kafka_bootstrap: str, pipeline: str, bad: dict[str, object], field: str
) -> None:
    answer = collector.post("/v1/beacons", json=batch(pipeline, beacon(), bad, beacon()))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["position"], problem["field"], problem["status"]) == (1, field, 422)
    assert all(not key.startswith(pipeline.encode()) for _, _, key, _ in read_all(kafka_bootstrap, BEACONS))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", json.dumps(batch("a b", beacon())).encode(), b'{"a": 1}'])
def test_422_for_what_is_no_batch(collector: httpx.Client, body: bytes) -> None:
    answer = collector.post("/v1/beacons", content=body)
    assert (answer.status_code, answer.json()["title"]) == (422, "Bad batch")


def test_the_first_node_is_refused_what_comes_from_the_future(collector: httpx.Client, pipeline: str) -> None:
    ahead = beacon(event_time=time.time_ns() // 1_000_000 + 70_000)
    assert collector.post("/v1/beacons", json=batch(pipeline, ahead, first=True)).status_code == 422
    assert collector.post("/v1/beacons", json=batch(pipeline, ahead)).status_code == 202


def test_413_while_the_body_is_read_whatever_length_it_says(collector: httpx.Client) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50 * 1024 * 1024:
            sent += 65_536
            yield b" " * 65_536

    with contextlib.suppress(httpx.WriteError):  # it may hang up on us before we have read the answer
        assert collector.post("/v1/beacons", content=endless()).status_code == 413
    assert sent < 10 * 1024 * 1024
    answer = collector.post("/v1/beacons", content=b" " * (1024 * 1024 + 1))
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


def test_batches_sent_together_are_all_acknowledged(
    collector: httpx.Client, kafka_bootstrap: str, pipeline: str
) -> None:
    async def send_all() -> list[int]:
        async with httpx.AsyncClient(base_url=collector.base_url, timeout=30) as client:
            bodies = [batch(pipeline, *(beacon(message_id=f"{n}-{i}") for i in range(50))) for n in range(40)]
            answers = await asyncio.gather(*(client.post("/v1/beacons", json=body) for body in bodies))
            return [answer.status_code for answer in answers]

    assert asyncio.run(send_all()) == [202] * 40
    blocks = [decode_block(value) for _, _, _, value in read_all(kafka_bootstrap, BEACONS)]
    mine = [block for block in blocks if block.pipeline == pipeline]
    assert sum(block.count for block in mine) == 2_000
    assert len({block.emitter for block in mine}) == 1


def test_503_and_unhealthy_while_the_broker_does_not_answer(
    collector: httpx.Client, kafka: EmbeddedKafka, pipeline: str
) -> None:
    assert collector.post("/v1/beacons", json=batch(pipeline, beacon())).status_code == 202
    broker = psutil.Process(kafka.processes[0].pid)
    victims = [broker, *broker.children(recursive=True)]
    for victim in victims:
        victim.send_signal(signal.SIGSTOP)
    try:
        assert collector.get("/healthz").status_code == 503
        answer = collector.post("/v1/beacons", json=batch(pipeline, beacon()))
    finally:
        for victim in victims:
            victim.send_signal(signal.SIGCONT)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    wait_for(lambda: collector.get("/healthz").status_code == 200, what="health")

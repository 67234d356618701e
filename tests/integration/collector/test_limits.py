"""The collector's limits on a real broker: bodies, headers, clients that go away, a broker that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import uuid
from collections.abc import Callable, Iterator

import httpx2
import numpy as np
import pytest
import zstandard

from lagloss.wire.format import encode_block
from tests.integration.collector.test_collector import batch, beacon, blocks_of
from tests.integration.collector.test_intake import BLOCKS, block, body_of
from tests.integration.conftest import JSON, Collector
from tests.support.kafka_log import wait_for

MIB = 1024 * 1024


def test_413_while_the_body_is_read_whatever_length_it_says(collector: Collector) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50 * MIB:
            sent += 65_536
            yield b" " * 65_536

    with contextlib.suppress(httpx2.WriteError):  # it may hang up on us before we have read the answer
        assert collector.client.post("/v1/beacons", content=endless(), headers=JSON).status_code == 413
    assert sent < 25 * MIB  # with what the buffers of both ends of the connection hold
    answer = collector.client.post("/v1/beacons", content=b" " * (MIB + 1), headers=JSON)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_small_body_that_unpacks_to_a_large_one_is_413(collector: Collector, encoding: str) -> None:
    bomb = {"gzip": gzip.compress, "zstd": zstandard.compress}[encoding](b" " * (200 * MIB))
    before = collector.process.memory_info().rss
    answer = collector.client.post("/v1/beacons", content=bomb, headers=JSON | {"Content-Encoding": encoding})
    assert answer.status_code == 413
    assert collector.process.memory_info().rss - before < 100 * MIB


def test_endless_headers_are_cut_off(collector: Collector) -> None:
    host, port = collector.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"x" * 10_000)
        with contextlib.suppress(ConnectionError):
            assert b" 400 " in connection.recv(1_000) or connection.recv(1) == b""
    assert collector.client.get("/healthz").status_code == 200


def test_a_client_that_goes_away_in_the_middle_does_no_harm(collector: Collector, pipeline: str) -> None:
    host, port = collector.url.removeprefix("http://").split(":")
    body = json.dumps(batch(pipeline, beacon())).encode()
    lines = (f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = "\r\n".join(("POST /v1/beacons HTTP/1.1", *lines, "", "")).encode()
    for sent in (head + body[:20], head + body):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent)
    wait_for(lambda: len(blocks_of(collector, pipeline)) == 1, what="the whole one")
    assert collector.client.post("/v1/beacons", json=batch(pipeline, beacon())).status_code == 202


@pytest.mark.slow
def test_503_and_flat_memory_while_the_broker_does_not_answer(
    collector: Collector, stopped_broker: Callable[[], None], pipeline: str
) -> None:
    """More than all queues hold comes in; what is too much is refused at once, and nothing grows by it."""
    client = collector.client
    assert client.post("/v1/beacons", json=batch(pipeline, beacon())).status_code == 202
    n = 2_000
    ids, names = np.resize(block(pipeline).id_hash, n), (b"\xff" + b"i" * 255) * n
    large = block(pipeline, checkpoint="src.in", id_hash=ids, lag_ms=np.zeros(n, np.float32), message_ids=names)
    body = body_of(*[encode_block(large)] * 6)  # 3.3 MB
    stopped_broker()

    async def flood() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(base_url=collector.url, timeout=60) as many:
            blocks = [many.post("/v1/blocks", content=body, headers=BLOCKS) for _ in range(20)]
            beacons = [
                many.post("/v1/beacons", json=batch(pipeline, beacon(message_id=uuid.uuid4().hex))) for _ in range(5)
            ]
            return list(await asyncio.gather(*blocks, *beacons))

    answers = asyncio.run(flood())
    assert {answer.status_code for answer in answers} == {503}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers)
    assert any("too many bytes are waiting" in answer.text for answer in answers)
    held = collector.metric("lagloss_collector_waiting_bytes")
    assert 0 < held <= 32 * MIB
    before = collector.process.memory_info().rss
    for _ in range(40):
        assert client.post("/v1/blocks", content=body, headers=BLOCKS).status_code == 503
    assert collector.metric("lagloss_collector_waiting_bytes") <= 32 * MIB
    assert collector.process.memory_info().rss - before < 20 * MIB
    assert client.get("/healthz").status_code == 503


def test_all_is_well_again_once_the_broker_answers(collector: Collector, pipeline: str) -> None:
    wait_for(lambda: collector.client.get("/healthz").status_code == 200, what="health")
    wait_for(lambda: collector.metric("lagloss_collector_waiting_bytes") == 0, what="the queue to drain")
    assert collector.client.post("/v1/beacons", json=batch(pipeline, beacon())).status_code == 202

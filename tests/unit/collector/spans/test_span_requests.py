"""Requests of Kafka clients' spans: who may send which, what is answered, and what a broker's absence costs."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import time
from collections.abc import Sequence
from typing import Any, cast

import httpx2
import pytest
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from collector import traces
from collector.access import Access
from collector.batches import BeaconBatch
from collector.bodies import Bodies
from collector.emitters import Emitters
from collector.fairness import Workers
from collector.idempotency import Repeats
from collector.log_writer import Writer
from collector.metadata_cache import KnownPipeline, MetadataCache, Snapshot, by_span_source
from collector.metrics import CollectorMetrics
from collector.services import CollectorServices
from collector.spans.kafka import NO_MESSAGE
from collector.spans.otlp import JSON, PROTOBUF
from collector.spans.pairing import OUT_OF_RANGE
from collector.traces import NO_DEFINITION, NO_RIGHT
from lagloss_server.net import problem_details as problems
from lagloss_server.net.problem_details import busy
from lagloss_server.store.store import Store
from lagloss_server.store.tokens import Token, hash_secret
from tests.support.kafka_spans import INSTRUMENTATIONS, TestSpan, as_json, as_protobuf, consumed, http_span, produced
from tests.support.span_pairs import MAILER, SHOP, definition_of

NOW_MS = time.time_ns() // 1_000_000
JAVA = INSTRUMENTATIONS["java"]
PEER = ("127.0.0.1", 50_000)


class Known(MetadataCache):
    """The pipeline orders, and another one of other spans, to whom its own token belongs."""

    def __init__(self, guarded: Sequence[str]) -> None:
        super().__init__(None)
        self.store = cast("Store", object())
        names: frozenset[str] = frozenset()
        points = definition_of(SHOP, MAILER).span_points
        pipeline = KnownPipeline("orders", 1, frozenset({"shop"}), names, names, 1, span_points=points)
        tokens = {name: Token(name, name, "intake", None, hash_secret("s"), 0) for name in ("orders", "others")}
        self._snapshot = Snapshot(
            math.inf, tokens, frozenset(guarded), {"orders": pipeline}, {}, by_span_source([pipeline])
        )
        self.queries = 0

    async def refresh(self, pause_s: float = 0.0) -> None:
        self.queries += 1


class Collector:
    """The route, on emitters that keep what they get, or refuse it while `is_away`."""

    def __init__(self, *, guarded: Sequence[str] = ()) -> None:
        self.knowledge = Known(guarded)
        self.beacons: list[str] = []
        self.is_away = False
        workers = Workers()
        self.services = CollectorServices(
            self.knowledge,
            Access(self.knowledge),
            Bodies(),
            cast("Writer", None),
            cast("Emitters", self),
            Repeats(),
            CollectorMetrics(),
            workers,
        )
        self.app = FastAPI()
        problems.install(self.app, "the collector")
        traces.add_routes(self.app, self.services)

    async def put(self, batch: BeaconBatch) -> None:
        if self.is_away:
            raise busy("the broker is away")
        self.beacons += [f"{batch.node}.{seen.place} {seen.message_id}" for seen in batch.seen]

    def post(self, body: bytes, kind: str = JSON, token: str = "", **headers: str) -> httpx2.Response:
        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(self.app, client=PEER)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                known = {"Authorization": f"Bearer lagloss_{token}_s"} if token else {}
                return await client.post("/v1/traces", content=body, headers={"Content-Type": kind, **known, **headers})

        return asyncio.run(send())

    def send(self, *spans: TestSpan, token: str = "") -> dict[str, Any]:
        answer = self.post(as_json(spans), token=token)
        assert answer.status_code == 200, answer.text
        whole: dict[str, Any] = answer.json()
        return whole


AT_SHOP = ["shop.in orders/1/7", "shop.out orders/1/7"]
AT_MAILER = ["mailer.in orders/1/7", "mailer.out orders/1/7"]
SENT, TAKEN = produced(JAVA, 7, NOW_MS), consumed(JAVA, 7, NOW_MS, NOW_MS + 10)


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
@pytest.mark.parametrize("token", ["", "orders"])
def test_spans_of_kafka_become_beacons_in_either_encoding_also_packed(kind: str, token: str) -> None:
    collector = Collector()
    body = as_json([SENT, TAKEN]) if kind == JSON else as_protobuf([SENT, TAKEN])
    answer = collector.post(gzip.compress(body), kind, token, **{"Content-Encoding": "gzip"})
    assert answer.status_code == 200
    assert answer.content == (b"{}" if kind == JSON else b"")
    assert collector.beacons == AT_SHOP + AT_MAILER


def test_what_cannot_be_used_is_answered_by_reason_and_the_rest_is_taken() -> None:
    collector = Collector()
    unknown = produced(JAVA, 7, NOW_MS, service="another")
    nameless = consumed(INSTRUMENTATIONS["kafka-python"], 7, NOW_MS, NOW_MS, parent=0)
    old = produced(JAVA, 8, NOW_MS - 8 * 86_400_000)
    spans = [SENT, unknown, nameless, unknown, old, http_span(1, NOW_MS), TAKEN]
    answer = collector.send(*spans)["partialSuccess"]
    assert answer["rejectedSpans"] == "4"
    message = answer["errorMessage"]
    assert message.startswith(f"rejected 4 spans: 2 {NO_DEFINITION}; 1 ")
    assert all(f"1 {reason}" in message for reason in (NO_MESSAGE, OUT_OF_RANGE))
    assert "another produces to orders" not in message  # spans without a message are known before any definition
    assert collector.beacons == AT_SHOP + AT_MAILER
    response = ExportTraceServiceResponse.FromString(collector.post(as_protobuf(spans[1:2]), PROTOBUF).content)
    assert response.partial_success.rejected_spans == 1
    assert "another produces to orders" in response.partial_success.error_message


def test_an_ordinary_trace_is_answered_as_a_success() -> None:
    collector = Collector()
    rabbit = produced(JAVA, 1, NOW_MS, attributes={"messaging.system": "rabbitmq", "messaging.operation.type": "send"})
    assert collector.send(http_span(1, NOW_MS), http_span(2, NOW_MS), rabbit) == {}
    assert (collector.beacons, collector.knowledge.queries) == ([], 0)
    registry = collector.services.metrics.registry
    assert registry.get_sample_value("lagloss_collector_spans_total", {"outcome": "ignored"}) == 3


def test_a_token_sends_spans_of_its_own_pipeline_alone() -> None:
    collector = Collector(guarded=["orders"])
    for token in ("others", ""):
        message = collector.send(SENT, token=token)["partialSuccess"]["errorMessage"]
        assert f"1 {NO_RIGHT}" in message
    assert collector.beacons == []
    assert collector.send(SENT, token="orders") == {}
    assert collector.beacons == AT_SHOP


def test_an_unknown_topic_costs_one_query_however_often_it_comes() -> None:
    collector = Collector()
    for _ in range(5):
        collector.send(produced(JAVA, 7, NOW_MS, service="another"), SENT)
    assert collector.knowledge.queries == 1


def test_spans_that_are_sent_again_after_503_count_once() -> None:
    collector = Collector()
    collector.send(TAKEN)
    collector.is_away = True
    assert collector.post(as_json([SENT])).status_code == 503
    assert collector.beacons == []
    collector.is_away = False
    collector.send(SENT)
    collector.send(SENT, TAKEN)
    assert collector.beacons == AT_SHOP + AT_MAILER


def test_a_request_without_spans_is_a_success() -> None:
    assert Collector().post(json.dumps({}).encode()).json() == {}

"""Spans of Kafka clients as beacons of the pipelines that name their services and topics, on a real broker."""

from __future__ import annotations

import gzip
import json
import uuid
from collections import defaultdict

import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Tracer

from lagloss.broker.topics import REPORTS
from lagloss.wire.format import decode_report, hash_id
from lagloss.wire.traces import TraceContext, find_traces
from tests.integration.collector.test_collector import blocks_of, now_ms
from tests.integration.collector.test_definitions import new_token
from tests.integration.conftest import JSON, YAML, Collector
from tests.support.kafka_log import read_all
from tests.support.kafka_spans import INSTRUMENTATIONS, as_json, consumed, http_span, produced

SPANNED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [mail], spans: {out: {service: NAME-shop, topic: orders, id: record}}}
    - {name: mail, spans: {in: {service: NAME-mailer, topic: orders}}}
"""


@pytest.fixture
def spanned(collector: Collector) -> str:
    """A pipeline of the test's own: shop -> mail, by spans of services of its own."""
    name = f"spans-{uuid.uuid4().hex[:8]}"
    answer = collector.client.put(f"/v1/pipelines/{name}", content=SPANNED.replace("NAME", name), headers=YAML)
    assert answer.status_code == 201, answer.text
    return name


def tracing(collector: Collector, service: str, compression: Compression) -> tuple[TracerProvider, Tracer]:
    """A service's own tracing, as its SDK sets it up."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    exporter = OTLPSpanExporter(f"{collector.url}/v1/traces", compression=compression)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, provider.get_tracer("kafka")


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_spans_of_two_services_are_one_pipeline(collector: Collector, spanned: str, compression: Compression) -> None:
    of_record = {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "2",
    }
    shop, produce = tracing(collector, f"{spanned}-shop", compression)
    contexts: list[SpanContext] = []
    for offset in range(5):
        with produce.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
            sent = of_record | {"messaging.operation.type": "send", "messaging.kafka.offset": offset}
            with produce.start_as_current_span("orders send", kind=SpanKind.PRODUCER, attributes=sent) as span:
                contexts.append(span.get_span_context())
    mailer, consume = tracing(collector, f"{spanned}-mailer", compression)
    for offset, context in enumerate(contexts[:4]):
        taken = of_record | {"messaging.operation.type": "process", "messaging.kafka.offset": offset}
        links = [Link(context)]
        consume.start_span("orders process", kind=SpanKind.CONSUMER, attributes=taken, links=links).end()
    mailer.shutdown()  # the consumer's come first
    assert blocks_of(collector, spanned) == []
    shop.shutdown()
    seen: dict[str, set[int]] = defaultdict(set)
    for block in blocks_of(collector, spanned):
        seen[block.checkpoint] |= set(block.id_hash.tolist())
    ids = [hash_id(f"orders/2/{offset}") for offset in range(5)]
    assert seen["shop.in"] == seen["shop.out"] == set(ids)
    assert seen["mail.in"] == seen["mail.out"] == set(ids[:4])


def test_the_message_has_the_trace_of_the_span_that_produced_it(collector: Collector, spanned: str) -> None:
    span = produced(INSTRUMENTATIONS["java"], 7, now_ms(), service=f"{spanned}-shop")
    assert collector.client.post("/v1/traces", content=as_json([span]), headers=JSON).json() == {}
    (block,) = [block for block in blocks_of(collector, spanned) if block.checkpoint == "shop.in"]
    traces = list(find_traces(block.traces or b"", np.arange(1)).values())
    assert traces == [TraceContext(span.trace_id.hex(), span.span_id.hex())]


def test_the_collector_s_account_of_spans_is_never_complete(collector: Collector, spanned: str) -> None:
    span = produced(INSTRUMENTATIONS["java"], 7, now_ms(), service=f"{spanned}-shop")
    assert collector.client.post("/v1/traces", content=as_json([span]), headers=JSON).status_code == 200
    reports = [decode_report(value) for _, _, _, value in read_all(collector.bootstrap, REPORTS)]
    assert {report.final_through for report in reports if report.pipeline == spanned} <= {0}


def test_spans_that_cannot_be_used_are_counted_by_reason(collector: Collector, spanned: str, pipeline: str) -> None:
    java, python = INSTRUMENTATIONS["java"], INSTRUMENTATIONS["kafka-python"]
    spans = [
        produced(java, 7, now_ms(), service=f"{spanned}-shop"),
        produced(java, 8, now_ms(), service=f"{spanned}-nowhere"),
        consumed(python, 9, now_ms(), now_ms(), service=f"{spanned}-mailer", parent=0),
        http_span(1, now_ms()),
    ]
    body, packed = gzip.compress(as_json(spans)), {**JSON, "Content-Encoding": "gzip"}
    answer = collector.client.post("/v1/traces", content=body, headers=packed).json()["partialSuccess"]
    assert answer["rejectedSpans"] == "2"
    assert "1 of a service and topic that no definition names" in answer["errorMessage"]
    assert "1 without an offset, a link or a parent" in answer["errorMessage"]
    assert {block.checkpoint for block in blocks_of(collector, spanned)} == {"shop.in", "shop.out"}
    token = new_token(collector, pipeline)
    refused = collector.client.post("/v1/traces", content=as_json(spans[:1]), headers={**JSON, **token})
    assert "needs another token" in refused.json()["partialSuccess"]["errorMessage"]


def test_a_definition_s_problem_with_spans_names_its_place(collector: Collector) -> None:
    name = f"spans-{uuid.uuid4().hex[:8]}"
    text = SPANNED.replace("NAME", name).replace("id: record", "id: key")
    answer = collector.client.put(f"/v1/pipelines/{name}", content=text, headers=YAML)
    assert (answer.status_code, answer.json()["field"]) == (422, "spec.nodes[0].spans.out.id")
    assert "expected 'record' or 'trace', found 'key'" in json.dumps(answer.json(), ensure_ascii=False)

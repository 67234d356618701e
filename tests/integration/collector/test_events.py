"""CloudEvents and OpenTelemetry spans as beacons, on a real broker."""

from __future__ import annotations

import codecs
import json
import time
import uuid
from typing import Any

import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from lagloss.wire.format import hash_id
from lagloss.wire.traces import TraceContext, find_traces
from tests.integration.collector.test_collector import blocks_of, hashes, now_ms
from tests.integration.conftest import Collector

BATCH = {"Content-Type": "application/cloudevents-batch+json"}


def event(pipeline: str, **attributes: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": uuid.uuid4().hex,
        "type": "io.lagloss.beacon.in",
        "source": f"/pipelines/{pipeline}/nodes/mid",
        "subject": "m-1",
        "time": "2026-01-01T00:00:00.250Z",
        "eventtime": now_ms(),
        **attributes,
    }


def test_cloudevents_become_beacons(collector: Collector, pipeline: str) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    events = [
        event(pipeline, eventtime=at, time=at, data={"any": "thing"}),
        event(pipeline, type="io.lagloss.beacon.out", to="ga"),
        event(pipeline, type="io.lagloss.beacon.dead", reason="unreadable", replay="again"),
    ]
    answer = collector.client.post("/v1/beacons", content=json.dumps(events), headers=BATCH)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 3})
    single = {"Content-Type": "application/cloudevents+json"}
    one = event(pipeline, type="io.lagloss.beacon.filtered")
    assert collector.client.post("/v1/beacons", content=json.dumps(one), headers=single).status_code == 202
    found = {block.checkpoint: block for block in blocks_of(collector, pipeline)}
    assert set(found) == {"mid.in", "mid.out:ga", "mid.dead", "mid.filtered"}
    assert (found["mid.dead"].reason, found["mid.dead"].replay) == ("unreadable", "again")
    assert found["mid.in"].lag_ms.tolist() == [0.0]


def test_events_that_come_again_put_nothing(collector: Collector, pipeline: str) -> None:
    events = json.dumps([event(pipeline)])
    answers = [collector.client.post("/v1/beacons", content=events, headers=BATCH).status_code for _ in range(2)]
    assert answers == [202, 202]
    assert hashes(blocks_of(collector, pipeline)) == [hash_id("m-1")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "com.example.other"}, "type"),
        ({"type": "io.lagloss.beacon.elsewhere"}, "type"),
        ({"subject": ""}, "subject"),
        ({"eventtime": "soon"}, "eventtime"),
        ({"source": "/somewhere"}, "source"),
        ({"specversion": "2.0"}, "specversion"),
        ({"time": "no time"}, "time"),
        ({"id": None}, "id"),
    ],
)
def test_a_bad_event_is_named(collector: Collector, pipeline: str, change: dict[str, Any], field: str) -> None:
    events = [event(pipeline), event(pipeline) | change]
    answer = collector.client.post("/v1/beacons", content=json.dumps(events), headers=BATCH)
    assert (answer.status_code, answer.json()["position"], answer.json()["field"]) == (422, 1, field)
    assert blocks_of(collector, pipeline) == []


def test_spans_of_the_sdk_become_beacons(collector: Collector, pipeline: str) -> None:
    provider = TracerProvider(resource=Resource({"lagloss.pipeline": pipeline, "service.name": "mid"}))
    exporter = OTLPSpanExporter(f"{collector.url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    message = {"messaging.message.id": "m-9", "lagloss.event_time": now_ms() - 500}
    with tracer.start_as_current_span("work"):
        tracer.start_span("in process", attributes={"messaging.operation.type": "process", **message}).end()
        tracer.start_span(
            "out send", attributes={"messaging.operation.type": "send", "lagloss.to": "fb", **message}
        ).end()
    provider.shutdown()
    found = {block.checkpoint: block for block in blocks_of(collector, pipeline)}
    assert set(found) == {"mid.in", "mid.out:fb"}
    assert {block.count for block in found.values()} == {1}
    assert all(400 < float(block.lag_ms[0]) < 10_000 for block in found.values())


def test_the_first_node_is_in_the_trace_of_its_span_or_of_the_events_extension(
    collector: Collector, pipeline: str
) -> None:
    resource = Resource({"lagloss.pipeline": pipeline, "service.name": "src"})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(f"{collector.url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    said = {"messaging.operation.type": "process", "messaging.message.id": "by span", "lagloss.event_time": now_ms()}
    with provider.get_tracer("test").start_as_current_span("orders process", attributes=said) as span:
        context = span.get_span_context()
    provider.shutdown()
    source, trace = f"/pipelines/{pipeline}/nodes/src", TraceContext("ab" * 16, "cd" * 8)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    traced = event(pipeline, source=source, subject="by event", time=now, traceparent=f"00-{'-'.join(trace)}-01")
    assert collector.client.post("/v1/beacons", content=json.dumps([traced]), headers=BATCH).status_code == 202
    found = {}
    for block in blocks_of(collector, pipeline):
        for row, kept in find_traces(block.traces or b"", np.arange(block.count)).items():
            found[int(block.id_hash[row])] = kept
    span_trace = TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert found == {hash_id("by span"): span_trace, hash_id("by event"): trace}


def test_spans_that_cannot_be_used_are_counted_and_the_others_taken(collector: Collector, pipeline: str) -> None:
    def span(**attributes: object) -> dict[str, Any]:
        said = {"messaging.operation.type": "process", "messaging.message.id": "m", "lagloss.event_time": now_ms()}
        pairs = [{"key": key, "value": {"stringValue": str(value)}} for key, value in (said | attributes).items()]
        number = {"key": "lagloss.event_time", "value": {"intValue": str(said["lagloss.event_time"])}}
        pairs = [number if pair["key"] == "lagloss.event_time" else pair for pair in pairs]
        return {"name": "s", "startTimeUnixNano": str(time.time_ns()), "attributes": pairs}

    resource = {"lagloss.pipeline": pipeline, "lagloss.node": "ga"}
    spans = [
        span(),
        span(**{"messaging.operation.type": "settle"}),
        span(**{"messaging.message.id": ""}),
        span(**{"lagloss.to": "nowhere", "messaging.operation.type": "send"}),
    ]
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in resource.items()]
    body = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}]}
    answer = collector.client.post("/v1/traces", json=body)
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "2"
    assert "messaging.message.id" in answer.json()["partialSuccess"]["errorMessage"]
    assert [block.checkpoint for block in blocks_of(collector, pipeline)] == ["ga.in"]


def test_spans_in_json_keep_their_trace_and_times_may_be_digits(collector: Collector, pipeline: str) -> None:
    trace, at_ms = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"), now_ms()
    said = {"messaging.operation.type": "process", "messaging.message.id": "m", "lagloss.event_time": f"{at_ms}"}
    span = {
        "name": "orders process",
        "traceId": trace.trace_id.upper(),
        "spanId": trace.span_id,
        "startTimeUnixNano": f"{at_ms + 250}000000",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in said.items()],
    }
    resource = {"lagloss.pipeline": pipeline, "service.name": "src"}
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in resource.items()]
    broken = span | {"startTimeUnixNano": "soon"}
    body = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": [broken, span]}]}]}
    answer = collector.client.post(
        "/v1/traces",
        content=codecs.BOM_UTF8 + json.dumps(body).encode(),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
    assert (answer.status_code, answer.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
    told = event(pipeline, subject="by text", eventtime=f"{at_ms}", time=f"{at_ms + 250}")
    assert collector.client.post("/v1/beacons", content=json.dumps([told]), headers=BATCH).status_code == 202
    found = {block.checkpoint: block for block in blocks_of(collector, pipeline)}
    assert set(found) == {"src.in", "mid.in"}
    assert list(find_traces(found["src.in"].traces or b"", np.arange(1)).values()) == [trace]
    assert {name: block.lag_ms.tolist() for name, block in found.items()} == {"src.in": [250.0], "mid.in": [250.0]}


def test_what_is_no_otlp_is_400(collector: Collector) -> None:
    for kind in ("application/json", "application/x-protobuf"):
        answer = collector.client.post("/v1/traces", content=b"\xff\xff", headers={"Content-Type": kind})
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")

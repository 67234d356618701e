"""Spans as exporters send them, in JSON and protobuf: each is judged for itself, and its trace is found."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.batches import Seen
from collector.spans import otlp
from collector.spans.answer import Rejected, write_response
from collector.spans.named import beacons_of
from lagloss.wire.traces import write_traceparent
from lagloss_server.net.problem_details import Problem

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
EVENT_MS, START_NS = 1_795_250_400_000, 1_795_250_400_123_456_789
NO_TRACEPARENT = write_traceparent(b"", b"")

# Made by opentelemetry-exporter-otlp-json-common 0.66b1 of Python's SDK.
PYTHON = """{"resourceSpans": [{"resource": {"attributes": [{"key": "lagloss.pipeline", "value": {"stringValue": "p"}},
{"key": "service.name", "value": {"stringValue": "n"}}]}, "scopeSpans": [{"scope": {"name": "io.lagloss.test",
"version": "1"}, "spans": [{"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7", "parentSpanId":
"53995c3f42cd8ad8", "flags": 768, "name": "orders process", "kind": 5, "startTimeUnixNano": "1795250400123456789",
"endTimeUnixNano": "1795250400223456789", "attributes": [{"key": "messaging.operation.type", "value": {"stringValue":
"process"}}, {"key": "messaging.message.id", "value": {"stringValue": "m-1"}}, {"key": "lagloss.event_time", "value":
{"intValue": "1795250400000"}}, {"key": "messaging.batch.message_count", "value": {"intValue": "3"}}, {"key": "ratio",
"value": {"doubleValue": 0.5}}, {"key": "ok", "value": {"boolValue": true}}, {"key": "tags", "value": {"arrayValue":
{"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}}], "events": [{"timeUnixNano": "1795250400123456789", "name":
"e"}], "links": [{"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "53995c3f42cd8ad8", "flags": 768}], "status":
{}}]}]}]}"""
# As @opentelemetry/otlp-transformer writes it: integers as numbers, times as text.
JAVASCRIPT = """{"resourceSpans":[{"resource":{"attributes":[{"key":"lagloss.pipeline","value":{"stringValue":"p"}},
{"key":"service.name","value":{"stringValue":"n"}}],"droppedAttributesCount":0},"scopeSpans":[{"scope":{"name":"t",
"version":""},"spans":[{"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7","name":"orders process"
,"kind":5,"startTimeUnixNano":"1795250400123456789","endTimeUnixNano":"1795250400223456789","attributes":[{"key":
"messaging.operation.type","value":{"stringValue":"process"}},{"key":"messaging.message.id","value":{"stringValue":"m-1"
}},{"key":"lagloss.event_time","value":{"intValue":1795250400000}},{"key":"n","value":{"kvlistValue":{"values":[{"key":
"a","value":{"intValue":1}}]}}}],"droppedAttributesCount":0,"events":[],"droppedEventsCount":0,"status":{"code":0},
"links":[],"droppedLinksCount":0,"flags":257}],"schemaUrl":"https://opentelemetry.io/schemas/1.7.0"}]}]}"""
# As the OpenTelemetry Collector's otlphttp exporter writes it with `encoding: json`: empty ids, bytes as base64.
GO = """{"resourceSpans":[{"resource":{"attributes":[{"key":"lagloss.pipeline","value":{"stringValue":"p"}},{"key":
"service.name","value":{"stringValue":"n"}},{"key":"host.arch","value":{}}]},"scopeSpans":[{"scope":{},"spans":[{
"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7","traceState":"rojo=00f067aa0ba902b7",
"parentSpanId":"","flags":257,"name":"orders process","kind":5,"startTimeUnixNano":"1795250400123456789",
"endTimeUnixNano":"1795250400223456789","attributes":[{"key":"messaging.operation.type","value":{"stringValue":"process"
}},{"key":"messaging.message.id","value":{"stringValue":"m-1"}},{"key":"lagloss.event_time","value":{"intValue":
"1795250400000"}},{"key":"raw","value":{"bytesValue":"AAEC"}},{"key":"x","value":{"doubleValue":"NaN"}}],"status":{}}]}],
"schemaUrl":"https://opentelemetry.io/schemas/1.26.0"}]}"""


def span_of(**changed: Any) -> dict[str, Any]:
    """The Python exporter's span, with other members; of `attributes` those of these names."""
    span: dict[str, Any] = json.loads(PYTHON)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    attributes = {pair["key"]: pair["value"] for pair in span["attributes"]} | changed.pop("attributes", {})
    pairs = [{"key": key, "value": value} for key, value in attributes.items() if value is not None]
    return span | {"attributes": pairs} | changed


def request_of(*spans: object) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(PYTHON)
    request["resourceSpans"][0]["scopeSpans"][0]["spans"] = list(spans)
    return request


def read(body: str | bytes, media_type: str = otlp.JSON) -> tuple[list[Seen], Rejected]:
    rejected = Rejected()
    request = otlp.open_request(body.encode() if isinstance(body, str) else body, media_type)
    nodes = beacons_of(request.read(), rejected)
    assert all((node.pipeline, node.node) == ("p", "n") for node in nodes)
    return [seen for node in nodes for seen in node.seen], rejected


def the_beacon(request: Any) -> Seen:
    (seen,), rejected = read(json.dumps(request))
    assert rejected.spans == 0
    return seen


SEEN = Seen("in", "m-1", EVENT_MS, START_NS / 1e6, traceparent=TRACEPARENT)


@pytest.mark.parametrize("body", [PYTHON, JAVASCRIPT, GO], ids=["python", "javascript", "go"])
def test_a_span_of_an_exporter_keeps_its_trace(body: str) -> None:
    assert read(body) == ([SEEN], Rejected())
    assert read(b"\xef\xbb\xbf" + body.encode()) == ([SEEN], Rejected())


@pytest.mark.parametrize(
    "ids",
    [
        {"traceId": "", "spanId": ""},
        {"traceId": None, "spanId": None},
        {"traceId": "S/kvNXezTaajzpKdDg5HNg==", "spanId": "APBnqgupArc="},  # what clients of protobuf's JSON sent
        {"traceId": TRACE[:-2]},
        {"spanId": SPAN + "00"},
        {"traceId": "x" * 32},
        {"traceId": "٠" * 32},
        {"traceId": 5, "spanId": [SPAN]},
    ],
)
def test_what_is_no_id_costs_the_trace_and_no_beacon(ids: dict[str, Any]) -> None:
    found = the_beacon(request_of(span_of(**ids)))
    assert found._replace(traceparent=None) == SEEN._replace(traceparent=None)
    assert found.traceparent != TRACEPARENT


@pytest.mark.parametrize(
    "changed",
    [
        {"traceId": TRACE.upper(), "spanId": SPAN.upper()},
        {"startTimeUnixNano": START_NS},
        {"startTimeUnixNano": {"low": START_NS & 0xFFFFFFFF, "high": START_NS >> 32}},
        {"startTimeUnixNano": {"low": (START_NS & 0xFFFFFFFF) - (1 << 32), "high": START_NS >> 32}},
        {"kind": "SPAN_KIND_CONSUMER"},
        {"kind": "SPAN_KIND_OF_NEXT_YEAR", "kind_of_next_year": {"a": [None]}},
        {"links": None, "events": None, "status": None, "name": None, "links_": [None]},
        {"endTimeUnixNano": "not read", "events": [7], "links": [{"traceId": 7}], "status": 5},
        {"attributes": {"lagloss.event_time": {"stringValue": str(EVENT_MS)}}},
        {"attributes": {"lagloss.event_time": {"stringValue": "2026-11-21t08:39:60z"}}},
        {"attributes": {"lagloss.event_time": {"stringValue": "2026-11-21T08:40:00-00:00"}}},
        {"attributes": {"lagloss.event_time": {"doubleValue": EVENT_MS / 1e3}}},
        {"attributes": {"lagloss.event_time": {"intValue": f"{EVENT_MS}000"}}},
        {"attributes": {"lagloss.event_time": {"int_value": EVENT_MS}}},
        {"attributes": {"messaging.operation.type": None, "messaging.operation": {"stringValue": "receive"}}},
        {"attributes": {"odd": {"intValue": "x"}, "none": {"boolValue": None}, "list": [], "of no kind": {"kind": 7}}},
    ],
)  # fmt: skip
def test_a_member_is_read_in_each_of_its_forms(changed: dict[str, Any]) -> None:
    assert the_beacon(request_of(span_of(**changed))) == SEEN


def test_names_may_be_those_of_the_proto_file() -> None:
    snake = re.sub('"([a-zA-Z]+)":', lambda key: "_".join(re.split("(?=[A-Z])", key[0])).lower(), PYTHON)
    assert "trace_id" in snake
    assert read(snake) == ([SEEN], Rejected())


@pytest.mark.parametrize("start", [0, "0", None, ""])
def test_a_span_without_a_start_was_seen_when_it_came(start: object) -> None:
    assert the_beacon(request_of(span_of(startTimeUnixNano=start))).observed_ms is None


def test_nulls_are_what_is_not_there() -> None:
    for request in ({}, {"resourceSpans": None}, {"resourceSpans": [None]}, {"resourceSpans": [{"scopeSpans": None}]}):
        assert read(json.dumps(request)) == ([], Rejected())


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (span_of(startTimeUnixNano="soon"), "startTimeUnixNano: expected a time"),
        (span_of(startTimeUnixNano=1 << 80), "startTimeUnixNano: expected a time"),
        (span_of(attributes={"lagloss.event_time": {"doubleValue": "NaN"}}), "lagloss.event_time: expected a time"),
        (span_of(attributes={"lagloss.event_time": {"boolValue": True}}), "lagloss.event_time: expected a time"),
        (span_of(attributes={"lagloss.event_time": None}), "lagloss.event_time: expected a time"),
        (span_of(attributes={"messaging.message.id": {"stringValue": "x" * 256}}), "messaging.message.id"),
        (span_of(attributes={"messaging.message.id": {"stringValue": "\ud800"}}), "messaging.message.id"),
        (7, "expected an object"),
        (None, "expected an object"),
    ],
)
def test_a_bad_span_refuses_no_other(bad: object, why: str) -> None:
    found, rejected = read(json.dumps(request_of(span_of(), bad, span_of())))
    assert (found, rejected.spans) == ([SEEN, SEEN], 1)
    assert why in rejected.first
    answer = json.loads(write_response(rejected, otlp.JSON))["partialSuccess"]
    assert answer["rejectedSpans"] == "1"


def test_a_span_that_cannot_be_decoded_refuses_no_other() -> None:
    """Protobuf's texts must be UTF-8, and its libraries refuse a whole message for one that is not."""
    request = ExportTraceServiceRequest()
    for name, value in (("lagloss.pipeline", "p"), ("service.name", "n")):
        if not request.resource_spans:
            request.resource_spans.add()
        request.resource_spans[0].resource.attributes.add(key=name).value.string_value = value
    scope = request.resource_spans[0].scope_spans.add()
    for name in ("good", "bad!", "good"):
        span = scope.spans.add(name=name, start_time_unix_nano=START_NS)
        span.trace_id, span.span_id = bytes.fromhex(TRACE), bytes.fromhex(SPAN)
        span.attributes.add(key="messaging.operation.type").value.string_value = "process"
        span.attributes.add(key="messaging.message.id").value.string_value = "m-1"
        span.attributes.add(key="lagloss.event_time").value.int_value = EVENT_MS
    body = request.SerializeToString()
    assert read(body, otlp.PROTOBUF) == ([SEEN] * 3, Rejected())
    found, rejected = read(body.replace(b"bad!", b"bad\xff"), otlp.PROTOBUF)
    assert (found, rejected.spans) == ([SEEN, SEEN], 1)
    with pytest.raises(Problem):
        read(body[:-1], otlp.PROTOBUF)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"resourceSpans": 7}', b'{"resourceSpans": [7]}', b"\xff"])
def test_what_is_no_request_is_400(body: bytes) -> None:
    with pytest.raises(Problem) as problem:
        read(body)
    assert problem.value.status == 400


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]) | st.just({}) | st.just([{}])


@given(st.dictionaries(st.sampled_from(sorted(span_of())), VALUES), VALUES)
def test_whatever_a_span_holds_the_others_are_taken(changed: dict[str, Any], value: Any) -> None:
    pairs = [{"key": "lagloss.event_time", "value": {"intValue": value}}, {"key": value, "value": value}, value]
    odd = [span_of() | changed, span_of() | {"attributes": span_of()["attributes"] + pairs}]
    found, rejected = read(json.dumps(request_of(span_of(), *odd, span_of())))
    assert found[0] == found[-1] == SEEN
    assert len(found) + rejected.spans <= 4

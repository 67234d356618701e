"""Spans as instrumentations of Kafka clients send them, and requests of them in JSON and protobuf.

Python's were captured: `wrap_produce`, `wrap_poll` and `wrap_consume` of opentelemetry-instrumentation-confluent-kafka
0.66b1, `_wrap_send` and `_wrap_next` of opentelemetry-instrumentation-kafka-python 0.66b1, and `_wrap_send`,
`_wrap_getone` and `_wrap_getmany` of opentelemetry-instrumentation-aiokafka 0.66b1, run around functions that return a
record, with the encoder of opentelemetry-exporter-otlp-proto-common 1.45.2. The others are written after the sources:

- java: `KafkaClientBaseTest` and `KafkaClientSuppressReceiveSpansTest` of opentelemetry-java-instrumentation
  (kafka-clients-0.11); with telemetry of receiving, the process span has a link instead (`KafkaClientDefaultTest`).
- dotnet: `InstrumentedProducer` and `InstrumentedConsumer` of OpenTelemetry.Instrumentation.ConfluentKafka, whose
  0.5.0-alpha.1 changed the names to those of the conventions 1.45.
- franz-go: `plugin/kotel/tracer.go`, whose conventions are those of 1.12.
- convention-1.24: the example of docs/messaging/kafka.md, where only the process span has an operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Attributes = Mapping[str, str | int]
PRODUCER, CONSUMER, CLIENT = "SPAN_KIND_PRODUCER", "SPAN_KIND_CONSUMER", "SPAN_KIND_CLIENT"


@dataclass(frozen=True)
class Instrumentation:
    """Attributes of its spans, with PARTITION and OFFSET for those of the record; `follows`: how a consumer's span
    names the producer's."""

    produced: Attributes
    consumed: Attributes
    follows: Literal["child", "link"]
    consumed_kind: str = CONSUMER
    verb: str = "process"


PARTITION, OFFSET, MESSAGE_ID = "PARTITION", "OFFSET", "MESSAGE_ID"
_CONFLUENT = {
    "messaging.system": "kafka",
    "messaging.destination": "orders",
    "messaging.destination_kind": "queue",
    "server.address": "kafka",
    "server.port": 9092,
}
_KAFKA_PYTHON = {
    "messaging.system": "kafka",
    "messaging.destination": "orders",
    "messaging.kafka.partition": PARTITION,
    "messaging.url": '["kafka:9092"]',
}
_AIOKAFKA = {
    "messaging.system": "kafka",
    "server.address": '"kafka:9092"',
    "messaging.client.id": "c",
    "messaging.destination.name": "orders",
    "messaging.destination.partition.id": "TEXT PARTITION",
}
_JAVA = {
    "messaging.system": "kafka",
    "messaging.destination.name": "orders",
    "messaging.client_id": "client-1",
    "messaging.destination.partition.id": "TEXT PARTITION",
    "messaging.kafka.message.offset": OFFSET,
    "messaging.kafka.message.key": "10",
}
_DOTNET = {"messaging.system.name": "kafka", "messaging.destination.name": "orders", "messaging.client.id": "rdkafka#1"}
_FRANZ_GO = {
    "messaging.system": "kafka",
    "messaging.destination_kind": "topic",
    "messaging.destination": "orders",
    "messaging.message_id": "TEXT OFFSET",
    "messaging.kafka.partition": PARTITION,
}
_CONVENTION = {
    "messaging.system": "kafka",
    "messaging.destination.name": "orders",
    "messaging.kafka.destination.partition": "TEXT PARTITION",
    "messaging.kafka.message.offset": "TEXT OFFSET",
    "messaging.kafka.message.key": "myKey",
}
INSTRUMENTATIONS: Final[Mapping[str, Instrumentation]] = {
    "confluent-kafka": Instrumentation(
        _CONFLUENT | {"messaging.operation": "publish"},
        _CONFLUENT
        | {
            "messaging.operation": "process",
            "messaging.kafka.partition": PARTITION,
            "messaging.message.id": MESSAGE_ID,
        },
        "link",
    ),
    "kafka-python": Instrumentation(_KAFKA_PYTHON, _KAFKA_PYTHON, "child", verb="receive"),
    "aiokafka": Instrumentation(
        _AIOKAFKA | {"messaging.operation.name": "send", "messaging.operation.type": "publish"},
        _AIOKAFKA
        | {
            "messaging.operation.type": "receive",
            "messaging.kafka.message.offset": OFFSET,
            "messaging.message.id": MESSAGE_ID,
        },
        "child",
        verb="receive",
    ),
    "java": Instrumentation(
        _JAVA | {"messaging.operation": "publish"}, _JAVA | {"messaging.operation": "process"}, "child"
    ),
    "java with receiving": Instrumentation(
        _JAVA | {"messaging.operation": "publish"}, _JAVA | {"messaging.operation": "process"}, "link"
    ),
    "dotnet": Instrumentation(
        _DOTNET | {"messaging.operation.type": "send", "messaging.operation.name": "send"},
        _DOTNET
        | {
            "messaging.operation.type": "receive",
            "messaging.operation.name": "poll",
            "messaging.destination.partition.id": "TEXT PARTITION",
            "kafka.offset": OFFSET,
        },
        "link",
        CLIENT,
        "receive",
    ),
    "franz-go": Instrumentation(
        _FRANZ_GO | {"messaging.operation": "send"},
        _FRANZ_GO | {"messaging.operation": "receive"},
        "child",
        verb="receive",
    ),
    "convention-1.24": Instrumentation(_CONVENTION, _CONVENTION | {"messaging.operation": "process"}, "child"),
}


@dataclass(frozen=True)
class TestSpan:
    """A span of a service; times in epoch ms, ids as numbers."""

    __test__ = False

    service: str
    name: str
    kind: str
    attributes: Attributes
    trace: int
    span: int
    start_ms: float
    end_ms: float
    parent: int = 0
    links: Sequence[tuple[int, int]] = ()
    failed: bool = False
    resource: Attributes = field(default_factory=dict)

    @property
    def trace_id(self) -> bytes:
        return self.trace.to_bytes(16, "big")

    @property
    def span_id(self) -> bytes:
        return self.span.to_bytes(8, "big")


def record_attributes(attributes: Attributes, partition: int, offset: int | None) -> dict[str, str | int]:
    """Return these attributes of a record; those of its offset are left out where there is none."""
    values: dict[str, str | int | None] = {
        PARTITION: partition,
        "TEXT PARTITION": str(partition),
        OFFSET: offset,
        "TEXT OFFSET": None if offset is None else str(offset),
        MESSAGE_ID: None if offset is None else f"orders.{partition}.{offset}",
    }
    filled = {name: values.get(str(value), value) for name, value in attributes.items()}
    return {name: value for name, value in filled.items() if value is not None}


def produced(
    instrumentation: Instrumentation, number: int, start_ms: float, *, offset: int | None = None, **more: Any
) -> TestSpan:
    """The span of the producer of message `number`, which takes 5 ms, in a trace of its own."""
    attributes = record_attributes(instrumentation.produced, number % 3, number if offset is None else offset)
    trace = 0xA000_0000 + number
    span = TestSpan("shop-app", "orders send", PRODUCER, attributes, trace, trace, start_ms, start_ms + 5)
    return TestSpan(**{**span.__dict__, **more})


def consumed(
    instrumentation: Instrumentation, number: int, start_ms: float, end_ms: float, *, attempt: int = 0, **more: Any
) -> TestSpan:
    """The consumer's span of message `number`, as a child of the producer's or with a link to it."""
    attributes = record_attributes(instrumentation.consumed, number % 3, number)
    trace, own = 0xA000_0000 + number, 0xC000_0000 + number + (attempt << 32)
    span = TestSpan(
        "mailer",
        f"orders {instrumentation.verb}",
        instrumentation.consumed_kind,
        attributes,
        trace,
        own,
        start_ms,
        end_ms,
    )
    if instrumentation.follows == "child":
        changed: dict[str, Any] = {"parent": trace}
    else:
        changed = {"trace": own, "parent": 0xEEEE, "links": ((trace, trace),)}
    return TestSpan(**{**span.__dict__, **changed, **more})


def http_span(number: int, start_ms: float) -> TestSpan:
    """A span of an ordinary trace."""
    attributes = {"http.request.method": "POST", "url.path": "/orders", "http.response.status_code": 201}
    return TestSpan("shop-app", "POST /orders", "SPAN_KIND_SERVER", attributes, number, number, start_ms, start_ms + 9)


def as_json(spans: Sequence[TestSpan]) -> bytes:
    """The request of these spans in JSON, as OTLP has it: ids in hex, integers as text."""
    return json.dumps({"resourceSpans": [_json_resource(span) for span in spans]}).encode()


def _json_resource(span: TestSpan) -> dict[str, Any]:
    written = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "kind": Span.SpanKind.Value(span.kind),
        "startTimeUnixNano": str(int(span.start_ms * 1_000_000)),
        "endTimeUnixNano": str(int(span.end_ms * 1_000_000)),
        "attributes": _json_pairs(span.attributes),
        "links": [
            {"traceId": trace.to_bytes(16, "big").hex(), "spanId": link.to_bytes(8, "big").hex(), "flags": 768}
            for trace, link in span.links
        ],
        "status": {"code": 2} if span.failed else {},
        **({"parentSpanId": span.parent.to_bytes(8, "big").hex()} if span.parent else {}),
    }
    resource = {"service.name": span.service, "telemetry.sdk.language": "python", **span.resource}
    return {
        "resource": {"attributes": _json_pairs(resource)},
        "scopeSpans": [{"scope": {"name": "kafka"}, "spans": [written]}],
    }


def _json_pairs(attributes: Attributes) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for name, value in attributes.items()
    ]


def as_protobuf(spans: Sequence[TestSpan]) -> bytes:
    """The same request in protobuf."""
    request = ExportTraceServiceRequest()
    for span in spans:
        resource = request.resource_spans.add()
        _fill(resource.resource.attributes, {"service.name": span.service, **span.resource})
        written = resource.scope_spans.add().spans.add(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent.to_bytes(8, "big") if span.parent else b"",
            name=span.name,
            kind=Span.SpanKind.Value(span.kind),
            start_time_unix_nano=int(span.start_ms * 1_000_000),
            end_time_unix_nano=int(span.end_ms * 1_000_000),
        )
        _fill(written.attributes, span.attributes)
        for trace, link in span.links:
            written.links.add(trace_id=trace.to_bytes(16, "big"), span_id=link.to_bytes(8, "big"))
        if span.failed:
            written.status.code = 2
    return bytes(request.SerializeToString())


def _fill(pairs: Any, attributes: Attributes) -> None:
    for name, value in attributes.items():
        pair = pairs.add(key=name)
        if isinstance(value, int):
            pair.value.int_value = value
        else:
            pair.value.string_value = value

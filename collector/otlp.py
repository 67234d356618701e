"""OpenTelemetry spans as beacons: what OTLP/HTTP sends of messaging operations.

A span is one if it has `messaging.operation.type` (or, as older instrumentation says it, `messaging.operation`). What
else it must have, and what becomes of it, is in docs/collector.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import TypeAdapter, ValidationError

from collector.batches import BeaconBatch, Seen, check
from collector.metadata_cache import KnownPipeline
from collector.models import BeaconJson, as_seen
from lagloss.wire.traces import write_traceparent
from lagloss_server.fields import Name
from lagloss_server.invalid import explain, keys_given, write_path
from lagloss_server.net.problem_details import Problem

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
OPERATION: Final = ("messaging.operation.type", "messaging.operation")
TAKEN_IN: Final = frozenset({"receive", "process", "deliver"})
SENT_OUT: Final = frozenset({"send", "publish"})
_NAME: Final = TypeAdapter(Name)
_BEACON: Final = TypeAdapter(BeaconJson)

Value = str | int | float | bool | None


@dataclass(slots=True)
class Rejected:
    """Messaging spans that make no beacon: their number, and the error of the first."""

    spans: int = 0
    first: str = ""

    def add(self, span: Span, why: str) -> None:
        self.spans += 1
        self.first = self.first or f"span {span.name!r}: {why}"


@dataclass(slots=True)
class NodeSpans:
    """The beacons of one node, with the spans that they come from."""

    pipeline: str
    node: str
    seen: list[Seen] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def checkpoints(self) -> frozenset[str]:
        return frozenset(f"{self.node}.{seen.place}" for seen in self.seen)

    def batch(self, known: KnownPipeline | None, rejected: Rejected) -> BeaconBatch | None:
        """Make a batch of the acceptable spans, if there are any; reject the others."""
        first = known is not None and self.node in known.sources
        good = []
        for seen, span in zip(self.seen, self.spans, strict=True):
            try:
                check(BeaconBatch(self.pipeline, self.node, first, (seen,)), known)
            except Problem as problem:
                rejected.add(span, str(problem))
            else:
                good.append(seen)
        return BeaconBatch(self.pipeline, self.node, first, good) if good else None


def read_request(body: bytes, media_type: str) -> ExportTraceServiceRequest:
    """Return the request in a body; raise a Problem (400) if it is malformed."""
    request = ExportTraceServiceRequest()
    try:
        if media_type == JSON:
            json_format.Parse(body, request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "Bad body", f"expected an ExportTraceServiceRequest: {error}") from None
    return request


def write_response(rejected: Rejected, media_type: str) -> bytes:
    """OTLP's answer, in the encoding of the request."""
    response = ExportTraceServiceResponse()
    if rejected.spans:
        response.partial_success.rejected_spans = rejected.spans
        response.partial_success.error_message = f"messaging spans that make no beacon; {rejected.first}"
    if media_type == JSON:
        return str(json_format.MessageToJson(response, indent=None)).encode()
    return bytes(response.SerializeToString())


def beacons_of(request: ExportTraceServiceRequest, rejected: Rejected) -> list[NodeSpans]:
    """Return the beacons of a request by pipeline and node, in the order in which they come."""
    found: dict[tuple[str, str], NodeSpans] = {}
    for resource_spans in request.resource_spans:
        resource = dict(_plain(resource_spans.resource.attributes))
        pipeline = resource.get("lagloss.pipeline")
        node = resource.get("lagloss.node") or resource.get("service.name")
        for span in (span for scope in resource_spans.scope_spans for span in scope.spans):
            attributes = dict(_plain(span.attributes))
            operation = next((attributes[name] for name in OPERATION if name in attributes), None)
            if operation not in TAKEN_IN | SENT_OUT:
                continue
            try:
                names = _NAME.validate_python(pipeline), _NAME.validate_python(node)
                seen = _seen(span, attributes, taken_in=operation in TAKEN_IN)
            except ValidationError as error:
                rejected.add(span, _why(error))
            except Problem as problem:
                rejected.add(span, str(problem))
            else:
                place = found.setdefault(names, NodeSpans(*names))
                place.seen.append(seen)
                place.spans.append(span)
    return list(found.values())


def _seen(span: Span, attributes: Mapping[str, Value], *, taken_in: bool) -> Seen:
    to = attributes.get("lagloss.to")
    observed_ns = span.start_time_unix_nano if taken_in else span.end_time_unix_nano
    beacon = {
        "checkpoint": "in" if taken_in else "out" if to is None else f"out:{to}",
        "message_id": attributes.get("messaging.message.id"),
        "event_time": attributes.get("lagloss.event_time"),
        "observed_at": observed_ns / 1e6 if observed_ns else None,
        "traceparent": write_traceparent(span.trace_id, span.span_id),
    }
    return as_seen(0, _BEACON.validate_python(beacon))


def _why(error: ValidationError) -> str:
    found = explain(error, keys_given(error))[0]
    field = write_path(found.path) if found.path else "lagloss.pipeline and lagloss.node or service.name"
    names = {"message_id": "messaging.message.id", "event_time": "lagloss.event_time", "checkpoint": "lagloss.to"}
    return f"{names.get(field, field)}: {found.problem}"


def _plain(pairs: Iterable[KeyValue]) -> Iterator[tuple[str, Value]]:
    """Attributes whose values are no lists, maps or bytes."""
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            yield pair.key, getattr(pair.value, kind)

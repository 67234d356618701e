"""OpenTelemetry spans as beacons: what OTLP/HTTP sends of messaging operations.

A span is one if it has `messaging.operation.type` (or, as older instrumentation says it, `messaging.operation`). What
else it must have, and what becomes of it, is in docs/collector.md.

OTLP's JSON is not protobuf's: ids are in hex. It is read here, as far as a beacon needs it, so that nothing else in a
span, and no other span, keeps it from being one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, TypedDict, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import TypeAdapter, ValidationError

from collector.batches import BeaconBatch, Seen, check
from collector.metadata_cache import KnownPipeline
from collector.models import BeaconJson, as_seen
from lagloss.wire.times import read_time
from lagloss.wire.traces import write_traceparent
from lagloss_server.base.fields import Name
from lagloss_server.base.invalid import explain, keys_given, write_path
from lagloss_server.net.problem_details import Problem

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
OPERATION: Final = ("messaging.operation.type", "messaging.operation")
TAKEN_IN: Final = frozenset({"receive", "process", "deliver"})
SENT_OUT: Final = frozenset({"send", "publish"})
MAX_SPANS: Final = 10_000
"""Of a request, and of the lists that hold them. OpenTelemetry's own collector sends 8,192 at a time."""
MAX_SHOWN: Final = 100
"""Characters of a span's name, and of a reason, in an answer."""
_NAME: Final = TypeAdapter(Name)
_BEACON: Final = TypeAdapter(BeaconJson)

T = TypeVar("T")
Value = str | int | float | bool | None
_PLAIN: Final[Mapping[str, type[Any]]] = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}
"""Kinds of attribute values that can be a part of a beacon."""
_LISTS: Final = ("resourceSpans", "scopeSpans", "spans")
"""The lists of an ExportTraceServiceRequest, each in the parts of the one before."""
_LIST_FIELDS: Final = (1, 2, 2)
"""Their numbers in the .proto files."""
_CAPITAL: Final = re.compile(r"(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class SentSpan:
    """What a beacon needs of a span, and the attributes of its resource.

    Attributes:
        trace_id, span_id: empty, or of any length, if there is none.
        start_ns, end_ns: as sent, a number or its text; 0 or None: unknown.
        problem: why it cannot be read; empty if it can.
    """

    resource: Mapping[str, Value]
    name: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    trace_id: bytes = b""
    span_id: bytes = b""
    start_ns: object = None
    end_ns: object = None
    problem: str = ""


@dataclass(slots=True)
class Rejected:
    """Messaging spans that make no beacon: their number, and the error of the first."""

    spans: int = 0
    first: str = ""

    def add(self, span: SentSpan, why: str) -> None:
        self.spans += 1
        self.first = self.first or f"span {span.name[:MAX_SHOWN]!r}: {why[: MAX_SHOWN * 5]}"


@dataclass(slots=True)
class NodeSpans:
    """The beacons of one node, with the spans that they come from."""

    pipeline: str
    node: str
    seen: list[Seen] = field(default_factory=list)
    spans: list[SentSpan] = field(default_factory=list)

    @property
    def checkpoints(self) -> frozenset[str]:
        return frozenset(f"{self.node}.{message.place}" for message in self.seen)

    def batch(self, known: KnownPipeline | None, rejected: Rejected) -> BeaconBatch | None:
        """Make a batch of the acceptable spans, if there are any; reject the others."""
        first = known is not None and self.node in known.sources
        good = []
        for message, span in zip(self.seen, self.spans, strict=True):
            try:
                check(BeaconBatch(self.pipeline, self.node, first, (message,)), known)
            except Problem as problem:
                rejected.add(span, str(problem))
            else:
                good.append(message)
        return BeaconBatch(self.pipeline, self.node, first, good) if good else None


@dataclass(frozen=True, slots=True)
class SpanRequest:
    """A request whose spans are counted, and not read yet.

    Attributes:
        number: of its spans, whatever they are.
        read: returns them; raises a Problem (400) if they are malformed.
    """

    number: int
    read: Callable[[], list[SentSpan]]


def open_request(body: bytes, media_type: str) -> SpanRequest:
    """Count the spans in a body, before any of them is decoded.

    Raises:
        Problem: 400 if it is malformed, 413 for more than `MAX_SPANS`.
    """
    if media_type == JSON:
        document = _well_formed(lambda: json.loads(body))
        number = _well_formed(lambda: _count(document, lambda depth, part: _members(part, _LISTS[depth])))
        return SpanRequest(number, lambda: _well_formed(lambda: list(_json_spans(document))))
    number = _well_formed(lambda: _count(body, lambda depth, part: _parts(part, _LIST_FIELDS[depth])))
    return SpanRequest(number, lambda: _well_formed(lambda: list(_protobuf_spans(body))))


def _well_formed(read: Callable[[], T]) -> T:
    try:
        return read()
    except (ValueError, TypeError, DecodeError, RecursionError) as error:
        raise Problem(400, "Bad body", f"expected an ExportTraceServiceRequest: {error}") from None


def _count(request: T, parts: Callable[[int, T], Iterable[T]]) -> int:
    """Return the number of spans in a request; `parts` returns those of a list in it, at depths 0 to 2."""
    nested: Iterator[T] = iter((request,))
    for depth in range(len(_LISTS)):
        nested = _limited(chain.from_iterable(map(partial(parts, depth), nested)))
    return sum(1 for _ in nested)


def _limited(parts: Iterable[T]) -> Iterator[T]:
    for number, part in enumerate(parts):
        if number == MAX_SPANS:
            raise Problem(413, "Too many spans", f"expected up to {MAX_SPANS} spans; send fewer per request")
        yield part


class PartialSuccess(TypedDict, total=False):
    """How many spans were rejected, as protobuf writes a 64-bit number in JSON, and why."""

    rejectedSpans: str
    errorMessage: str


class ExportResponse(TypedDict, total=False):
    """OTLP's response in JSON."""

    partialSuccess: PartialSuccess


def write_response(rejected: Rejected, media_type: str) -> bytes:
    """OTLP's answer, in the encoding of the request."""
    response = ExportTraceServiceResponse()
    if rejected.spans:
        response.partial_success.rejected_spans = rejected.spans
        response.partial_success.error_message = (
            f"some messaging spans are not valid beacons; the first: {rejected.first}"
        )
    if media_type == JSON:
        return str(json_format.MessageToJson(response, indent=None)).encode()
    return bytes(response.SerializeToString())


def beacons_of(spans: Iterable[SentSpan], rejected: Rejected) -> list[NodeSpans]:
    """Return the beacons of a request by pipeline and node, in the order in which they come."""
    nodes: dict[tuple[str, str], NodeSpans] = {}
    for span in spans:
        if span.problem:
            rejected.add(span, span.problem)
            continue
        operation = next((span.attributes[name] for name in OPERATION if name in span.attributes), None)
        if operation not in TAKEN_IN | SENT_OUT:
            continue
        pipeline = span.resource.get("lagloss.pipeline")
        node = span.resource.get("lagloss.node") or span.resource.get("service.name")
        try:
            names = _NAME.validate_python(pipeline), _NAME.validate_python(node)
            message = _seen(span, received=operation in TAKEN_IN)
        except ValidationError as error:
            rejected.add(span, _why(error))
        except (Problem, ValueError) as problem:
            rejected.add(span, str(problem))
        else:
            place = nodes.setdefault(names, NodeSpans(*names))
            place.seen.append(message)
            place.spans.append(span)
    return list(nodes.values())


def _seen(span: SentSpan, *, received: bool) -> Seen:
    attributes = span.attributes
    to = attributes.get("lagloss.to")
    beacon = {
        "checkpoint": "in" if received else "out" if to is None else f"out:{to}",
        "message_id": attributes.get("messaging.message.id"),
        "event_time": attributes.get("lagloss.event_time"),
        "traceparent": write_traceparent(span.trace_id, span.span_id),
    }
    message = as_seen(0, _BEACON.validate_python(beacon))
    name, sent_ns = ("startTimeUnixNano", span.start_ns) if received else ("endTimeUnixNano", span.end_ns)
    try:
        observed_ms = None if sent_ns in (None, "") else read_time(sent_ns, "ns")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return message._replace(observed_ms=observed_ms or None)


def _why(error: ValidationError) -> str:
    problem = next(explain(error, keys_given(error)))
    field = write_path(problem.path) if problem.path else "lagloss.pipeline, and lagloss.node or service.name"
    names = {"message_id": "messaging.message.id", "event_time": "lagloss.event_time", "checkpoint": "lagloss.to"}
    return f"{names.get(field, field)}: {problem.problem}"


# -- protobuf ---------------------------------------------------------------------------------------------------------


def _protobuf_spans(body: bytes) -> Iterator[SentSpan]:
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return _decodable_spans(body)
    return (
        _of_protobuf(span, dict(_plain(resource_spans.resource.attributes)))
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    )


def _decodable_spans(body: bytes) -> Iterator[SentSpan]:
    """Yield the spans of a request of which some cannot be decoded: one text that is not UTF-8 is enough for that."""
    for resource_spans in _parts(body, 1):
        resource: dict[str, Value] = {}
        for encoded in _parts(resource_spans, 1):
            try:
                resource |= dict(_plain(Resource.FromString(encoded).attributes))
            except DecodeError:
                continue
        for span in (span for scope_spans in _parts(resource_spans, 2) for span in _parts(scope_spans, 2)):
            try:
                yield _of_protobuf(Span.FromString(span), resource)
            except DecodeError as error:
                yield SentSpan(resource, problem=str(error))


def _parts_class() -> type[Any]:
    """Return a message class that leaves the messages in fields 1 and 2 encoded: 16 bytes for each, not some 150."""
    file = FileDescriptorProto(name="lagloss/parts.proto", package="lagloss", syntax="proto3")
    message = file.message_type.add(name="Parts")
    for number in sorted({*_LIST_FIELDS}):
        kind = FieldDescriptorProto.TYPE_BYTES
        message.field.add(name=f"in_{number}", number=number, type=kind, label=FieldDescriptorProto.LABEL_REPEATED)
    pool = DescriptorPool()
    pool.Add(file)
    parts: type[Any] = GetMessageClass(pool.FindMessageTypeByName("lagloss.Parts"))
    return parts


_Parts: Final = _parts_class()


def _parts(message: bytes, number: int) -> Iterable[bytes]:
    """Return the encoded messages in one field of an encoded message, whatever is in them."""
    parts: Iterable[bytes] = getattr(_Parts.FromString(message), f"in_{number}")
    return parts


def _of_protobuf(span: Span, resource: Mapping[str, Value]) -> SentSpan:
    return SentSpan(
        resource,
        span.name,
        dict(_plain(span.attributes)),
        span.trace_id,
        span.span_id,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )


def _plain(pairs: Iterable[KeyValue]) -> Iterator[tuple[str, Value]]:
    """Attributes whose values are no lists, maps or bytes."""
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            yield pair.key, getattr(pair.value, kind)


# -- JSON -------------------------------------------------------------------------------------------------------------


def _json_spans(document: object) -> Iterator[SentSpan]:
    for resource_spans in _members(document, "resourceSpans"):
        resource = dict(_json_attributes(_member(resource_spans, "resource")))
        for scope_spans in _members(resource_spans, "scopeSpans"):
            for span in _members(scope_spans, "spans"):
                yield _of_json(span, resource)


def _of_json(span: object, resource: Mapping[str, Value]) -> SentSpan:
    if not isinstance(span, dict):
        return SentSpan(resource, problem=f"expected an object, found {type(span).__name__}")
    return SentSpan(
        resource,
        str(_member(span, "name") or ""),
        dict(_json_attributes(span)),
        _json_id(_member(span, "traceId"), 16),
        _json_id(_member(span, "spanId"), 8),
        _json_nanos(_member(span, "startTimeUnixNano")),
        _json_nanos(_member(span, "endTimeUnixNano")),
    )


def _member(part: object, name: str) -> Any:
    """Return a member by its name in lowerCamelCase, or as the .proto has it; None where it is not there."""
    if part is None:
        return None
    if not isinstance(part, dict):
        raise TypeError(f"expected an object with {name}, found {type(part).__name__}")
    return part[name] if name in part else part.get(_CAPITAL.sub("_", name).lower())


def _members(part: object, name: str) -> list[Any]:
    members = _member(part, name)
    if not isinstance(members, list | None):
        raise TypeError(f"expected a list of {name}, found {type(members).__name__}")
    return members or []


def _json_attributes(part: object) -> Iterator[tuple[str, Value]]:
    """As `_plain`; a value that is none of its kind is left out."""
    pairs = _member(part, "attributes")
    for pair in pairs if isinstance(pairs, list) else ():
        if not isinstance(pair, dict) or not isinstance(pair.get("value"), dict):
            continue
        for name, kind in _PLAIN.items():
            value = _member(pair["value"], name)
            if isinstance(value, str | int | float):
                with suppress(ValueError, OverflowError):
                    yield str(pair.get("key")), kind(value)


def _json_id(text: object, size: int) -> bytes:
    """Return an id that is written in hex; none for another text, such as the base64 of protobuf's own JSON."""
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""
    return raw if len(raw) == size else b""


def _json_nanos(value: object) -> object:
    """Return a time as it is, or put together again: releases of JavaScript's exporter wrote its halves."""
    if isinstance(value, dict):
        high, low = value.get("high"), value.get("low")
        return high << 32 | low & 0xFFFF_FFFF if isinstance(high, int) and isinstance(low, int) else value
    return value

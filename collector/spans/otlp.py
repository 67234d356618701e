"""Requests of OTLP/HTTP: their spans, in protobuf or JSON, as far as beacons need them.

OTLP's JSON is not protobuf's: ids are in hex. It is read here, so that nothing else in a span, and no other span, keeps
one from being a beacon.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from collector.bodies import demand_few_objects
from lagloss.wire.times import read_time
from lagloss.wire.traces import CONTEXT_BYTES
from lagloss_server.net.problem_details import Problem

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
START: Final = "startTimeUnixNano"
END: Final = "endTimeUnixNano"
MAX_SPANS: Final = 10_000
"""Of a request, and of the lists that hold them. OpenTelemetry's own collector sends 8,192 at a time."""

T = TypeVar("T")
Value = str | int | float | bool | None
_PLAIN: Final[Mapping[str, type[Any]]] = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}
"""Kinds of attribute values that can be a part of a beacon."""
_KINDS: Final = dict(Span.SpanKind.items())
_ERROR: Final = (Status.STATUS_CODE_ERROR, "STATUS_CODE_ERROR")
_LISTS: Final = ("resourceSpans", "scopeSpans", "spans")
"""The lists of an ExportTraceServiceRequest, each in the parts of the one before."""
_LIST_FIELDS: Final = (1, 2, 2)
"""Their numbers in the .proto files."""
_CAPITAL: Final = re.compile(r"(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class SentSpan:
    """What a beacon needs of a span, and the attributes of its resource.

    Attributes:
        trace_id, span_id, parent_id: empty, or of any length, if the span has none.
        start_ns, end_ns: as sent, a number or its text; 0 or None: unknown.
        kind: OTLP's number, 0 if the span has none.
        links: contexts of other spans, 24 bytes each.
        failed: whether its status is an error.
        problem: why it cannot be read; empty if it can.
    """

    resource: Mapping[str, Value]
    name: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    trace_id: bytes = b""
    span_id: bytes = b""
    start_ns: object = None
    end_ns: object = None
    parent_id: bytes = b""
    kind: int = 0
    links: tuple[bytes, ...] = ()
    failed: bool = False
    problem: str = ""

    def first(self, names: Iterable[str]) -> Value:
        """Return the first of these attributes that the span has; None if it has none of them."""
        return next((self.attributes[name] for name in names if name in self.attributes), None)

    def time_ms(self, name: str) -> float | None:
        """Return `startTimeUnixNano` or `endTimeUnixNano` in epoch ms; None if it is unknown.

        Raises:
            ValueError: it is not a time.
        """
        sent_ns = self.start_ns if name == START else self.end_ns
        try:
            return (None if sent_ns in (None, "") else read_time(sent_ns, "ns")) or None
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class SpanRequest:
    """A request whose spans are counted, and not read yet; `number`: of its spans, whatever they are, or one more than
    `MAX_SPANS` if they, or the lists that hold them, are too many."""

    number: int
    spans: Callable[[], Iterator[SentSpan]]

    def read(self) -> list[SentSpan]:
        """Return the spans.

        Raises:
            Problem: 413 for more than `MAX_SPANS`, 400 if they are malformed.
        """
        if self.number > MAX_SPANS:
            raise Problem(413, "Too many spans", f"expected up to {MAX_SPANS} spans; send fewer per request")
        return _well_formed(lambda: list(self.spans()))


def open_request(body: bytes, media_type: str) -> SpanRequest:
    """Count the spans in a body, before any of them is decoded.

    Raises:
        Problem: 400 if it is malformed, 413 for JSON of too many objects.
    """
    if media_type == JSON:
        demand_few_objects(body)
        document = _well_formed(lambda: json.loads(body))
        number = _well_formed(lambda: _count(document, lambda depth, part: _members(part, _LISTS[depth])))
        return SpanRequest(number, lambda: _json_spans(document))
    number = _well_formed(lambda: _count(body, lambda depth, part: _parts(part, _LIST_FIELDS[depth])))
    return SpanRequest(number, lambda: _protobuf_spans(body))


def _well_formed(read: Callable[[], T]) -> T:
    try:
        return read()
    except (ValueError, TypeError, DecodeError, RecursionError) as error:
        raise Problem(400, "Bad body", f"expected an ExportTraceServiceRequest: {error}") from None


def _count(request: T, parts: Callable[[int, T], Iterable[T]]) -> int:
    """Return `SpanRequest.number`; `parts` returns those of a list in a request, at depths 0 to 2."""
    nested = [request]
    for depth in range(len(_LISTS)):
        nested = list(islice(chain.from_iterable(map(partial(parts, depth), nested)), MAX_SPANS + 1))
        if len(nested) > MAX_SPANS:
            break
    return len(nested)


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
        span.parent_span_id,
        span.kind,
        tuple(context for link in span.links if len(context := link.trace_id + link.span_id) == CONTEXT_BYTES),
        span.status.code == Status.STATUS_CODE_ERROR,
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
        _json_nanos(_member(span, START)),
        _json_nanos(_member(span, END)),
        _json_id(_member(span, "parentSpanId"), 8),
        _json_kind(_member(span, "kind")),
        tuple(_json_links(_member(span, "links"))),
        _json_failed(_member(span, "status")),
    )


def _json_kind(kind: object) -> int:
    """Return a kind, which is its number or its name; 0 for another value."""
    known = _KINDS.get(kind, 0) if isinstance(kind, str) else kind
    return known if isinstance(known, int) and known in _KINDS.values() else 0


def _json_links(links: object) -> Iterator[bytes]:
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict):
            trace_id, span_id = _json_id(_member(link, "traceId"), 16), _json_id(_member(link, "spanId"), 8)
            if trace_id and span_id:
                yield trace_id + span_id


def _json_failed(status: object) -> bool:
    return isinstance(status, dict) and _member(status, "code") in _ERROR


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

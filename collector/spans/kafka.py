"""Spans of Kafka clients by the messaging conventions, which have no message id: what each says of which message.

A producing span begins a message. A consumer's names it by its record, or follows the span that produced it: by a link,
or as its child.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.spans.answer import INVALID, UnusableSpan
from collector.spans.conventions import (
    MESSAGE_COUNT,
    MESSAGE_ID,
    OFFSET,
    OPERATION,
    PARTITION,
    PROCESSED,
    RECEIVED,
    SENT_OUT,
    SYSTEM,
    TOPIC,
)
from collector.spans.otlp import END, START, SentSpan, Value
from lagloss.wire.format import MAX_ID_BYTES
from lagloss.wire.traces import CONTEXT_BYTES

KAFKA: Final = "kafka"
NO_SERVICE: Final = "without service.name"
NO_TOPIC: Final = "without messaging.destination.name"
NO_MESSAGE: Final = "without an offset, a link or a parent"
NO_TIME: Final = "without a start"
TOO_LONG: Final = "of a topic over 249 characters, or a service over 255"
TOO_MANY_LINKS: Final = "with more than 1,000 links"
MAX_TOPIC: Final = 249
"""Characters, as in Kafka. Topics and services that no definition names are remembered."""
MAX_SERVICE: Final = 255
MAX_LINKS: Final = 1_000
"""Of a span; SDKs of OpenTelemetry keep 128 by default."""
MAX_ORIGINS: Final = 8
"""By which a message is looked for. Its record is always one of them; a span of one message has a link, or a parent."""
MAX_NUMBER: Final = (1 << 63) - 1
MAX_DIGITS: Final = 20

Role = Literal["produce", "receive", "process"]
Origin = bytes | str
"""What a message is found by: the context of the span that produced it (24 bytes), or its record."""


@dataclass(frozen=True, slots=True)
class KafkaSpan:
    """What a span says of messages of a topic, without the rest of it: it may have to wait in memory.

    Attributes:
        record: `TOPIC/PARTITION/OFFSET`; None if the span does not have all of them.
        context: ids of its trace and of itself, 24 bytes; empty if it has none.
        messages: of a consumer, the messages that it is about, each by whatever it may be found by, the surest first.
        started_ms, ended_ms: epoch ms.
        failed: whether what was done ended in an error.
        is_poll: whether it received several messages at once. Spans of each of them mostly follow, and its links may
            lead to those.
    """

    role: Role
    service: str
    topic: str
    record: str | None
    context: bytes
    messages: tuple[tuple[Origin, ...], ...]
    started_ms: float
    ended_ms: float
    failed: bool = False
    is_poll: bool = False


def is_kafka(span: SentSpan) -> bool:
    """Return whether a Kafka client made a span, whose pipeline is to be found by its service and topic."""
    return span.first(SYSTEM) == KAFKA and "lagloss.pipeline" not in span.resource


def is_of_another_system(span: SentSpan) -> bool:
    """Return whether a span is of another broker, and names no pipeline: of an ordinary trace."""
    return span.first(SYSTEM) not in (None, KAFKA) and "lagloss.pipeline" not in span.resource


def read_kafka_span(span: SentSpan) -> KafkaSpan | None:
    """Return what a Kafka client's span says; None if it is of no message: a commit, or a poll of several topics.

    Raises:
        UnusableSpan: it lacks what a message is known by.
    """
    role = _role(span)
    if role is None:
        return None
    is_batch, topic = MESSAGE_COUNT in span.attributes, span.first(TOPIC)
    if not isinstance(topic, str) or not topic:
        if is_batch:
            return None
        raise UnusableSpan(NO_TOPIC)
    service = span.resource.get("service.name")
    if not isinstance(service, str) or not service:
        raise UnusableSpan(NO_SERVICE)
    if len(topic) > MAX_TOPIC or len(service) > MAX_SERVICE:
        raise UnusableSpan(TOO_LONG)
    record = _record(span, topic)
    context = span.trace_id + span.span_id
    context = context if len(context) == CONTEXT_BYTES and any(context) else b""
    messages = () if role == "produce" else _messages(span, record, is_batch=is_batch)
    if not messages and not (role == "produce" and (context or record)):
        if is_batch:
            return None
        raise UnusableSpan(NO_MESSAGE)
    try:
        started_ms, ended_ms = span.time_ms(START), span.time_ms(END)
    except ValueError as error:
        raise UnusableSpan(INVALID, str(error)) from None
    if started_ms is None:
        raise UnusableSpan(NO_TIME)
    ended_ms = ended_ms or started_ms
    return KafkaSpan(
        role,
        service,
        topic,
        record,
        context,
        messages,
        started_ms,
        ended_ms,
        failed=span.failed,
        is_poll=is_batch and role == "receive",
    )


def _role(span: SentSpan) -> Role | None:
    """Return what was done, by the operation, or where instrumentation leaves it out, by the kind of the span."""
    operation = span.first(OPERATION)
    if operation in SENT_OUT:
        return "produce"
    if operation in PROCESSED:
        return "process"
    if operation in RECEIVED:
        return "receive"
    if operation is not None:
        return None
    if span.kind == Span.SPAN_KIND_PRODUCER:
        return "produce"
    if span.kind == Span.SPAN_KIND_CONSUMER:
        return "process" if "process" in span.name.split() else "receive"
    return None


def _record(span: SentSpan, topic: str) -> str | None:
    partition, offset = _number(span.first(PARTITION)), _number(span.first(OFFSET))
    message_id = span.first(MESSAGE_ID)
    if offset is None and partition is not None and isinstance(message_id, str):
        offset = _number(message_id.removeprefix(f"{topic}.{partition}."))
    if partition is None or offset is None:
        return None
    record = f"{topic}/{partition}/{offset}"
    return record if len(record.encode(errors="replace")) <= MAX_ID_BYTES else None


def _number(value: Value) -> int | None:
    """Return a partition or an offset, which are numbers or their digits; None for any other value."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < MAX_DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        return None
    return value


def _messages(span: SentSpan, record: str | None, *, is_batch: bool) -> tuple[tuple[Origin, ...], ...]:
    if len(span.links) > MAX_LINKS:
        raise UnusableSpan(TOO_MANY_LINKS)
    links = tuple(dict.fromkeys(span.links))
    if record is None and (is_batch or len(links) > 1):
        return tuple((link,) for link in links)
    parent = span.trace_id + span.parent_id
    parents = (parent,) if len(parent) == CONTEXT_BYTES and any(span.parent_id) else ()
    origins: tuple[Origin, ...] = (*(*links, *parents)[: MAX_ORIGINS - 1], *([record] if record else []))
    return (origins,) if origins else ()

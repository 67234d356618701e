"""The collector's way from a request of spans to beacons, without its server: parsing, conventions, pairing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collector.metadata_cache import KnownPipeline, by_span_source
from collector.spans.kafka import KafkaSpan, is_kafka, read_kafka_span
from collector.spans.otlp import JSON, PROTOBUF, open_request
from collector.spans.pairing import Paired, Pairing
from lagloss_server.model.definition import Definition, parse_definition
from tests.support.kafka_spans import TestSpan, as_json, as_protobuf

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n"
SHOP = "{name: shop, to: [mailer], spans: {out: {service: shop-app, topic: orders, id: record}}}"
MAILER = "{name: mailer, spans: {in: {service: mailer, topic: orders}}}"
MAILER_RECEIVES = "{name: mailer, spans: {in: {service: mailer, topic: orders, delivered: receive}}}"


class SpanBeacon(NamedTuple):
    """A beacon of a span: where, of which message, and when."""

    checkpoint: str
    id: str
    event_ms: float
    observed_ms: float | None


def text_of(*nodes: str) -> str:
    return HEAD + "\n".join(f"  - {node}" for node in nodes)


def definition_of(*nodes: str) -> Definition:
    return parse_definition(text_of(*nodes))


def parsed(spans: Sequence[TestSpan], media_type: str = JSON) -> list[KafkaSpan]:
    """What the collector reads of these spans, in either encoding; of Kafka's, and of those that name a message."""
    body = as_json(spans) if media_type == JSON else as_protobuf(spans)
    assert media_type in (JSON, PROTOBUF)
    read = [read_kafka_span(span) for span in open_request(body, media_type).read() if is_kafka(span)]
    return [span for span in read if span is not None]


class Pairs:
    """The spans of a pipeline, paired."""

    def __init__(self, *nodes: str, pairing: Pairing | None = None) -> None:
        definition = definition_of(*(nodes or (SHOP, MAILER)))
        none: frozenset[str] = frozenset()
        known = KnownPipeline("orders", 1, none, none, none, 1, span_points=definition.span_points)
        self.points = by_span_source([known])
        self.pairing = pairing or Pairing()

    def paired(self, *spans: TestSpan, media_type: str = JSON) -> list[Paired]:
        return [
            pair
            for span in parsed(spans, media_type)
            for pipeline, point in self.points.get((span.service, span.topic, span.role == "produce"), ())
            for pair in self.pairing.take(pipeline.name, point, span)
        ]

    def beacons(self, *spans: TestSpan, media_type: str = JSON) -> list[SpanBeacon]:
        return beacons_in(self.paired(*spans, media_type=media_type))


def beacons_in(paired: Sequence[Paired]) -> list[SpanBeacon]:
    return [
        SpanBeacon(f"{pair.node}.{seen.place}", seen.message_id, seen.event_ms, seen.observed_ms)
        for pair in paired
        for seen in pair.seen
    ]

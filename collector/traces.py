"""POST /v1/traces: spans that the collector makes into beacons."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import FastAPI, Request, Response

from collector.access import Caller
from collector.batches import BeaconBatch
from collector.bodies import MAX_BATCH_BYTES
from collector.fairness import ITEM_BYTES
from collector.metadata_cache import KnownPipeline, SpanSource
from collector.services import BINARY, CollectorServices, media_type, same_request
from collector.spans import otlp
from collector.spans.answer import ExportResponse, Rejected, UnusableSpan, write_response
from collector.spans.kafka import KafkaSpan, is_kafka, is_of_another_system, read_kafka_span
from collector.spans.named import NodeSpans, beacons_of
from collector.spans.pairing import OUT_OF_RANGE, Paired
from lagloss.sdk.packing import AHEAD_S
from lagloss_server.model.spans import SpanPoint
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import json_content

NO_DEFINITION: Final = "of a service and topic that no definition names"
NO_RIGHT: Final = "of a pipeline that needs another token"

Points = Mapping[SpanSource, Sequence[tuple[KnownPipeline, SpanPoint]]]


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the route, on these services."""
    intake = SpanIntake(services)
    requests = {otlp.PROTOBUF: {"schema": BINARY}, otlp.JSON: {"schema": {"type": "object"}}}
    exported = {otlp.PROTOBUF: {"schema": BINARY}, **json_content(ExportResponse)}

    @app.post(
        "/v1/traces",
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503) | {200: {"content": exported}},
        openapi_extra={"requestBody": {"content": requests}},  # of no bytes is a request of no spans
    )
    async def post_traces(request: Request) -> Response:
        """Accept messaging spans (OTLP/HTTP) as beacons. Unusable spans are reported in `partial_success`."""
        return await services.answered("traces", request, intake.post_spans)


@dataclass(slots=True)
class _SortedSpans:
    """The spans of a request, by what they are used as; those of other things are left out."""

    nodes: list[NodeSpans] = field(default_factory=list)
    kafka: list[tuple[otlp.SentSpan, KafkaSpan]] = field(default_factory=list)
    rejected: Rejected = field(default_factory=Rejected)

    @property
    def number(self) -> int:
        return len(self.kafka) + sum(len(node.spans) for node in self.nodes) + self.rejected.spans


class SpanIntake:
    """Handles requests of spans."""

    def __init__(self, services: CollectorServices) -> None:
        self._services = services

    async def post_spans(self, request: Request) -> Response:
        services = self._services
        caller = await services.access.caller(request)
        kind = media_type(request, otlp.PROTOBUF, otlp.JSON)
        key = request.headers.get("idempotency-key")
        async with services.body(request, caller, MAX_BATCH_BYTES) as body:
            sent = await services.work(caller, body, lambda: otlp.open_request(body, kind))

            async def put() -> Response:
                rejected = await self._put(caller, body, sent)
                return Response(write_response(rejected, kind), media_type=kind)

            return await services.repeats.answer(caller.scope, key, same_request(request, kind, body), put)

    async def _put(self, caller: Caller, body: bytes, sent: otlp.SpanRequest) -> Rejected:
        services, size = self._services, sent.number * ITEM_BYTES
        await services.access.spend(caller, sent.number)
        read = await services.work(caller, body, lambda: _sorted(sent.read()), size)
        rejected, ignored = read.rejected, sent.number - read.number
        messages = sum(max(1, len(span.messages)) for _, span in read.kafka)
        if messages > len(read.kafka):
            await services.access.spend(caller, messages, paid=len(read.kafka))
        pipelines = await self._known(caller, read.nodes)
        points = await services.access.span_points(caller, {_source(span) for _, span in read.kafka})
        batches = await services.work(caller, body, lambda: _batches(read.nodes, pipelines, rejected), size)
        for batch in batches:
            await services.emit(batch)
        paired = await services.work(caller, body, lambda: list(self._pair(read, points)), size)
        await self._put_paired(paired)
        services.metrics.count_spans(
            used=sent.number - ignored - rejected.spans,
            ignored=ignored,
            rejected=rejected.spans,
            unpaired=services.pairing.take_unpaired(),
        )
        return rejected

    async def _known(self, caller: Caller, nodes: list[NodeSpans]) -> dict[str, KnownPipeline | None]:
        """Return the pipelines of these nodes; nothing is put before all of them are known to be the caller's."""
        checkpoints: dict[str, set[str]] = {}
        for node in nodes:
            checkpoints.setdefault(node.pipeline, set()).update(node.checkpoints)
        # One lookup for each pipeline: one for each node would be a look into the database for each unknown name.
        return {name: await self._services.access.pipeline(caller, name, those) for name, those in checkpoints.items()}

    def _pair(self, read: _SortedSpans, points: Points) -> Iterator[Paired]:
        """Yield the beacons of Kafka clients' spans; reject those that no definition of the caller's names."""
        for sent, span in read.kafka:
            usable = points.get(_source(span))
            if usable:
                try:
                    yield from self._take(span, usable)
                except UnusableSpan as unusable:
                    read.rejected.add(sent, str(unusable), unusable.reason)
            else:
                reason = NO_DEFINITION if usable is None else NO_RIGHT
                does = "produces to" if span.role == "produce" else "consumes"
                read.rejected.add(sent, f"{reason}: {span.service} {does} {span.topic}", reason)

    def _take(self, span: KafkaSpan, points: Sequence[tuple[KnownPipeline, SpanPoint]]) -> Iterator[Paired]:
        if max(span.started_ms, span.ended_ms) > time.time() * 1000 + AHEAD_S * 1000:
            raise UnusableSpan(OUT_OF_RANGE)
        for pipeline, point in points:
            yield from self._services.pairing.take(pipeline.name, point, span)

    async def _put_paired(self, paired: Sequence[Paired]) -> None:
        """Put beacons by node; of those that do not arrive, none counts as taken."""
        nodes: dict[tuple[str, str], list[Paired]] = {}
        for beacons in paired:
            nodes.setdefault((beacons.pipeline, beacons.node), []).append(beacons)
        left = dict(nodes)
        try:
            for key, beacons_of_node in nodes.items():
                seen = [message for beacons in beacons_of_node for message in beacons.seen]
                await self._services.emit(BeaconBatch(*key, beacons_of_node[0].point.begins, seen))
                del left[key]
        finally:
            self._services.pairing.undo(beacons for those in left.values() for beacons in those)


def _source(span: KafkaSpan) -> SpanSource:
    return span.service, span.topic, span.role == "produce"


def _sorted(spans: Iterable[otlp.SentSpan]) -> _SortedSpans:
    """Sort spans by what they are used as."""
    named, read = [], _SortedSpans()
    for span in spans:
        if not is_kafka(span):
            if not is_of_another_system(span):
                named.append(span)
            continue
        try:
            kafka = read_kafka_span(span)
        except UnusableSpan as unusable:
            read.rejected.add(span, str(unusable), unusable.reason)
        else:
            if kafka is not None:
                read.kafka.append((span, kafka))
    read.nodes = beacons_of(named, read.rejected)
    return read


def _batches(nodes: list[NodeSpans], known: dict[str, KnownPipeline | None], rejected: Rejected) -> list[BeaconBatch]:
    """Turn the acceptable spans into batches."""
    batches = (node.batch(known[node.pipeline], rejected) for node in nodes)
    return [batch for batch in batches if batch is not None]

"""POST /v1/beacons and /v1/traces: beacons that the collector makes into blocks."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI, Request, Response

from collector import cloud_events
from collector import otlp as spans
from collector.access import Caller
from collector.batches import BeaconBatch, check, pack, tallied
from collector.bodies import MAX_BATCH_BYTES
from collector.log_writer import RecordToWrite
from collector.models import BATCH, Accepted, as_batch, read_batch
from collector.services import BINARY, JSON, CollectorServices, body_document, json_answer, media_type
from lagloss.broker.topics import BEACONS
from lagloss.wire.format import tally_record
from lagloss_server.net.problem_details import Problem, documented


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the routes, on these services."""
    beacons = Beacons(services)
    otlp = {spans.PROTOBUF: {"schema": BINARY}, spans.JSON: {"schema": {"type": "object"}}}

    @app.post(
        "/v1/beacons",
        status_code=202,
        response_model=Accepted,
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503),
        openapi_extra=body_document(_bodies()),
    )
    async def post_beacons(request: Request) -> Response:
        """Accept a batch, all of it or nothing; 202 once the broker has acknowledged every beacon of it."""
        return await services.answered("beacons", request, beacons.post_batch)

    @app.post(
        "/v1/traces",
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503) | {200: {"content": otlp}},
        openapi_extra={"requestBody": {"content": otlp}},  # of no bytes is a request of no spans
    )
    async def post_traces(request: Request) -> Response:
        """Take messaging spans (OTLP/HTTP) as beacons. Unusable ones are reported in `partial_success`."""
        return await services.answered("traces", request, beacons.post_spans)


class Beacons:
    """Handles batches, whatever they come as."""

    def __init__(self, services: CollectorServices) -> None:
        self._services = services

    async def post_batch(self, request: Request) -> Response:
        services = self._services
        caller = await services.access.caller(request)
        kind = media_type(request, JSON, cloud_events.SINGLE, cloud_events.BATCHED)
        key = request.headers.get("idempotency-key")
        async with services.bodies.read(request, MAX_BATCH_BYTES, caller.tenant) as body:
            if kind == JSON:
                raw = read_batch(body)
            else:
                raw, events_key = cloud_events.read_events(body, kind)
                key = key or events_key

            async def put() -> Response:
                checkpoints = {f"{raw['node']}.{beacon['checkpoint']}" for beacon in raw["beacons"]}
                known = await services.access.pipeline(caller, raw["pipeline"], checkpoints)
                try:
                    batch = as_batch(raw, known)
                    check(batch, known)
                except Problem as problem:
                    raise problem if kind == JSON else cloud_events.renamed(problem) from None
                await services.access.spend(caller, len(batch.seen))
                return json_answer(await self._put(batch), 202)

            return await services.repeats.answer(caller.scope, key, _same(request, kind, body), put)

    async def post_spans(self, request: Request) -> Response:
        services = self._services
        caller = await services.access.caller(request)
        kind = media_type(request, spans.PROTOBUF, spans.JSON)
        key = request.headers.get("idempotency-key")
        async with services.bodies.read(request, MAX_BATCH_BYTES, caller.tenant) as body:
            traces = spans.read_request(body, kind)

            async def put() -> Response:
                rejected = spans.Rejected()
                for batch in await self._batches(caller, spans.beacons_of(traces, rejected), rejected):
                    await self._put(batch)
                return Response(spans.write_response(rejected, kind), media_type=kind)

            return await services.repeats.answer(caller.scope, key, _same(request, kind, body), put)

    async def _batches(
        self, caller: Caller, found: list[spans.NodeSpans], rejected: spans.Rejected
    ) -> list[BeaconBatch]:
        """Turn the acceptable spans into batches; nothing is put before all pipelines are known to be the caller's."""
        access = self._services.access
        known = [await access.pipeline(caller, place.pipeline, place.checkpoints) for place in found]
        batches = [place.batch(each, rejected) for place, each in zip(found, known, strict=True)]
        good = [batch for batch in batches if batch is not None]
        await self._services.access.spend(caller, sum(len(batch.seen) for batch in good))
        return good

    async def _put(self, batch: BeaconBatch) -> dict[str, Any]:
        services, started = self._services, time.perf_counter()
        answer: dict[str, Any] = {"accepted": len(batch.seen)}
        if batch.numbered is None:
            await services.emitters.put(batch)
        else:
            blocks = pack(batch, services.partitions())
            records = [RecordToWrite(BEACONS, block.key, block.value, block.partition) for block in blocks]
            positions = await services.writer.put(batch.pipeline, records)
            answer["tallies"] = [tally_record(tally) for tally in tallied(batch.node, blocks, positions)]
        services.metrics.acknowledgement.observe(time.perf_counter() - started)
        services.metrics.beacons.inc(len(batch.seen))
        return answer


def _same(request: Request, kind: str, body: bytes) -> bytes:
    """Return what makes a request the same as another."""
    return b"\0".join((request.url.path.encode(), kind.encode(), body))


def _bodies() -> dict[str, Any]:
    event = {"type": "object", "required": ["specversion", "id", "source", "type", "subject", "eventtime"]}
    schema = BATCH.json_schema()
    return {
        JSON: schema,
        cloud_events.SINGLE: event,
        cloud_events.BATCHED: {"type": "array", "items": event, "minItems": 1},
    }

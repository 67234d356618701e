"""POST /v1/beacons and /v1/traces: beacons that the collector makes into blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response

from collector import cloud_events
from collector import otlp as spans
from collector.access import Caller
from collector.batches import BeaconBatch, check, pack, tallied
from collector.bodies import MAX_BATCH_BYTES
from collector.fairness import ITEM_BYTES
from collector.log_writer import LogPosition, RecordToWrite
from collector.metadata_cache import KnownPipeline
from collector.models import BATCH, Accepted, BatchJson, as_batch, read_batch
from collector.services import BINARY, CollectorServices, body_document, media_type
from lagloss.broker.topics import BEACONS
from lagloss.sdk.packing import PackedBlock
from lagloss.wire.format import TallyRecord, tally_record
from lagloss_server.net.problem_details import Problem, documented
from lagloss_server.net.responses import JSON, Json, json_content


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the routes, on these services."""
    beacons = Beacons(services)
    otlp = {spans.PROTOBUF: {"schema": BINARY}, spans.JSON: {"schema": {"type": "object"}}}
    exported = {spans.PROTOBUF: {"schema": BINARY}, **json_content(spans.ExportResponse)}

    @app.post(
        "/v1/beacons",
        status_code=202,
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503),
        openapi_extra=body_document(_bodies()),
    )
    async def post_beacons(request: Request) -> Json[Accepted]:
        """Accept all beacons of a batch or none; 202 once the broker has acknowledged every one."""
        return await services.answered("beacons", request, beacons.post_batch)

    @app.post(
        "/v1/traces",
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503) | {200: {"content": exported}},
        openapi_extra={"requestBody": {"content": otlp}},  # of no bytes is a request of no spans
    )
    async def post_traces(request: Request) -> Response:
        """Accept messaging spans (OTLP/HTTP) as beacons. Unusable spans are reported in `partial_success`."""
        return await services.answered("traces", request, beacons.post_spans)


class Beacons:
    """Handles batches, whatever they come as."""

    def __init__(self, services: CollectorServices) -> None:
        self._services = services

    async def post_batch(self, request: Request) -> Json[Accepted]:
        services = self._services
        caller = await services.access.caller(request)
        kind = media_type(request, JSON, cloud_events.SINGLE, cloud_events.BATCHED)
        async with services.body(request, caller, MAX_BATCH_BYTES) as body:
            raw, events_key = await services.work(caller, body, lambda: _read(body, kind))
            # answers to numbered batches are exact without being kept, and large
            key = None if "seq" in raw else request.headers.get("idempotency-key") or events_key

            async def put() -> Json[Accepted]:
                places = {beacon["checkpoint"] for beacon in raw["beacons"]}
                checkpoints = {f"{raw['node']}.{place}" for place in places}
                pipeline = await services.access.pipeline(caller, raw["pipeline"], checkpoints)
                await services.access.spend(caller, len(raw["beacons"]))
                batch = await services.work(caller, body, lambda: _checked(raw, pipeline, kind))
                return await self._put(caller, batch, body)

            return await services.repeats.answer(caller.scope, key, _same(request, kind, body), put)

    async def post_spans(self, request: Request) -> Response:
        services = self._services
        caller = await services.access.caller(request)
        kind = media_type(request, spans.PROTOBUF, spans.JSON)
        key = request.headers.get("idempotency-key")
        async with services.body(request, caller, MAX_BATCH_BYTES) as body:
            sent = await services.work(caller, body, lambda: spans.open_request(body, kind))

            async def put() -> Response:
                await services.access.spend(caller, sent.number)
                rejected, size = spans.Rejected(), sent.number * ITEM_BYTES
                nodes = await services.work(caller, body, lambda: spans.beacons_of(sent.read(), rejected), size)
                pipelines = await self._known(caller, nodes)
                batches = await services.work(caller, body, lambda: _batches(nodes, pipelines, rejected), size)
                for batch in batches:
                    await self._put(caller, batch, body)
                return Response(spans.write_response(rejected, kind), media_type=kind)

            return await services.repeats.answer(caller.scope, key, _same(request, kind, body), put)

    async def _known(self, caller: Caller, nodes: list[spans.NodeSpans]) -> dict[str, KnownPipeline | None]:
        """Return the pipelines of these nodes; nothing is put before all of them are known to be the caller's."""
        checkpoints: dict[str, set[str]] = {}
        for node in nodes:
            checkpoints.setdefault(node.pipeline, set()).update(node.checkpoints)
        # One lookup for each pipeline: one for each node would be a look into the database for each unknown name.
        return {name: await self._services.access.pipeline(caller, name, those) for name, those in checkpoints.items()}

    async def _put(self, caller: Caller, batch: BeaconBatch, body: bytes) -> Json[Accepted]:
        services, started = self._services, time.perf_counter()
        if batch.numbered is None:
            await services.emitters.put(batch)
            response = Json(Accepted(len(batch.seen)), 202)
        else:
            partitions = services.partitions()
            blocks = await services.work(caller, body, lambda: pack(batch, partitions))
            records = [RecordToWrite(BEACONS, block.key, block.value, block.partition) for block in blocks]
            positions = await services.writer.put(batch.pipeline, records)
            response = await services.work(
                caller, body, lambda: Json(Accepted(len(batch.seen), _tallies(batch, blocks, positions)), 202)
            )
        services.metrics.acknowledgement.observe(time.perf_counter() - started)
        services.metrics.beacons.inc(len(batch.seen))
        return response


def _read(body: bytes, kind: str) -> tuple[BatchJson, str | None]:
    """Return the batch in a body, and of CloudEvents their key."""
    return (read_batch(body), None) if kind == JSON else cloud_events.read_events(body, kind)


def _checked(raw: BatchJson, known: KnownPipeline | None, kind: str) -> BeaconBatch:
    """Return the batch, if all of it can be taken; raise a Problem (422) if not."""
    try:
        batch = as_batch(raw, known)
        check(batch, known)
    except Problem as problem:
        raise problem if kind == JSON else cloud_events.renamed(problem) from None
    return batch


def _batches(
    nodes: list[spans.NodeSpans], known: dict[str, KnownPipeline | None], rejected: spans.Rejected
) -> list[BeaconBatch]:
    """Turn the acceptable spans into batches."""
    batches = (node.batch(known[node.pipeline], rejected) for node in nodes)
    return [batch for batch in batches if batch is not None]


def _tallies(batch: BeaconBatch, blocks: Sequence[PackedBlock], positions: Sequence[LogPosition]) -> list[TallyRecord]:
    """Return what a numbered batch adds to the tallies of its emitter."""
    return [tally_record(tally) for tally in tallied(batch.node, blocks, positions)]


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

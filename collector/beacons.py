"""POST /v1/beacons: beacons that the collector makes into blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request

from collector import cloud_events
from collector.access import Caller
from collector.batches import BeaconBatch, check, pack, tallied
from collector.bodies import MAX_BATCH_BYTES
from collector.log_writer import LogPosition, RecordToWrite
from collector.metadata_cache import KnownPipeline
from collector.models import BATCH, Accepted, BatchJson, as_batch, read_batch
from collector.services import CollectorServices, body_document, media_type, same_request
from lagloss.broker.topics import BEACONS
from lagloss.sdk.packing import PackedBlock
from lagloss.wire.format import TallyRecord, tally_record
from lagloss_server.net.problem_details import Problem, documented
from lagloss_server.net.responses import JSON, Json


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the routes, on these services."""
    beacons = Beacons(services)

    @app.post(
        "/v1/beacons",
        status_code=202,
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503),
        openapi_extra=body_document(_bodies()),
    )
    async def post_beacons(request: Request) -> Json[Accepted]:
        """Accept all beacons of a batch or none; 202 once the broker has acknowledged every one."""
        return await services.answered("beacons", request, beacons.post_batch)


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

            return await services.repeats.answer(caller.scope, key, same_request(request, kind, body), put)

    async def _put(self, caller: Caller, batch: BeaconBatch, body: bytes) -> Json[Accepted]:
        services = self._services
        if batch.numbered is None:
            await services.emit(batch)
            return Json(Accepted(len(batch.seen)), 202)
        partitions, started = services.partitions(), time.perf_counter()
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


def _tallies(batch: BeaconBatch, blocks: Sequence[PackedBlock], positions: Sequence[LogPosition]) -> list[TallyRecord]:
    """Return what a numbered batch adds to the tallies of its emitter."""
    return [tally_record(tally) for tally in tallied(batch.node, blocks, positions)]


def _bodies() -> dict[str, Any]:
    event = {"type": "object", "required": ["specversion", "id", "source", "type", "subject", "eventtime"]}
    schema = BATCH.json_schema()
    return {
        JSON: schema,
        cloud_events.SINGLE: event,
        cloud_events.BATCHED: {"type": "array", "items": event, "minItems": 1},
    }

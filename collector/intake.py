"""POST /v1/blocks and /v1/reports, GET /v1/pipelines/NAME/intake: for emitters that make their blocks themselves."""

from __future__ import annotations

import time

from fastapi import FastAPI, Request

from collector.blocks import accept_report, read_blocks, read_report, report_record, split_blocks
from collector.bodies import MAX_BATCH_BYTES, MAX_BLOCKS_BYTES
from collector.models import REPORT, Accepted, Intake, ReportJson, Written, validated
from collector.services import BINARY, CollectorServices, body_document, media_type
from lagloss.wire.format import BLOCKS_TYPE, REPORT_TYPE, SAMPLE_ALL, EmitterReport
from lagloss_server.base.fields import Name
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import JSON, Json


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the routes, on these services."""
    intake = BeaconIntake(services)

    @app.get("/v1/pipelines/{name}/intake", responses=documented(401, 403, 404, 422, 503))
    async def get_intake(name: Name, request: Request) -> Json[Intake]:
        """Return the settings of an emitter: the number of partitions, and which ids to send."""

        async def answer(request: Request) -> Json[Intake]:
            pipeline = await services.access.pipeline(await services.access.caller(request), name)
            sample = SAMPLE_ALL if pipeline is None else pipeline.sample
            return Json(Intake(services.partitions(), sample))

        return await services.answered("intake", request, answer)

    @app.post(
        "/v1/blocks",
        status_code=202,
        responses=documented(400, 401, 403, 404, 413, 415, 422, 429, 503),
        openapi_extra=body_document({BLOCKS_TYPE: BINARY}),
    )
    async def post_blocks(request: Request) -> Json[Written]:
        """Accept blocks of a pipeline, each a little-endian uint32 length and an Avro object; 202 once the broker has
        acknowledged them all."""
        return await services.answered("blocks", request, intake.post_blocks)

    @app.post(
        "/v1/reports",
        status_code=202,
        responses=documented(400, 401, 403, 404, 413, 415, 422, 503),
        openapi_extra=body_document({REPORT_TYPE: BINARY, JSON: ReportJson.model_json_schema()}),
    )
    async def post_report(request: Request) -> Json[Accepted]:
        """Accept one emitter report; 202 once the broker has acknowledged it."""
        return await services.answered("reports", request, intake.post_report)


class BeaconIntake:
    """Handles blocks and reports."""

    def __init__(self, services: CollectorServices) -> None:
        self._services = services

    async def post_blocks(self, request: Request) -> Json[Written]:
        services = self._services
        caller = await services.access.caller(request)
        media_type(request, BLOCKS_TYPE)
        async with services.body(request, caller, MAX_BLOCKS_BYTES) as body:
            values = await services.work(caller, body, lambda: split_blocks(body))
            await services.access.spend(caller, len(values))  # each has a beacon at least
            blocks = await services.work(caller, body, lambda: read_blocks(values))
            pipeline = blocks[0].content.pipeline
            await services.access.pipeline(caller, pipeline, may_wait=True)
            beacons = sum(block.content.count for block in blocks)
            await services.access.spend(caller, beacons, paid=len(values))
            partitions, started = services.partitions(), time.perf_counter()
            records = await services.work(caller, body, lambda: [block.record(partitions) for block in blocks])
            positions = await services.writer.put(pipeline, records)
        services.metrics.acknowledgement.observe(time.perf_counter() - started)
        services.metrics.beacons.inc(beacons)
        return Json(Written(positions), 202)

    async def post_report(self, request: Request) -> Json[Accepted]:
        services = self._services
        caller = await services.access.caller(request)
        kind = media_type(request, REPORT_TYPE, JSON)
        async with services.body(request, caller, MAX_BATCH_BYTES) as body:
            report = await services.work(caller, body, lambda: _accepted(body, kind))
            await services.access.pipeline(caller, report.pipeline, may_wait=True)
            await services.access.spend(caller, 1 + len(report.progress) + len(report.tallies))
            record = await services.work(caller, body, lambda: report_record(report))
            await services.writer.put(report.pipeline, [record])
        return Json(Accepted(0), 202)


def _accepted(body: bytes, kind: str) -> EmitterReport:
    """Return the report in a body; raise a Problem (422) if it is malformed, or would be set aside."""
    report = read_report(body) if kind == REPORT_TYPE else report_of_json(body)
    accept_report(report)
    return report


def report_of_json(body: bytes) -> EmitterReport:
    """Return the report in a JSON body; raise a Problem (422) if it is malformed."""
    return validated(REPORT, body, "report", "tally", "tallies").report()

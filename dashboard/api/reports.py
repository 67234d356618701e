"""`/api/v1/pipelines/{pipeline}/report`: the SLA report in any of its forms."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from dashboard.api.bounds import From, To, ZoneName
from dashboard.queries.services import Services
from dashboard.reports import FORMATS, Report, file_name, make_report, render
from dashboard.reports.ranges import DEFAULT, PRESETS, choose
from dashboard.reports.render.formats import format_of
from dashboard.request.zones import UTC_NAME
from lagloss_server.net.problem_details import documented

RangeName = Annotated[
    str | None,
    Query(alias="range", description=f"{', '.join(PRESETS)}, 7d, 2026-W47, 2026-11 or 2026-Q4; by default {DEFAULT}"),
]
FormatName = Annotated[str, Query(alias="format", description=f"one of {', '.join(FORMATS)}")]


def router(services: Services) -> APIRouter:
    """Return the route, which reads in one pool of threads and makes documents in another."""
    routes = APIRouter(tags=["reports"])

    @routes.get(
        "/pipelines/{pipeline}/report",
        responses={
            200: {"content": {form.media_type.partition(";")[0]: {} for form in FORMATS.values()}},
            **documented(404, 422, 503),
        },
        response_class=Response,
    )
    async def report(
        pipeline: Annotated[str, Path(max_length=100)],
        range_: RangeName = None,
        from_: From = None,
        to: To = None,
        zone: ZoneName = None,
        fmt: FormatName = "json",
    ) -> Response:
        """Return the SLA report: attainment against target, error budget, days, worst hours, incidents, the range
        before."""
        form, now_s = format_of(fmt), time.time()
        span = choose(range_, from_, to, zone or UTC_NAME, now_s)
        made = await services.threads.read(make_report, services.store, pipeline, span, now_s)
        make = services.threads.document if form.is_binary else services.threads.read
        document = await make(render, made, fmt, services.settings.dashboard_url)
        return Response(document, media_type=form.media_type, headers=_headers(made, fmt))

    return routes


def _headers(made: Report, fmt: str) -> dict[str, str]:
    """JSON is read by programs; all else is a file to be kept, and never a page of this site."""
    kind = "inline" if fmt == "json" else "attachment"
    return {
        "Content-Disposition": f'{kind}; filename="{file_name(made, fmt)}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }

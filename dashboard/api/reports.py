"""`/api/v1/pipelines/{pipeline}/report`, `/api/v1/portfolio`: the SLA report and the portfolio in any form."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from dashboard.api.bounds import From, MatchTexts, SourceName, To, ZoneName
from dashboard.api.report_documents import PortfolioDocument, ReportDocument
from dashboard.queries.services import Services
from dashboard.reports import FORMATS, file_name, make_portfolio, make_report, render
from dashboard.reports.ranges import DEFAULT, PRESETS, choose
from dashboard.reports.render.formats import Reported, format_of
from dashboard.request.zones import UTC_NAME
from lagloss_server.model.matchers import parse_matchers
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import JsonRoute, json_content

RangeName = Annotated[
    str | None,
    Query(alias="range", description=f"{', '.join(PRESETS)}, 7d, 2026-W47, 2026-11 or 2026-Q4; by default {DEFAULT}"),
]
FormatName = Annotated[str, Query(alias="format", description=f"one of {', '.join(FORMATS)}")]


def router(services: Services) -> APIRouter:
    """Return the routes, which read in one pool of threads and make documents in another."""
    routes = APIRouter(tags=["reports"], route_class=JsonRoute)

    async def answer(fmt: str, read: Callable[..., Reported], *args: object) -> Response:
        form = format_of(fmt)
        report = await services.threads.read(read, services.store, *args)
        make = services.threads.document if form.is_binary else services.threads.read
        document = await make(render, report, fmt, services.settings.dashboard_url)
        return Response(document, media_type=form.media_type, headers=_headers(report, fmt))

    @routes.get(
        "/pipelines/{pipeline}/report",
        responses={200: {"content": _content(ReportDocument)}, **documented(404, 422, 503)},
        response_class=Response,
    )
    async def report(
        pipeline: Annotated[str, Path(max_length=100)],
        range_: RangeName = None,
        from_: From = None,
        to: To = None,
        zone: ZoneName = None,
        source: SourceName = None,
        fmt: FormatName = "json",
    ) -> Response:
        """Return the SLA report: attainment against target, error budget, destinations, lag by hop, days, worst hours,
        incidents, the range before; of all messages, or of those of one of several sources."""
        format_of(fmt)
        now_s = time.time()
        span = choose(range_, from_, to, zone or UTC_NAME, now_s)
        return await answer(fmt, make_report, pipeline, span, now_s, source)

    @routes.get(
        "/portfolio",
        responses={200: {"content": _content(PortfolioDocument)}, **documented(422, 503)},
        response_class=Response,
    )
    async def portfolio(
        match: MatchTexts = (),
        range_: RangeName = None,
        from_: From = None,
        to: To = None,
        zone: ZoneName = None,
        fmt: FormatName = "json",
    ) -> Response:
        """Return how all pipelines, or those that match, kept what they promised: worst first, with what is left of
        their error budgets, the trend against the range before, and open incidents."""
        format_of(fmt)
        now_s, matchers = time.time(), parse_matchers(match)
        span = choose(range_, from_, to, zone or UTC_NAME, now_s)
        return await answer(fmt, make_portfolio, matchers, span, now_s)

    return routes


def _content(document: type) -> dict[str, Any]:
    """Return the content of a response in any form; `document`: the type of the JSON."""
    files = {
        form.media_type.partition(";")[0]: {
            "schema": {"type": "string", **({"format": "binary"} if form.is_binary else {})}
        }
        for form in FORMATS.values()
    }
    return {**files, **json_content(document)}


def _headers(report: Reported, fmt: str) -> dict[str, str]:
    """JSON is read by programs; all else is a file to be kept, and never a page of this site."""
    kind = "inline" if fmt == "json" else "attachment"
    return {
        "Content-Disposition": f'{kind}; filename="{file_name(report, fmt)}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }

"""Routes of pipelines: what there is, its definition, its series and its windows."""

from __future__ import annotations

import time
from typing import Any, Final

from fastapi import APIRouter

from dashboard.api.bounds import From, Range, SourceName, To, span_of
from dashboard.queries.panels import Panels, PanelsDocument, read_panels
from dashboard.queries.series import MAX_BUCKETS
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.shown_range import ShownRange
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import PipelineDocument, PipelineHead
from lagloss_server.model.sources import demand_source
from lagloss_server.model.window import PrintedWindow
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute
from lagloss_server.store.store import Store

_PANELS: Final = (
    "At most 1,440 buckets: minutes up to a day, hours up to 60 days, days beyond. A bucket without data "
    "is left out; an unknown number is null. Percentiles are read from merged sketches. `total` covers the "
    "closed minutes of the range, `quality` their loss, corruption, duplicates and staleness by stage and "
    "destination with the newest definition's targets; `incidents` and `deploys` are those within the range: "
    "the 50 worst and newest incidents, and `more_incidents` for the rest."
)
_WINDOWS: Final = (
    f"Windows with from <= start < to, at most {MAX_BUCKETS:,} minutes at a time: if the range is longer, the "
    "header `Link` points to the next page. Minutes are kept for weeks; older ones are only in the sums of `panels`."
)
_NEXT: Final[dict[str, Any]] = {
    "Link": {"description": 'The next windows: `<URL>; rel="next"` (RFC 8288)', "schema": {"type": "string"}}
}


def router(services: Services) -> APIRouter:
    """GET /pipelines, /pipelines/{p}, /pipelines/{p}/panels and /pipelines/{p}/windows."""
    routes = APIRouter(tags=["pipelines"], route_class=JsonRoute)
    store, read = services.store, services.threads.read

    @routes.get("/pipelines", summary="The pipelines, by name", responses=documented(503))
    async def pipelines() -> Json[list[PipelineHead]]:
        versions = await read(store.pipelines)
        return Json([PipelineHead(stored.name, stored.version, stored.applied_at) for stored in versions])

    @routes.get(
        "/pipelines/{pipeline}", summary="The newest version of a definition", responses=documented(404, 422, 503)
    )
    async def pipeline(pipeline: str) -> Json[PipelineDocument]:
        return Json((await read(store.pipeline, pipeline)).document())

    @routes.get(
        "/pipelines/{pipeline}/panels",
        summary="A pipeline over a time range, as its page shows it",
        description=_PANELS,
        responses=documented(404, 422, 503),
    )
    async def panels(
        pipeline: str, from_: From = None, to: To = None, range_: Range = None, source: SourceName = None
    ) -> Json[PanelsDocument]:
        span = span_of(from_, to, range_)
        return await read(lambda: Json(_panels(store, pipeline, span, source).document()))

    @routes.get(
        "/pipelines/{pipeline}/windows",
        summary="Windows, oldest first, as `lagloss windows --json` prints them",
        description=_WINDOWS,
        responses={200: {"headers": _NEXT}, **documented(404, 422, 503)},
    )
    async def windows(
        pipeline: str, from_: From = None, to: To = None, range_: Range = None
    ) -> Json[list[PrintedWindow]]:
        span = span_of(from_, to, range_)
        page = ShownRange(span.from_s, min(span.to_s, span.from_s + MAX_BUCKETS * WINDOW_S))
        response = await read(lambda: Json(_windows(store, pipeline, page)))
        if page.to_s < span.to_s:
            response.headers["Link"] = f'<{links.windows_of(pipeline, page.to_s, span.to_s)}>; rel="next"'
        return response

    return routes


def _panels(store: Store, pipeline: str, span: ShownRange, source: str | None) -> Panels:
    panels = read_panels(store, pipeline, span, time.time())
    if source is None:
        return panels
    demand_source(store.versions_of(pipeline), source)
    return panels.from_source(source)


def _windows(store: Store, pipeline: str, span: ShownRange) -> list[PrintedWindow]:
    store.demand(pipeline)  # raises UnknownPipeline
    return [window.contract() for window in store.windows(pipeline, span.from_s, span.to_s)]

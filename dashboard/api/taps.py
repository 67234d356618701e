"""The route of taps: how far each has read its topic, why it waits, and what it could not read."""

from __future__ import annotations

import time
from typing import Final

from fastapi import APIRouter

from dashboard.queries.services import Services
from dashboard.queries.taps import TapDocument, read_taps
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

_ABOUT: Final = (
    "In the order of the flow. `commits`: how commits of the group are read, `log` or `polled` (times are then "
    "those of the poll). `state`: `reading`, `behind` (for more than a minute), `waiting` (see `trouble`), "
    "`not run` (by any process), `not begun`. `read_through`: all observed before it has been read; `behind_ms`: time "
    "since then. `records`: read since the tap started; `left_out`: excluded by its filter; `early`: of minutes "
    "before its first; `gone`: the number of offsets that were deleted before being read. `unreadable`: by "
    "reason, with the newest example."
)


def router(services: Services) -> APIRouter:
    """GET /pipelines/{p}/taps."""
    routes = APIRouter(tags=["pipelines"], route_class=JsonRoute)
    store, read = services.store, services.threads.read

    @routes.get(
        "/pipelines/{pipeline}/taps",
        summary="Current taps of a pipeline",
        description=_ABOUT,
        responses=documented(404, 422, 503),
    )
    async def taps(pipeline: str) -> Json[list[TapDocument]]:
        taps = await read(lambda: read_taps(store, [store.pipeline(pipeline).definition], time.time()))
        return Json([tap.document() for tap in taps])

    return routes

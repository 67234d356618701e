"""Routes of taps: how far each has read its topic, why it waits, and what it could not read; which messages are lost
afterwards."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query

from dashboard.api.bounds import From, Range, To, span_of
from dashboard.queries.lost_afterwards import read_lost_afterwards
from dashboard.queries.services import Services
from dashboard.queries.taps import TapDocument, read_taps
from lagloss_server.incidents.lost_afterwards import LostAfterwardsDocument
from lagloss_server.incidents.lost_afterwards_store import MAX_NAMED
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

_ABOUT: Final = (
    "In the order of the flow. `commits`: how commits of the group are read, `log` or `polled` (times are then "
    "those of the poll). `state`: `reading`, `behind` (for more than a minute), `waiting` (see `trouble`), "
    "`not run` (by any process), `not begun`. `recheck`: for how long rows of a table are compared again, "
    "`recheck_trouble`: why they are not. `read_through`: all observed before it has been read; `behind_ms`: time "
    "since then. `records`: read since the tap started; `left_out`: excluded by its filter; `early`: of minutes "
    "before its first; `gone`: the number of offsets that were deleted before being read. `unreadable`: by "
    "reason, with the newest example."
)


def router(services: Services) -> APIRouter:
    """GET /pipelines/{p}/taps and /pipelines/{p}/lost-afterwards."""
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

    @routes.get(
        "/pipelines/{pipeline}/lost-afterwards",
        summary="Messages whose rows were in a tapped table and are not any more",
        responses=documented(404, 422, 503),
    )
    async def lost_afterwards(
        pipeline: str,
        from_: From = None,
        to: To = None,
        range_: Range = None,
        limit: Annotated[int, Query(ge=1, le=MAX_NAMED, description="maximum number of messages")] = MAX_NAMED,
    ) -> Json[LostAfterwardsDocument]:
        """As `lagloss lost-afterwards --json` prints them, by event time: counts by minute, and the messages that were
        missed last. `share`: of a minute's rows, those that were compared."""
        span = span_of(from_, to, range_)
        return Json(await read(read_lost_afterwards, store, pipeline, span, limit))

    return routes

"""The route that finds one message by its id."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query

from dashboard.queries.message import MessageDocument, Where, read_message
from dashboard.queries.services import Services
from lagloss_server.base.fields import NAME_PATTERN
from lagloss_server.base.times import parse_time_s
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute


def router(services: Services) -> APIRouter:
    """Ids hold any characters: they stand in the query."""
    routes = APIRouter(tags=["messages"], route_class=JsonRoute)

    @routes.get("/pipelines/{pipeline}/messages", responses=documented(403, 404, 422, 503))
    async def message(
        pipeline: Annotated[str, Path(pattern=NAME_PATTERN)],
        id: Annotated[str, Query(min_length=1, max_length=255, description="its id, or the id's hash, 16 hex digits")],
        around: Annotated[str | None, Query(description="RFC 3339 or relative: search there first")] = None,
        before: Annotated[str | None, Query(description="RFC 3339: only windows that start before")] = None,
        after: Annotated[str | None, Query(description="RFC 3339: only windows that start then or later")] = None,
    ) -> Json[MessageDocument]:
        """Return what is stored of a message, and its trail in the log. A search stops after 30 s: `looked_through`
        says how far it came; continue with `before` set to its `from`, or `after` to its `to`. If the log could not be
        read, `trouble` says why."""
        now_s = time.time()
        at_s = (None if text is None else parse_time_s(text, now_s) for text in (around, before, after))
        message = await services.threads.read_log(
            read_message, services.store, services.log, pipeline, id, Where(*at_s)
        )
        return Json(message.document(services.trace_links))

    return routes

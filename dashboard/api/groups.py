"""`GET /groups`: all consumer groups, worst first."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.queries.cluster_groups import GroupFilters, read_groups
from dashboard.queries.services import Services
from lagloss_server.groups.cluster_groups import GroupDocument
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

_Cluster = Annotated[str | None, Query(max_length=100, description="only groups of this named cluster")]
_Match = Annotated[str, Query(max_length=255, description="glob, or part of a name, case-insensitive")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["consumer groups"], route_class=JsonRoute)

    @routes.get(
        "/groups",
        summary="All consumer groups, named by a definition or not, worst first",
        responses=documented(422, 503),
    )
    async def groups(cluster: _Cluster = None, match: _Match = "") -> Json[list[GroupDocument]]:
        listed = await services.threads.read(read_groups, services.store, GroupFilters(cluster, match))
        now_s = time.time()
        return Json([reading.document(now_s) for reading in listed.matching])

    return routes

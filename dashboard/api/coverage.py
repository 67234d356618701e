"""`GET /coverage`: which topics and consumer groups a definition names, and which none does."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.queries.services import Services
from lagloss_server.groups.coverage import CoverageDocument, read_coverage
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

_By = Annotated[str, Query(max_length=100, pattern="^(prefix|label:.+)$", description="prefix, or label:NAME")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["consumer groups"], route_class=JsonRoute)

    @routes.get(
        "/coverage",
        summary="Topics and consumer groups that a definition names, and those that none does",
        responses=documented(422, 503),
    )
    async def coverage(by: _By = "prefix") -> Json[CoverageDocument]:
        result = await services.threads.read(read_coverage, services.store)
        return Json(result.document(by))

    return routes

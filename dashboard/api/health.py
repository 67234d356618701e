"""`GET /health`: whether lagloss itself can be trusted now, and why not. `/healthz` only says that it answers."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.queries.health import HealthDocument, read_health
from dashboard.queries.reports_topic import ReportsTopic
from dashboard.queries.services import Services
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

_Pipeline = Annotated[str | None, Query(description="only this pipeline")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["health"], route_class=JsonRoute)
    topic = ReportsTopic(services.settings.kafka_bootstrap)

    @routes.get("/health", summary="Current health of lagloss itself", responses=documented(404, 422, 503))
    async def health(pipeline: _Pipeline = None) -> Json[HealthDocument]:
        """Raise UnknownPipeline (404)."""
        ends = await services.threads.glance(topic.ends)
        health = await services.threads.read(read_health, services.store, ends, time.time(), pipeline)
        return Json(health.document())

    return routes

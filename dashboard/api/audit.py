"""`GET /audit`: who did what, or looked at message ids."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.api.bounds import From, Range, To, span_of
from dashboard.api.incidents import PageNumber, PipelineName, Size
from dashboard.queries.audit import AuditDocument, AuditFilters, read_audit
from dashboard.queries.incident_filters import PAGE_SIZE
from dashboard.queries.services import Services
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute
from lagloss_server.store.audit import Action

_Actor = Annotated[str | None, Query(max_length=255, description="part of a name, case-insensitive")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["audit"], route_class=JsonRoute)

    @routes.get("/audit", summary="The audit trail, newest first; for operators", responses=documented(403, 422, 503))
    async def audit(
        actor: _Actor = None,
        action: Annotated[Action | None, Query(description="the action")] = None,
        pipeline: PipelineName = None,
        from_: From = None,
        to: To = None,
        range_: Range = None,
        page: PageNumber = 1,
        size: Size = PAGE_SIZE,
    ) -> Json[AuditDocument]:
        filters, span = AuditFilters(actor or None, action, pipeline), span_of(from_, to, range_)
        entries = await services.threads.read(read_audit, services.store, filters, span, page, size)
        return Json(entries.document())

    return routes

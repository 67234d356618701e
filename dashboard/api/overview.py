"""`GET /overview`: how every pipeline stands, worst first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.queries.overview import Overview, OverviewDocument, detailed
from dashboard.queries.pipeline_status import Order, State
from dashboard.queries.services import Services
from dashboard.request.current_user import sight
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute, encode

_Text = Annotated[str, Query(alias="q", max_length=200, description="part of a name or description, case-insensitive")]
_State = Annotated[State | None, Query(alias="state", description="only pipelines in this state")]
_Order = Annotated[Order, Query(alias="sort", description="sort key, worst first")]
_Offset = Annotated[int, Query(ge=0, description="number of matching pipelines to skip")]
_Limit = Annotated[int | None, Query(ge=1, description="maximum number of pipelines; by default all")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["overview"], route_class=JsonRoute)

    @routes.get("/overview", summary="Status of every pipeline, worst first", responses=documented(422, 503))
    async def overview(
        text: _Text = "", state: _State = None, order: _Order = Order.WORST, offset: _Offset = 0, limit: _Limit = None
    ) -> Json[OverviewDocument]:
        def answer() -> bytes:
            overview = services.overview()
            key = (text, state, order, offset, limit, sight())
            return services.answers.read(key, overview.now_s, lambda: written(overview))

        def written(overview: Overview) -> bytes:
            chosen = overview.chosen(text, state, order)
            shown = detailed(services.store, chosen[offset : None if limit is None else offset + limit], overview.now_s)
            return encode(overview.document(len(chosen), shown))

        return Json.encoded(await services.threads.read(answer))

    return routes

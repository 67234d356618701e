"""`GET /overview`: how every pipeline stands, worst first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from dashboard.queries.overview import Overview, detailed
from dashboard.queries.pipeline_status import Order, State
from dashboard.queries.services import Services
from dashboard.request.current_user import sight

_Text = Annotated[str, Query(alias="q", max_length=200, description="part of a name or description, in any case")]
_State = Annotated[State | None, Query(alias="state", description="only pipelines in this state")]
_Order = Annotated[Order, Query(alias="sort", description="what they are ordered by, the worst first")]
_Offset = Annotated[int, Query(ge=0, description="pipelines to pass over, of those that match")]
_Limit = Annotated[int | None, Query(ge=1, description="pipelines at most; by default all")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["overview"])

    @routes.get("/overview", summary="How every pipeline stands, worst first", response_model=dict)
    async def overview(
        text: _Text = "", state: _State = None, order: _Order = Order.WORST, offset: _Offset = 0, limit: _Limit = None
    ) -> Response:
        def answer() -> bytes:
            found = services.overview()
            key = (text, state, order, offset, limit, sight())
            return services.answers.read(key, found.now_s, lambda: written(found))

        def written(found: Overview) -> bytes:
            chosen = found.chosen(text, state, order)
            shown = detailed(services.store, chosen[offset : None if limit is None else offset + limit], found.now_s)
            # as JSON at once: FastAPI would look into each of thousands of rows
            return bytes(JSONResponse(found.document(len(chosen), shown)).body)

        return Response(await services.threads.read(answer), media_type="application/json")

    return routes

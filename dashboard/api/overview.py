"""`GET /overview`: how every pipeline stands, worst first."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dashboard.queries.overview import read_overview
from dashboard.queries.pipeline_status import State
from dashboard.queries.services import Services

_Text = Annotated[str, Query(alias="q", max_length=200, description="part of a name or description, in any case")]
_State = Annotated[State | None, Query(alias="state", description="only pipelines in this state")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["overview"])

    @routes.get("/overview", summary="How every pipeline stands, worst first")
    async def overview(text: _Text = "", state: _State = None) -> dict[str, Any]:
        found = await services.threads.read(read_overview, services.store, time.time())
        return found.document(text, state)

    return routes

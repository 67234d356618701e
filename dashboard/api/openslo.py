"""`/api/v1/openslo`, `/api/v1/pipelines/{pipeline}/openslo`: the targets of pipelines as OpenSLO v1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response

from dashboard.api.bounds import MatchTexts
from dashboard.queries.services import Services
from lagloss_server.model.definition import StoredPipeline, matching
from lagloss_server.model.matchers import parse_matchers
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import JsonRoute
from lagloss_server.sums.openslo import as_yaml, openslo

MEDIA_TYPE: Final = "application/yaml"
_CONTENT: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}


def router(services: Services) -> APIRouter:
    routes, store = APIRouter(tags=["pipelines"], route_class=JsonRoute), services.store

    async def answer(read: Callable[[], Sequence[StoredPipeline]]) -> Response:
        return Response(as_yaml(openslo(await services.threads.read(read))), media_type=MEDIA_TYPE)

    @routes.get("/openslo", responses={**_CONTENT, **documented(422, 503)}, response_class=Response)
    async def several(match: MatchTexts = ()) -> Response:
        """Return the targets of all pipelines, or of those that match, as OpenSLO v1 in YAML."""
        matchers = parse_matchers(match)
        return await answer(lambda: matching(store.pipelines(), matchers))

    @routes.get(
        "/pipelines/{pipeline}/openslo", responses={**_CONTENT, **documented(404, 422, 503)}, response_class=Response
    )
    async def one(pipeline: Annotated[str, Path(max_length=100)]) -> Response:
        """Return the targets of a pipeline as OpenSLO v1 in YAML: service, indicators, objectives, alert policies."""
        return await answer(lambda: [store.pipeline(pipeline)])

    return routes

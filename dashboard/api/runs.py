"""Routes of the runs of a pipeline's jobs: with the records of their hours, and one by itself."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.api.bounds import From, Range, To, span_of
from dashboard.queries.services import Services
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute
from lagloss_server.runs.job_runs import (
    LATEST,
    MAX_SHOWN,
    HourRunDocument,
    JobRunsDocument,
    read_job_runs,
    read_run,
)

_Limit = Annotated[int, Query(ge=1, le=MAX_SHOWN, description="maximum number of runs per job, newest first")]


def router(services: Services) -> APIRouter:
    """GET /pipelines/{p}/runs and /pipelines/{p}/run."""
    routes = APIRouter(tags=["runs"], route_class=JsonRoute)
    store, read = services.store, services.threads.read

    @routes.get(
        "/pipelines/{pipeline}/runs",
        summary="The jobs of a pipeline, with their runs due in a time range",
        responses=documented(404, 422, 503),
    )
    async def runs(
        pipeline: str, from_: From = None, to: To = None, range_: Range = None, limit: _Limit = MAX_SHOWN
    ) -> Json[list[JobRunsDocument]]:
        """As `lagloss runs --json` prints them: statistics of each job and its tasks, and its runs, newest first."""
        span = span_of(from_, to, range_)
        runs = await read(lambda: read_job_runs(store, pipeline, span.from_s, span.to_s, time.time(), limit=limit))
        return Json([job.document() for job in runs])

    @routes.get(
        "/pipelines/{pipeline}/run", summary="One run, by its id or the latest", responses=documented(404, 422, 503)
    )
    async def run(
        pipeline: str,
        run: Annotated[str, Query(max_length=250, description="its id, or `latest`")] = LATEST,
        dag: Annotated[str | None, Query(max_length=250, description="if several DAGs have a run with this id")] = None,
    ) -> Json[HourRunDocument]:
        """As `lagloss runs --run --json` prints it."""
        return Json((await read(read_run, store, pipeline, run, dag)).document())

    return routes

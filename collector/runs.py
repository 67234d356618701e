"""Routes of task runs: reports of DAGs and their tasks, and whether what they wait for is whole."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import FastAPI, Query, Request

from collector import openlineage
from collector.access import Caller
from collector.bodies import MAX_BATCH_BYTES
from collector.services import CollectorServices, ask, body_document, media_type
from collector.task_runs import Recorded, TaskRunsJson, read_reports
from lagloss.errors import UsageError
from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.base.fields import Name
from lagloss_server.base.times import parse_time_s
from lagloss_server.net.problem_details import Problem, busy, documented
from lagloss_server.net.responses import JSON, Json
from lagloss_server.runs import run_store as task_runs
from lagloss_server.runs.run_store import RunReport
from lagloss_server.runs.wholeness import WholenessDocument, read_wholeness
from lagloss_server.store.store import Store

MAX_SPAN_S: Final = 2 * 86_400
"""Of one question whether a span is whole: each of its windows is read."""
UNIT_S: Final = 3_600
"""Of a span, whose windows are as much to read as a unit of work."""
Moment = Annotated[str, Query(description="RFC 3339 or relative (-2h)", max_length=100)]


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the routes, on these services."""
    runs = TaskRuns(services)
    refused = documented(400, 401, 403, 413, 415, 422, 429, 503)

    @app.post(
        "/v1/task-runs",
        status_code=202,
        responses=refused,
        openapi_extra=body_document({JSON: TaskRunsJson.model_json_schema()}),
    )
    async def post_task_runs(request: Request) -> Json[Recorded]:
        """Accept reports of DAG runs and tasks; 202 once stored. Repeated and reordered reports change nothing."""
        return await services.answered("task-runs", request, runs.post)

    @app.post(
        "/v1/lineage",
        status_code=202,
        responses=refused,
        openapi_extra=body_document({JSON: {"type": "object", "required": ["eventTime"]}}),
    )
    async def post_lineage(request: Request) -> Json[Recorded]:
        """Accept one OpenLineage event of a run; one that is of no job of a definition is refused (422)."""
        return await services.answered("lineage", request, runs.post_event)

    @app.get("/v1/pipelines/{name}/whole", responses=documented(401, 403, 404, 422, 503))
    async def get_whole(
        name: Name,
        request: Request,
        from_: Annotated[Moment, Query(alias="from")],
        to: Moment,
        node: Name | None = None,
    ) -> Json[WholenessDocument]:
        """Return whether all messages with from <= event time < to were delivered, or left a node if one is given."""
        return await services.answered("whole", request, lambda asking: runs.whole(asking, name, from_, to, node))


class TaskRuns:
    """Handles reports of runs, and the question that they wait with."""

    def __init__(self, services: CollectorServices) -> None:
        self._services = services

    async def post(self, request: Request) -> Json[Recorded]:
        services = self._services
        caller = await services.access.caller(request)
        media_type(request, JSON)
        async with services.body(request, caller, MAX_BATCH_BYTES) as body:
            reports = await services.workers.run(caller.tenant, None, lambda: read_reports(body), caller.has_gone)
        count = await self._record(caller, reports)
        return Json(Recorded(count, len(reports) - count), 202)

    async def post_event(self, request: Request) -> Json[Recorded]:
        services = self._services
        caller = await services.access.caller(request)
        media_type(request, JSON)
        async with services.body(request, caller, MAX_BATCH_BYTES) as body:
            reports = await services.workers.run(
                caller.tenant, None, lambda: openlineage.read_event(body), caller.has_gone
            )
        count = await self._record(caller, reports)
        if not count:
            dags = " or ".join(dict.fromkeys(report.dag for report in reports))
            detail = f"expected a job that a definition names as a `dag`, for this sender to report, found {dags}"
            raise Problem(422, openlineage.NOT_USED, detail)
        return Json(Recorded(count, 0), 202)

    async def _record(self, caller: Caller, reports: list[RunReport]) -> int:
        """Store the reports of DAGs that definitions name; return how many those are. All are charged."""
        await self._services.access.spend(caller, len(reports))
        store = self._store()
        owned = await self._owned(caller, reports)
        if owned:
            await ask(lambda: _record(store, owned))
        return len({id(report) for _, report in owned})

    async def whole(
        self, request: Request, name: str, from_: str, to: str, node: str | None
    ) -> Json[WholenessDocument]:
        caller = await self._services.access.caller(request)
        await self._services.access.admit(caller, name)
        try:
            units = 1
            try:
                from_s, to_s = (int(parse_time_s(text)) // WINDOW_S * WINDOW_S for text in (from_, to))
                units = min(to_s - from_s, MAX_SPAN_S) // UNIT_S
            finally:  # also for a question that is refused
                await self._services.access.charge_question(caller, units)
            if not from_s < to_s <= from_s + MAX_SPAN_S:
                raise Problem(
                    422, "Bad time range", f"expected from < to, and up to {MAX_SPAN_S // 3600} hours between them"
                )
            store = self._store()
            wholeness = await ask(lambda: read_wholeness(store, name, from_s, to_s, node))
        except UnknownPipeline as error:
            raise Problem(404, "Unknown pipeline", str(error)) from None
        except UsageError as error:
            raise Problem(422, "Bad query", str(error)) from None
        return Json(wholeness.document())

    async def _owned(self, caller: Caller, reports: list[RunReport]) -> list[tuple[str, RunReport]]:
        """Return the reports with the pipelines that name their DAG: that of the caller's token, or without one all
        those without tokens."""
        of_dag = await self._services.access.pipelines_of_dags(caller, {report.dag for report in reports})
        return [(pipeline, report) for report in reports for pipeline in of_dag.get(report.dag, ())]

    def _store(self) -> Store:
        store = self._services.knowledge.store
        if store is None:
            raise busy("task runs are stored in PostgreSQL, and this collector has none; set LAGLOSS_DATABASE_URL")
        if self._services.knowledge.hangs:  # another question would hang, and a thread with it
            raise busy("PostgreSQL does not respond; send again later")
        return store


def _record(store: Store, owned: list[tuple[str, RunReport]]) -> None:
    with store.engine.begin() as connection:
        task_runs.record(connection, owned)

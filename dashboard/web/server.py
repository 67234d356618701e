"""The server: pages, the read API, runbooks and health, on one FastAPI application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import structlog
from dash.exceptions import DependencyException
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from dashboard.api.app import create_api
from dashboard.login import protect
from dashboard.login.guard import LIVE_PATH, METRICS_PATH
from dashboard.mcp.endpoint import McpEndpoint
from dashboard.pages import shell
from dashboard.queries.services import Services
from dashboard.reports.schedule.scheduler import Scheduler
from dashboard.request import links
from dashboard.request.current_user import asking
from dashboard.web import routing
from dashboard.web.compression import Compressed
from dashboard.web.first_answer import FirstAnswers
from dashboard.web.index import PAGE, Index
from dashboard.web.metrics import CountedRequests, DashboardMetrics
from dashboard.web.runbook_page import runbook_html
from lagloss_server.base.errors import TooManyRequests
from lagloss_server.base.turns import Turns
from lagloss_server.incidents.runbooks import KINDS
from lagloss_server.net.exposition import exposed
from lagloss_server.net.server_watch import postgresql_of, watching

_WARM_S: Final = 5.0
"""Time between reads of the overview where no reader asks for it."""
_LISTENING_S: Final = 0.2
"""Time between looks whether PostgreSQL is listened to: what is read before would not be known to hold."""
_log = structlog.get_logger("lagloss.dashboard")


def create_server(services: Services, scheduler: Scheduler | None = None) -> ASGIApp:
    """Return pages at `/…`, the API below `/api/v1`, tools for agents at `/mcp`, runbooks at `/runbooks/KIND`, and for
    machines `/readyz` and `/healthz` (200, or 503 while PostgreSQL does not answer), `/livez` and `/metrics`; behind
    the login that is configured. The scheduler runs for as long as it is served.

    Raises:
        BadDefinition: the access file cannot be used.
    """
    turns = Turns()
    scoped = services.scoped()  # what answers people reads from this alone
    agents = McpEndpoint(scoped)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # uvicorn ends by the signal that it got: what stands behind its `run` is not reached
        if scheduler is not None:
            scheduler.start()
        services.changes.start(services.store)
        warming = asyncio.create_task(_keep_warm(services))
        servers = {"PostgreSQL": postgresql_of(services.store.engine)}
        with watching(turns, servers), turns.running(services.changes.loop):
            async with agents.running():
                yield
        warming.cancel()
        await asyncio.to_thread(services.changes.stop)
        if scheduler is not None:
            await asyncio.to_thread(scheduler.stop)
        services.threads.close()

    server = FastAPI(title="lagloss dashboard", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    metrics = DashboardMetrics()
    metrics.set_aside.counts = services.overviews.unreadable.counts
    server.router.routes.append(_mounted(links.API, create_api(scoped)))
    server.router.routes.append(Route(links.MCP, agents))
    _add_plain_routes(server, services, turns, metrics)
    app = Index(
        "dashboard",
        server=server,  # type: ignore[arg-type]  # declared as for Flask; a FastAPI instance is documented
        title="lagloss",
        update_title=None,  # type: ignore[arg-type]  # None: the title does not flicker at each refresh
        serve_locally=True,
        suppress_callback_exceptions=True,  # what a page's callbacks speak of is there only while it is mounted
        index_string=PAGE,
        assets_path_ignore=["vendor"],  # what others there ask for when they need it
        assets_ignore=r".*\.css",  # the index page has them
        on_error=_log_and_raise,
        description="How late is a streaming pipeline's data, minute by minute, and was any lost?",
    )
    app.layout = shell.frame()
    routing.register(app, scoped)
    # Dash 4.4 on FastAPI does so only at a request for "/": a visitor who follows a link to another page would wait
    app._setup_server()  # type: ignore[no-untyped-call]
    answering = FirstAnswers(CountedRequests(server, metrics), scoped)
    return protect(Compressed(answering), services, app.csp_hashes())


async def _keep_warm(services: Services) -> None:
    """Read the overview before a reader asks, and again while none does: the next one would wait for all that has
    changed since the last."""
    while True:
        if services.changes.is_listening:
            try:
                await asyncio.to_thread(services.overview)
            except Exception as error:  # the next reader is shown it
                _log.warning("overview_read_failed", error=type(error).__name__)
        await asyncio.sleep(_WARM_S if services.changes.is_listening else _LISTENING_S)


def _mounted(path: str, app: ASGIApp) -> Mount:
    """Return a route to an application for all paths below one, those with a line break included: Starlette's pattern
    ends at the first, and its 404 is not the API's."""
    mount = Mount(path, app)
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return mount


def _add_plain_routes(server: FastAPI, services: Services, turns: Turns, metrics: DashboardMetrics) -> None:
    @server.get(LIVE_PATH)
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @server.get(METRICS_PATH)
    async def expose(request: Request) -> Response:
        body, content_type = exposed(metrics.registry, request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    @server.get("/healthz")
    @server.get("/readyz")
    async def ready(response: Response) -> dict[str, object]:
        problem = turns.problem()
        if problem is not None:
            response.status_code = 503
            status = "unavailable" if turns.problem_of("PostgreSQL") is None else "database unreachable"
            return {"status": status, "detail": problem}
        set_aside = [str(row) for row in services.overviews.unreadable if asking().grants.may_see(row.pipeline)]
        return {"status": "ok", **({"set_aside": set_aside} if set_aside else {})}

    @server.exception_handler(DependencyException)
    async def on_unknown_script(_: Request, error: Exception) -> Response:
        """Dash's own answer is 500."""
        return PlainTextResponse("no such script", 404)

    @server.exception_handler(TooManyRequests)
    async def on_too_many(_: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 429)

    @server.get("/runbooks/{kind:path}")
    def runbook(kind: str) -> HTMLResponse:
        if kind not in KINDS:
            raise HTTPException(404, f"there is no runbook {kind}; available: {', '.join(KINDS)}")
        return HTMLResponse(runbook_html(kind))


def _log_and_raise(error: Exception) -> NoReturn:
    """Dash's FastAPI backend answers 500 without a word in the log."""
    if isinstance(error, TooManyRequests):  # which is answered as such
        raise error
    _log.error("callback_failed", exc_info=error)
    raise error

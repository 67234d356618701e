"""The read API at `/api/v1` as an application of its own, with its errors and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from sqlalchemy.exc import DataError

from dashboard.api import (
    audit,
    consumer_lag,
    coverage,
    groups,
    health,
    incidents,
    messages,
    openslo,
    overview,
    reports,
    runs,
    series,
    taps,
    windows,
)
from dashboard.queries.services import Services
from lagloss.errors import LaglossError, UsageError
from lagloss_server.base.errors import (
    AlreadyAcknowledged,
    IdsHidden,
    IncidentIsResolved,
    LimitReached,
    NotAllowed,
    NotEnoughData,
    TooManyRequests,
    UnknownIncident,
    UnknownPipeline,
    UnknownReceiver,
    UnknownRun,
    UnknownSilence,
    UnknownWindow,
    WindowTooLarge,
)
from lagloss_server.base.fields import NOT_STORABLE, is_storable
from lagloss_server.net import problem_details as problems
from lagloss_server.net.problem_details import Problem
from lagloss_server.store.engine import AWAY

_log = structlog.get_logger("lagloss.dashboard")
_STATUS: Final[tuple[tuple[type[LaglossError], int, str], ...]] = (
    (UnknownPipeline, 404, "Unknown pipeline"),
    (UnknownWindow, 404, "Unknown window"),
    (UnknownRun, 404, "Unknown run"),
    (UnknownIncident, 404, "Unknown incident"),
    (UnknownSilence, 404, "Unknown silence"),
    (UnknownReceiver, 404, "Unknown receiver"),
    (AlreadyAcknowledged, 409, "Already acknowledged"),
    (IncidentIsResolved, 409, "Incident is resolved"),
    (NotAllowed, 403, "Not allowed"),
    (IdsHidden, 403, "Message ids are hidden"),
    (LimitReached, 409, "Limit reached"),
    (NotEnoughData, 409, "Not enough data"),
    (WindowTooLarge, 409, "Window too large"),
    (TooManyRequests, 429, "Too many requests"),
    (UsageError, 422, "Bad request"),
    (LaglossError, 503, "Temporarily unavailable"),
)
"""The first that fits says how an error is answered."""


ROUTERS: Final[tuple[Callable[[Services], APIRouter], ...]] = (
    overview.router,
    series.router,
    consumer_lag.router,
    groups.router,
    coverage.router,
    taps.router,
    windows.router,
    messages.router,
    runs.router,
    reports.router,
    openslo.router,
    incidents.router,
    health.router,
    audit.router,
)


def create_api(services: Services) -> FastAPI:
    """Create the read API with every route, and the actions of users; paths are below `/api/v1`."""
    # FastAPI's own /docs would load scripts from a CDN
    api = FastAPI(title="lagloss", version="1", docs_url=None, redoc_url=None)
    problems.install(api, "the dashboard")

    @api.exception_handler(LaglossError)
    async def on_error(_: Request, error: LaglossError) -> Response:
        status, title = next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))
        return Problem(status, title, str(error)).response()

    async def on_away(_: Request, error: Exception) -> Response:
        _log.error("query_failed", error=type(error).__name__)
        return problems.busy("PostgreSQL did not respond").response()

    for kind in AWAY:
        api.add_exception_handler(kind, on_away)

    @api.exception_handler(DataError)
    async def on_bad_value(request: Request, error: DataError) -> Response:
        """Bodies are checked before; parameters of any text are not."""
        values = {**request.query_params, **request.path_params}
        name = next((name for name, value in values.items() if not is_storable(str(value))), None)
        detail = NOT_STORABLE if name else f"expected values that PostgreSQL can store: {type(error.orig).__name__}"
        return Problem(422, "Bad parameter", detail, field=name).response()

    for router in ROUTERS:
        api.include_router(router(services))
    return api

"""The Dash app on its FastAPI server."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import structlog
from dash import Dash
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from dashboard import callbacks, page
from dashboard.runbook_page import runbook_html
from lagloss.runbooks import KINDS
from lagloss.store import Store

_log = structlog.get_logger("lagloss.dashboard")


def create_server(store: Store) -> FastAPI:
    """The server: the page at `/`, runbooks at `/runbooks/KIND`, `/healthz` (200, or 503 while PostgreSQL does not
    answer)."""
    # FastAPI's own /docs would load scripts from a CDN
    server = FastAPI(title="lagloss dashboard", docs_url=None, redoc_url=None, openapi_url=None)

    @server.get("/healthz")
    async def healthz(response: Response) -> dict[str, Any]:
        problem = await asyncio.to_thread(_database_problem, store)
        if problem is not None:
            response.status_code = 503
            return {"status": "database unreachable", "detail": problem}
        return {"status": "ok"}

    @server.get("/runbooks/{kind:path}")
    async def runbook(kind: str) -> HTMLResponse:
        if kind not in KINDS:
            raise HTTPException(404, f"no runbook is called {kind}; there are {', '.join(KINDS)}")
        return HTMLResponse(runbook_html(kind))

    app = Dash(
        "dashboard",
        server=server,  # type: ignore[arg-type]  # declared as for Flask; a FastAPI instance is documented
        title="lagloss",
        update_title=None,  # type: ignore[arg-type]  # None: the title does not flicker at each refresh
        serve_locally=True,
        compress=True,
        on_error=_log_and_raise,
        description="How late is a streaming pipeline's data, minute by minute, and was any lost?",
    )
    app.layout = page.frame()
    callbacks.register(app, store)
    return server


def _database_problem(store: Store) -> str | None:
    try:
        with store.engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        return type(error).__name__
    return None


def _log_and_raise(error: Exception) -> NoReturn:
    """Dash's FastAPI backend answers 500 without a word in the log."""
    _log.error("callback_failed", exc_info=error)
    raise error

"""What a page says, in the first answer of the server: verdict, numbers and tables as they stand, as plain HTML.

Dash's scripts take a second or more until they have drawn a page. Until then, and without scripts for good, this is
what is read; assets/first_answer.js takes it away once the page itself says the same.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from html import escape
from typing import Any, Final

import structlog
from dash.exceptions import PreventUpdate
from starlette.types import ASGIApp, Receive, Scope, Send

from dashboard.pages import directory, notices, shell
from dashboard.pages.notices import Failed
from dashboard.pages.page import Page
from dashboard.pages.printing import html_of
from dashboard.queries.services import Services
from dashboard.request.current_user import asking
from dashboard.request.links import Address

LONGEST_S: Final = 3.0
"""The page is sent without it where its parts take longer to read."""
_first: ContextVar[str] = ContextVar("first_answer", default="")
_log = structlog.get_logger("lagloss.dashboard")


def first_answer() -> str:
    """Return the HTML to put into the page that is being answered; empty where there is none."""
    return _first.get()


class FirstAnswers:
    """An ASGI application around the dashboard's. Before a page is answered, it reads what the page says first."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = directory.find(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if match is None or match[0].read is None:
            await self._app(scope, receive, send)
            return
        address = Address.parse(scope["path"], "?" + scope["query_string"].decode("latin-1"))
        token = _first.set(await self._read(*match, address))
        try:
            await self._app(scope, receive, send)
        finally:
            _first.reset(token)

    async def _read(self, page: Page[Any], params: dict[str, str], address: Address) -> str:
        """Return the page's first parts as HTML. What fails or takes long is left to the page, which says so."""
        try:
            reading = self._services.threads.read(notices.attempt, _drawn, self._services, page, params, address)
            drawn = await asyncio.wait_for(reading, LONGEST_S)
        except PreventUpdate:  # the path is of a page, but names nothing that could be read
            return ""
        except Exception as error:
            _log.warning("first_response_failed", page=page.name, exc_info=error)
            return ""
        return "" if isinstance(drawn, Failed) else drawn


def _drawn(services: Services, page: Page[Any], params: dict[str, str], address: Address) -> str:
    parts = page.first(services, params, address, time.time())
    nav = html_of(shell.nav(page.elsewhere(address), page.name, asking()))
    return (
        f'<div id="first-answer" data-until="{escape(page.filled)}">'
        f'<header><span class="wordmark">lagloss</span><nav aria-label="pages">{nav}</nav></header>'
        f"<main>{html_of(parts)}</main></div>"
    )

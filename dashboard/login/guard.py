"""The guard around the whole dashboard: no request reaches it but of a person who may look."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard.login.admission import Admission
from dashboard.login.headers import SecureHeaders
from dashboard.login.kinds import LOGIN_PATH, LoginKind
from dashboard.login.next_path import wanted
from dashboard.login.pages import refusal_page
from dashboard.request.current_user import Person
from lagloss_server.net.health_server import READY_S
from lagloss_server.net.origins import Origins, is_navigation
from lagloss_server.net.problem_details import Problem, busy
from lagloss_server.store.engine import AWAY

READY_PATHS: Final = frozenset({"/healthz", "/readyz"})
LIVE_PATH: Final = "/livez"
METRICS_PATH: Final = "/metrics"
"""Counts of requests and the process: nothing of pipelines or people."""
_OPEN_PATHS: Final = frozenset({LIVE_PATH, METRICS_PATH})
"""The same for everybody: to look up who asks might have to wait for PostgreSQL."""
_POLICY_VIOLATION: Final = 1008
"""RFC 6455, 7.4.1. Before the handshake is answered, the server makes it a 403."""
_log = structlog.get_logger("lagloss.dashboard")


class Guard:
    """An ASGI application around another. `dashboard.request.current_user` has the user."""

    def __init__(
        self, app: ASGIApp, login: LoginKind, admission: Admission, origins: Origins, headers: SecureHeaders
    ) -> None:
        self._app = app
        self._login = login
        self._admission = admission
        self._origins = origins
        self._headers = headers
        self._pages = Router(routes=list(login.routes))
        self._open_paths = {route.path for route in login.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, self._headers.added(scope, send))
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        try:
            self._origins.check(connection)
            if scope["path"] in self._open_paths:
                self._admission.begin(connection)
                await self._pages(scope, receive, send)
                return
            person = None if scope["path"] in _OPEN_PATHS else await self._person(connection)
        except SQLAlchemyError as error:
            _log.error("login_unavailable", error=type(error).__name__)
            fault = Problem(500, "Internal error of the dashboard", f"{type(error).__name__}; see the dashboard's log")
            problem = (
                busy("PostgreSQL is unavailable, so your login cannot be checked") if isinstance(error, AWAY) else fault
            )
            await self._refusal(connection, problem)(scope, receive, send)
        except Problem as problem:
            await self._refusal(connection, problem)(scope, receive, send)
        else:
            if person is not None or scope["path"] in _OPEN_PATHS:
                await self._app(scope, receive, send)
            elif scope["path"] in READY_PATHS:
                await self._health_for_strangers(scope, receive, send)
            else:
                await self._to_login(connection)(scope, receive, send)

    async def _person(self, connection: HTTPConnection) -> Person | None:
        """Return the user of a request, and set them as the current one. Readiness is public, so errors of
        identification are ignored there."""
        is_probe = connection.scope["path"] in READY_PATHS
        try:
            async with asyncio.timeout(READY_S if is_probe else None):
                return await self._recognised(connection)
        except (Problem, SQLAlchemyError, TimeoutError):
            if is_probe:
                return None
            raise

    async def _recognised(self, connection: HTTPConnection) -> Person | None:
        person = await self._login.person(connection)
        if person is not None:
            await self._admission.admit(connection, person)
        return person

    def _to_login(self, connection: HTTPConnection) -> Response:
        if LOGIN_PATH in self._open_paths and is_navigation(connection):
            return RedirectResponse(f"{LOGIN_PATH}?next={quote(wanted(connection), safe='')}", HTTPStatus.SEE_OTHER)
        return self._refusal(connection, self._login.unauthorised(connection))

    def _refusal(self, connection: HTTPConnection, problem: Problem) -> Response:
        wants_page = "text/html" in connection.headers.get("accept", "")
        return refusal_page(problem) if wants_page else problem.response()

    async def _health_for_strangers(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer only whether all is well: details would reveal what runs behind."""
        status = HTTPStatus.SERVICE_UNAVAILABLE.value

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]

        await self._app(scope, receive, note)
        summary = {"status": "ok" if status < HTTPStatus.BAD_REQUEST else "unavailable"}
        await JSONResponse(summary, status)(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check each message of a WebSocket, which lives for hours: its user must still be allowed to look."""
        connection = HTTPConnection(scope)
        is_open = await self._admits(connection)
        if not is_open:
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return

        async def close() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

        async def guarded_receive() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive" and not await self._admits(connection):
                await close()
                return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
            return message

        async def guarded_send(message: Message) -> None:
            if message["type"] == "websocket.send" and not await self._admits(connection):
                await close()
            elif is_open:
                await send(message)

        await self._app(scope, guarded_receive, guarded_send)

    async def _admits(self, connection: HTTPConnection) -> bool:
        """Return whether a WebSocket's user may look, and set them as the current user."""
        try:
            self._origins.check(connection)
            return await self._recognised(connection) is not None
        except (Problem, SQLAlchemyError):
            return False

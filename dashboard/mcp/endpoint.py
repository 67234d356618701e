"""The protocol over HTTP, as a part of the dashboard's server: each request is a POST that stands by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from dashboard.mcp.server import create_server
from dashboard.queries.services import Services
from lagloss_server.net.problem_details import Problem

_NOT_POST: Final = Problem(
    405,
    "Method not allowed",
    "expected POST with a message of the protocol; see docs/mcp.md",
    headers={"Allow": "POST"},
)


class McpEndpoint:
    """An ASGI application, which answers while `running`. Login, Host, Origin and the size of bodies are checked by
    what is around it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests for as long as the block lasts."""
        # without sessions: any process of the dashboard can answer, and each request has its own caller
        manager = StreamableHTTPSessionManager(create_server(self._services), json_response=True, stateless=True)
        async with manager.run():
            self._manager = manager
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._manager is not None, "the server's lifespan runs it"
        if scope["method"] == "POST":
            await self._manager.handle_request(scope, receive, send)
        else:  # clients try GET for a stream of events, which needs a session
            await _NOT_POST.response()(scope, receive, send)

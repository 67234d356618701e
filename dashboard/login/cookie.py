"""The cookie that holds a session's token."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from dashboard.login.origins import origin_of
from dashboard.login.sessions import Sessions
from dashboard.queries.services import Services
from dashboard.request.current_user import Person
from lagloss_server.settings import Settings

_CACHE_S: Final = 2.0
"""A page asks for a dozen things at once; a session ended by another process lasts this much longer."""
_CACHE_SIZE: Final = 10_000


def is_https(settings: Settings) -> bool:
    """Return whether browsers reach the dashboard by HTTPS."""
    return origin_of(settings.dashboard_url).startswith("https:")


def cookie_name(name: str, settings: Settings) -> str:
    """With HTTPS, browsers take a cookie of this prefix only from this very host, by HTTPS."""
    return f"__Host-{name}" if is_https(settings) else name


class SessionCookie:
    """Knows who asks by their cookie, and sets and clears it."""

    def __init__(self, services: Services, sessions: Sessions) -> None:
        self._threads = services.threads
        self._sessions = sessions
        self._name = cookie_name("lagloss", services.settings)
        self._secure = is_https(services.settings)
        self._known: dict[str, tuple[Person, float]] = {}

    async def person(self, connection: HTTPConnection) -> Person | None:
        """Return the user logged in by this request's cookie."""
        token = connection.cookies.get(self._name)
        if not token:
            return None
        person, until = self._known.get(token, (None, 0.0))
        if time.monotonic() < until:
            return person
        self._known.pop(token, None)
        person = await self._threads.read(self._sessions.find, token)
        if person is not None:
            if len(self._known) >= _CACHE_SIZE:
                self._known.clear()
            self._known[token] = (person, time.monotonic() + _CACHE_S)
        return person

    async def hand_out(self, connection: HTTPConnection, response: Response, token: str) -> None:
        """Give the browser its new session, and ends the one that it had."""
        await self._end(connection)
        response.set_cookie(
            self._name,
            token,
            max_age=int(self._sessions.lifetime.longest.total_seconds()),
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )

    async def take_back(self, connection: HTTPConnection, response: Response) -> None:
        """End the browser's session."""
        await self._end(connection)
        response.delete_cookie(self._name, path="/", secure=self._secure, httponly=True, samesite="lax")

    async def _end(self, connection: HTTPConnection) -> None:
        token = connection.cookies.get(self._name)
        if token:
            await self._threads.read(self._sessions.end, token)
            self._known.pop(token, None)

"""Login by a name and a password that lagloss keeps: a form for people, HTTP Basic for scripts."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

import structlog
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from dashboard.login.admission import Admission
from dashboard.login.groups import listed
from dashboard.login.kinds import LOGIN_PATH, LOGOUT_PATH, unauthorised
from dashboard.login.next_path import checked_next
from dashboard.login.pages import password_page
from dashboard.login.sessions import Lifetime, SessionCookie, Sessions
from dashboard.queries.services import Services
from dashboard.request.current_user import Person
from lagloss_server.net.clients import client, guesser, parse_networks
from lagloss_server.net.origins import is_browser
from lagloss_server.net.problem_details import Problem, too_large
from lagloss_server.store import users

_MAX_FORM_BYTES: Final = 16_384
_MAX_FIELDS: Final = 8
_AT_A_TIME: Final = 2
"""Each check of a password takes 64 MiB and a core for about 50 ms."""
_log = structlog.get_logger("lagloss.dashboard")


class LocalLogin:
    """Users are in PostgreSQL (`lagloss users`)."""

    def __init__(self, services: Services, admission: Admission) -> None:
        self._store = services.store
        self._admission = admission
        self._sessions = Sessions(services.store, users.LOCAL_LOGIN, Lifetime.of(services.settings))
        self._cookie = SessionCookie(services, self._sessions)
        self._trusted = parse_networks(listed(services.settings.proxy_trusted))
        self._throttle = Throttle()
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    @property
    def routes(self) -> Sequence[Route]:
        return (
            Route(LOGIN_PATH, self._show_form, methods=["GET"]),
            Route(LOGIN_PATH, self._log_in, methods=["POST"]),
            Route(LOGOUT_PATH, self._log_out, methods=["POST"]),
        )

    async def person(self, connection: HTTPConnection) -> Person | None:
        person = await self._cookie.person(connection)
        headers = None if person else _basic_credentials(connection)
        if headers is None:
            return person
        user = await self._recognise(connection, *headers)
        return _person(user)

    def unauthorised(self, connection: HTTPConnection) -> Problem:
        # asked for Basic, a browser would open a window of its own and keep what is typed there
        challenge = "Session" if is_browser(connection.headers) else "Basic"
        return unauthorised(f"log in at {LOGIN_PATH}; scripts use HTTP Basic", challenge)

    async def _show_form(self, request: Request) -> Response:
        return password_page(checked_next(request.query_params.get("next", "")))

    async def _log_in(self, request: Request) -> Response:
        form = await _read_form(request)
        name, next_path = form.get("name", ""), checked_next(form.get("next", ""))
        try:
            user = await self._recognise(request, name, form.get("password", ""))
            self._admission.teams_of(_person(user))
            token = await asyncio.to_thread(self._begin, user)
        except Problem as problem:
            return password_page(next_path, name=name, problem=problem)
        response = RedirectResponse(next_path, 303)
        await self._cookie.hand_out(request, response, token)
        return response

    async def _log_out(self, request: Request) -> Response:
        response = RedirectResponse(LOGIN_PATH, 303)
        await self._cookie.take_back(request, response)
        return response

    async def _recognise(self, connection: HTTPConnection, name: str, password: str) -> users.User:
        """Return the user.

        Raises:
            Problem: 401 for a wrong name or password, 429 after too many.
        """
        address = client(connection, self._trusted)
        async with self._turns:
            await self._throttle.check(name, address)
            user = await asyncio.to_thread(users.recognise, self._store, name, password)
            if user is None:
                await self._throttle.count(name, address)
                _log.warning("login_failed", address=address)  # no name: passwords are typed into its field, too
                raise _wrong()
        return user

    def _begin(self, user: users.User) -> str:
        """Return a session of the user, unless they were changed since their password was checked."""
        with self._store.engine.begin() as connection:
            session = users.hold(connection, user)
            if session is None:
                raise _wrong()
            return self._sessions.begin(connection, _person(session))


def _person(user: users.User) -> Person:
    return Person(user.name, user.role, frozenset(user.groups))


def _wrong() -> Problem:
    return unauthorised("name or password is wrong", "Session")


def _basic_credentials(connection: HTTPConnection) -> tuple[str, str] | None:
    """Name and password of an HTTP request by HTTP Basic (RFC 7617), in UTF-8."""
    scheme, _, text = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or connection.scope["type"] != "http":
        return None
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


async def _read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        Problem: 413 for a form too large to be ours, 400 for none at all.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise too_large(_MAX_FORM_BYTES)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise Problem(400, "Bad form", "expected the fields name, password and next, URL-encoded") from error


WINDOW_MINUTES: Final = 15
PER_ADDRESS: Final = 20
PER_NAME: Final = 100
"""Well above what one address may guess, so that no user can lock another out from one place."""

_KEPT_OF_NAME: Final = 64
"""No user's is longer; what strangers send is not kept at any length."""


class Throttle:
    """Counts wrong guesses, in this process. Right ones cost nothing."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(PER_ADDRESS, WINDOW_MINUTES, "address")
        self._per_name = RateLimitItemPerMinute(PER_NAME, WINDOW_MINUTES, "name")

    async def check(self, name: str, address: str) -> None:
        """Return whether another guess may be made.

        Raises:
            Problem: 429 with the time to wait.
        """
        for item, key in self._counters(name, address):
            if not await self._limiter.test(item, key):
                resets_at = (await self._limiter.get_window_stats(item, key)).reset_time
                wait_s = max(1, math.ceil(resets_at - time.time()))
                detail = f"too many wrong passwords; try again in {math.ceil(wait_s / 60)} min"
                raise Problem(429, "Too many attempts", detail, headers={"Retry-After": str(wait_s)})

    async def count(self, name: str, address: str) -> None:
        """Note a wrong guess."""
        for item, key in self._counters(name, address):
            await self._limiter.hit(item, key)

    def _counters(self, name: str, address: str) -> tuple[tuple[RateLimitItem, str], ...]:
        return (self._per_address, guesser(address)), (self._per_name, name.lower()[:_KEPT_OF_NAME])

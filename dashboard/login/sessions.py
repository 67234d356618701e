"""Sessions: who is logged in, kept in PostgreSQL under the hash of a token that only their browser has, in a cookie."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self, TypeVar

import structlog
from sqlalchemy import Connection, delete, insert, select, update
from starlette.requests import HTTPConnection
from starlette.responses import Response

from dashboard.login.groups import listed
from dashboard.queries.services import Services
from dashboard.request.current_user import Person
from lagloss_server.base.errors import TooManyRequests
from lagloss_server.base.settings import Settings
from lagloss_server.net.clients import client, guesser, parse_networks
from lagloss_server.net.origins import origin_of
from lagloss_server.net.problem_details import Problem
from lagloss_server.store import audit
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import SessionRow
from lagloss_server.store.store import Store
from lagloss_server.store.tokens import SECRET_BYTES, hash_secret
from lagloss_server.store.users import read_grants

T = TypeVar("T")
_SEEN_EVERY: Final = timedelta(minutes=1)
"""A request writes that there was one only if the last such note is older."""
MAX_SESSIONS: Final = 100
"""Of a person: a script that logs in each time has as many."""
_session: Final = table_of(SessionRow)
_log = structlog.get_logger("lagloss.dashboard")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a session lasts: without a request, and in any case."""

    idle: timedelta
    longest: timedelta

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(timedelta(hours=settings.session_idle_hours), timedelta(hours=settings.session_hours))

    def is_over(self, created_at: datetime, seen_at: datetime, now: datetime) -> bool:
        return now >= created_at + self.longest or now >= seen_at + self.idle


class Sessions:
    """The sessions of one kind of login: those of another are none here. Methods block."""

    def __init__(self, store: Store, login: str, lifetime: Lifetime) -> None:
        self._store = store
        self._login = login
        self.lifetime = lifetime

    def begin(self, connection: Connection, person: Person, now: datetime | None = None) -> str:
        """Log a person in; return the token, which cannot be read again. Sessions that are over are removed, and the
        oldest of a person who has `MAX_SESSIONS`."""
        now = now or datetime.now(UTC)
        is_over = (_session.c.created_at <= now - self.lifetime.longest) | (
            _session.c.seen_at <= now - self.lifetime.idle
        )
        connection.execute(delete(_session).where(is_over))
        own = select(_session.c.token_hash).where(_session.c.login == self._login, _session.c.name == person.name)
        oldest = own.order_by(_session.c.created_at.desc()).offset(MAX_SESSIONS - 1)
        connection.execute(delete(_session).where(_session.c.token_hash.in_(oldest)))
        token = secrets.token_urlsafe(SECRET_BYTES)
        connection.execute(
            insert(_session).values(
                token_hash=hash_secret(token),
                login=self._login,
                name=person.name,
                role=person.role,
                groups=sorted(person.groups),
                created_at=now,
                seen_at=now,
            )
        )
        _note(connection, "session.begin", person.name)
        return token

    def find(self, token: str, now: datetime | None = None) -> Person | None:
        """Return the user whose session has this token, unless it has ended, and note the time of use."""
        now = now or datetime.now(UTC)
        is_it = (_session.c.token_hash == hash_secret(token)) & (_session.c.login == self._login)
        with self._store.engine.begin() as connection:
            row = connection.execute(select(_session).where(is_it)).one_or_none()
            if row is None or self.lifetime.is_over(row.created_at, row.seen_at, now):
                return None
            if now >= row.seen_at + _SEEN_EVERY:
                connection.execute(update(_session).where(is_it).values(seen_at=now))
        try:
            role, groups = read_grants(row)
        except ValueError as error:  # a newer version's: what it lets them do is unknown
            _log.warning("session_unreadable", name=row.name, why=str(error))
            return None
        return Person(row.name, role, frozenset(groups))

    def end(self, token: str) -> None:
        """End the session of this token."""
        ended = delete(_session).where(_session.c.token_hash == hash_secret(token)).returning(_session.c.name)
        with self._store.engine.begin() as connection:
            name = connection.execute(ended).scalar_one_or_none()
            if name is not None:
                _note(connection, "session.end", name)


def _note(connection: Connection, action: Literal["session.begin", "session.end"], name: str) -> None:
    """Add to the audit trail what a person did from where this request comes from."""
    with audit.acting_as(replace(audit.acting(), name=name)):
        audit.note(connection, action, name)


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
        self._trusted = parse_networks(listed(services.settings.proxy_trusted))
        self._sessions = sessions
        self._name = cookie_name("lagloss", services.settings)
        self._secure = is_https(services.settings)
        self._known: dict[str, tuple[Person, float]] = {}

    async def person(self, connection: HTTPConnection) -> Person | None:
        """Return the user logged in by this request's cookie.

        Raises:
            Problem: 429, too many sessions are looked for from this address.
        """
        token = connection.cookies.get(self._name)
        if not token:
            return None
        person, until = self._known.get(token, (None, 0.0))
        if time.monotonic() < until:
            return person
        self._known.pop(token, None)
        person = await self._ask(connection, self._sessions.find, token)
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
            await self._ask(connection, self._sessions.end, token)
            self._known.pop(token, None)

    async def _ask(self, connection: HTTPConnection, work: Callable[[str], T], token: str) -> T:
        try:
            return await self._threads.session(guesser(client(connection, self._trusted)), work, token)
        except TooManyRequests as error:
            raise Problem(429, "Too many requests", str(error)) from None

"""Interface of every kind of login, and the one for a dashboard without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.routing import Route

from dashboard.request.current_user import LOCAL, Person
from lagloss_server.net.problem_details import Problem

LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"


class LoginKind(Protocol):
    """A way to know who asks."""

    @property
    def routes(self) -> Sequence[Route]:
        """Its pages, open to everybody. None: there is nothing that a stranger could do to become known."""

    async def person(self, connection: HTTPConnection) -> Person | None:
        """Return the user of a request; None for an unknown one.

        Raises:
            Problem: why they may not, or may not try again yet.
        """

    def unauthorised(self, connection: HTTPConnection) -> Problem:
        """Answer a request without a login that does not come from a browser."""


class NoLogin:
    """No login: a visitor of the loopback address has this machine anyway."""

    routes: Sequence[Route] = ()

    async def person(self, connection: HTTPConnection) -> Person | None:
        return LOCAL

    def unauthorised(self, connection: HTTPConnection) -> Problem:
        raise AssertionError("without a login every visitor is known")


def unauthorised(detail: str, challenge: str) -> Problem:
    """401 with what RFC 9110 asks for. A scheme that browsers do not know makes them ask nothing by themselves."""
    return Problem(401, "Not logged in", detail, headers={"WWW-Authenticate": f'{challenge} realm="lagloss"'})

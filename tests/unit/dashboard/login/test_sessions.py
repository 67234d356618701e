"""What cookies cost of which no one knows whose they are: their own address waits, and no one who is logged in."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.requests import HTTPConnection

from dashboard.login.sessions import SessionCookie, Sessions
from dashboard.queries.services import Services
from dashboard.request.current_user import Person, answer_for
from dashboard.request.threads import MAX_WAITING, Threads
from lagloss_server.base.settings import Settings
from lagloss_server.net.problem_details import Problem

ANN = Person("ann", "viewer")


class SlowSessions:
    """Sessions of which only Ann's is one; looks for others last until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def find(self, token: str) -> Person | None:
        if token == "ann":
            return ANN
        assert self.go_on.wait(20)
        return None

    end = find


def request(token: str, address: str) -> HTTPConnection:
    headers = [(b"cookie", f"lagloss={token}".encode()), (b"x-forwarded-for", address.encode())]
    return HTTPConnection({"type": "http", "client": ("10.0.0.1", 1), "headers": headers})


def test_cookies_that_no_session_has_hold_up_their_own_address_alone() -> None:
    async def go() -> None:
        threads, sessions = Threads(), SlowSessions()
        services = SimpleNamespace(threads=threads, settings=Settings(proxy_trusted="10.0.0.1"))
        cookie = SessionCookie(cast("Services", services), cast("Sessions", sessions))
        bogus = [
            asyncio.create_task(cookie.person(request(f"bogus-{number}", f"2001:db8::{number}")))
            for number in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        for refused in (cookie.person(request("ann", "2001:db8::1")), cookie._end(request("x", "2001:db8::1"))):
            with pytest.raises(Problem, match=f"waits for {MAX_WAITING} answers") as error:
                await refused
            assert error.value.status == 429
        assert await cookie.person(request("ann", "192.0.2.1")) is ANN
        answer_for(ANN)
        assert await threads.read(lambda: "answer") == "answer"
        sessions.go_on.set()
        assert await asyncio.gather(*bogus) == [None] * MAX_WAITING
        assert await cookie.person(request("ann", "2001:db8::1")) is ANN
        threads.close()

    asyncio.run(go())

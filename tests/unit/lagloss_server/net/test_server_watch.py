"""A watch of a server that hangs, fails or answers: only answers make it well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

import pytest

from lagloss_server.net import server_watch
from lagloss_server.net.server_watch import watching
from lagloss_server.turns import Turns


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"ASK_EVERY_S": 0.01, "PAUSE_S": 0.01, "ANSWER_LIMIT_S": 0.3}.items():
        monkeypatch.setattr(server_watch, name, seconds)


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Server:
    """Answers while `goes` is set, and hangs while it is not; refuses while `refuses`."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self.refuses = False
        self.connections = self.closed = 0

    def answers(self) -> Generator[None]:
        self.connections += 1
        try:
            while True:
                self.goes.wait(20)
                if self.refuses:
                    raise ConnectionRefusedError("db.corp refused")
                yield
        finally:
            self.closed += 1


def test_one_that_hangs_shows_and_heals_by_itself() -> None:
    server, turns = Server(), Turns()
    with watching(turns, {"PostgreSQL": server.answers}):
        until(lambda: turns.problem() is None)
        server.goes.clear()
        until(lambda: turns.problem() is not None)
        assert (turns.problem() or "").startswith("PostgreSQL has not answered for ")
        server.goes.set()
        until(lambda: turns.problem() is None)
    assert (server.connections, server.closed) == (1, 1)
    assert turns.problem() is None


def test_one_that_refuses_is_asked_anew_and_says_why() -> None:
    server, turns = Server(), Turns()
    server.refuses = True
    with watching(turns, {"Kafka": server.answers}):
        until(lambda: (turns.problem() or "").endswith(" s: db.corp refused"))
        until(lambda: server.connections > 1)
        server.refuses = False
        until(lambda: turns.problem() is None)
    assert server.connections == server.closed


def test_the_end_does_not_wait_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "CLOSE_S", 0.05)
    server = Server()
    server.goes.clear()
    began = time.monotonic()
    with watching(Turns(), {"PostgreSQL": server.answers}):
        until(lambda: server.connections == 1)
    assert time.monotonic() - began < 10
    server.goes.set()

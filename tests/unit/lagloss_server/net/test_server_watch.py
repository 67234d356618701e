"""A watch of a server that hangs, fails or answers: only answers make it well."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from lagloss_server.base.turns import Turns
from lagloss_server.net import server_watch
from lagloss_server.net.server_watch import postgresql, watching


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
        assert (turns.problem() or "").startswith("PostgreSQL has not responded for ")
        server.goes.set()
        until(lambda: turns.problem() is None)
    assert (server.connections, server.closed) == (1, 1)
    assert turns.problem() is None


def test_one_that_refuses_is_asked_anew_and_says_why() -> None:
    server, turns = Server(), Turns()
    server.refuses = True
    with capture_logs() as logs, watching(turns, {"Kafka": server.answers}):
        until(lambda: (turns.problem() or "").endswith(" s: db.corp refused"))
        until(lambda: server.connections > 1)
        server.refuses = False
        until(lambda: turns.problem() is None)
    assert server.connections == server.closed
    assert [(entry["event"], entry["server"], entry.get("trouble")) for entry in logs] == [
        ("server check failed", "Kafka", "db.corp refused"),
        ("server responds again", "Kafka", None),
    ]


def test_the_end_does_not_wait_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "CLOSE_S", 0.05)
    server = Server()
    server.goes.clear()
    began = time.monotonic()
    with watching(Turns(), {"PostgreSQL": server.answers}):
        until(lambda: server.connections == 1)
    assert time.monotonic() - began < 10
    server.goes.set()


class WireServer:
    """As much of PostgreSQL's protocol as `SELECT 1` needs; takes what comes and answers nothing while `goes` is not
    set, as a stopped server does."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = f"postgresql://u@127.0.0.1:{port}/x?sslmode=disable&gssencmode=disable&connect_timeout=2"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.goes.set()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        ready = _message(b"Z", b"I")
        with connection, suppress(OSError):
            connection.recv(10_000)  # the start
            self.goes.wait(20)
            connection.sendall(_message(b"R", struct.pack("!i", 0)) + ready)
            while connection.recv(10_000).startswith(b"Q"):
                self.goes.wait(20)
                connection.sendall(_message(b"C", b"SELECT 0\0") + ready)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


@pytest.fixture
def wire_server() -> Iterator[WireServer]:
    made = WireServer()
    yield made
    made.close()


def test_a_database_that_hangs_with_its_connection_open_shows_and_goes_on_with_the_same(
    wire_server: WireServer,
) -> None:
    turns = Turns()
    with watching(turns, {"PostgreSQL": postgresql(wire_server.url)}):
        until(lambda: turns.problem() is None)
        wire_server.goes.clear()
        until(lambda: turns.problem() is not None)
        wire_server.goes.set()
        until(lambda: turns.problem() is None)
    assert wire_server.connections == 1


def test_a_database_that_accepts_connections_and_no_more_is_not_well(wire_server: WireServer) -> None:
    turns = Turns()
    wire_server.goes.clear()
    with watching(turns, {"PostgreSQL": postgresql(wire_server.url)}):
        until(lambda: "timeout" in (turns.problem() or ""))
        wire_server.goes.set()
        until(lambda: turns.problem() is None)

"""The limits of the HTTP server: bodies, connections, clients that do not read, WebSockets."""

from __future__ import annotations

import asyncio
import gc
import re
import select
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise

import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import connect

from lagloss_server.net import http_server
from lagloss_server.net.http_server import BoundedBodies, HttpServer
from lagloss_server.ops.processes import choose_port
from tests.support.five_services import HOST, answer, in_thread

MIB = 1024 * 1024
HEAD = b"POST /length HTTP/1.1\r\nHost: x\r\n"
BLOCKED, RELEASED = threading.Event(), threading.Event()
"""/blocked sets the first and waits for the second, and the loop of the server with it."""


def application() -> FastAPI:
    app = FastAPI()

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/livez")
    async def live() -> str:
        return "ok"

    @app.get("/blocked")
    async def blocked() -> None:
        BLOCKED.set()
        RELEASED.wait(20)

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "slow"

    @app.post("/parsed")
    def parsed(body: dict[str, int]) -> int:
        return len(body)

    @app.post("/headers")
    async def headers(request: Request) -> list[str]:
        await request.body()
        return request.headers.keys()

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)

        return StreamingResponse(parts())

    @app.websocket("/ws")
    async def echo(channel: WebSocket) -> None:
        await channel.accept()
        while True:
            await channel.send_text(str(len(await channel.receive_text())))

    return app


@contextmanager
def serving() -> Iterator[tuple[HttpServer, int]]:
    port = choose_port("the server under test")
    server = HttpServer(application(), HOST, port, websockets=True)
    end = in_thread(server)
    until(lambda: server.started)
    try:
        yield server, port
    finally:
        end()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[HttpServer, int]]:
    with serving() as found:
        yield found


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def posted(port: int, *parts: bytes, pause_s: float = 0) -> bytes:
    received = b""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        with suppress(ConnectionError):  # it hangs up on who sends too much
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        while b"\r\n\r\n" not in received and (data := connection.recv(65_536)):
            received += data
    return received.partition(b"\r\n")[0]


def sized(size: int) -> bytes:
    return HEAD + f"Content-Length: {size}\r\n\r\n".encode()


@pytest.mark.parametrize(("size", "expected"), [(0, 200), (MIB, 200), (MIB + 1, 413)])
def test_a_body_has_one_mib_however_it_says_so(server: tuple[HttpServer, int], size: int, expected: int) -> None:
    assert str(expected).encode() in posted(server[1], sized(size), b"y" * size)
    assert str(expected).encode() in posted(server[1], chunked(size))


def test_a_trailer_does_not_become_a_header(server: tuple[HttpServer, int]) -> None:
    """It comes when the headers have been checked."""
    request = chunked(1).replace(b"/length", b"/headers").replace(b"X-Trailer", b"X-Forwarded-User")
    with socket.create_connection((HOST, server[1]), timeout=20) as connection:
        connection.sendall(request)
        assert b'["host","transfer-encoding"]' in connection.recv(65_536)


def test_a_slow_body_is_waited_for_only_while_it_comes_fast_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_S", 0.5)
    with serving() as (_, port):
        assert b" 408 " in posted(port, sized(100), b"begin")
        steady = [b"x" * 5_000] * 4  # 25,000 a second
        assert b" 200 " in posted(port, sized(20_000), *steady, pause_s=0.2)
        assert b" 408 " in posted(port, sized(20), *[b"x"] * 4, pause_s=0.1)


def test_bodies_of_many_requests_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_HELD_BYTES", 2 * MIB)
    with serving() as (server, port), ExitStack() as stack:
        bodies = server.config.app
        for number in (1, 2):
            connection = stack.enter_context(socket.create_connection((HOST, port)))
            connection.sendall(sized(MIB) + b"y" * (MIB - 1))
            until(lambda held=number * (MIB - 1): bodies.held_bytes == held)
        assert b" 503 " in posted(port, sized(MIB), b"y" * MIB)
        assert b" 200 " in posted(port, sized(0))
        stack.close()
        until(lambda: bodies.held_bytes == 0)
        assert b" 200 " in posted(port, sized(MIB), b"y" * MIB)


def test_a_client_that_reads_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STALLED_S", 1.0)
    with serving() as (server, port), socket.create_connection((HOST, port)) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: len(server.server_state.connections) == 1)
        until(lambda: not server.server_state.connections)


def test_a_client_that_reads_slowly_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STALLED_S", 1.5)
    with serving() as (_, port), socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            assert connection.recv(400_000)
            time.sleep(0.05)


def test_a_websocket_works_and_its_messages_are_bounded(server: tuple[HttpServer, int]) -> None:
    with connect(f"ws://{HOST}:{server[1]}/ws", max_size=None) as channel:
        channel.send("x" * (MIB - 100))
        assert channel.recv(10) == str(MIB - 100)
        channel.send("x" * (MIB + 1))
        with pytest.raises(ConnectionClosed) as error:
            channel.recv(10)
    assert error.value.rcvd is not None
    assert error.value.rcvd.code == 1009  # too big


def test_a_websocket_outlives_the_time_for_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.2)
    with serving() as (_, port), connect(f"ws://{HOST}:{port}/ws") as channel:
        time.sleep(2.5)  # the server looks once a second
        channel.send("x")
        assert channel.recv(10) == "1"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 160_000), max_size=6),
    in_chunks=st.booleans(),
)
def test_requests_are_answered_alike_however_they_are_cut(
    server: tuple[HttpServer, int], sizes: list[int], cuts: list[int], in_chunks: bool
) -> None:
    requests = b"".join(chunked(size) if in_chunks else sized(size) + b"y" * size for size in sizes)
    places = sorted({0, len(requests), *(cut % len(requests) for cut in cuts)})
    received = b""
    with socket.create_connection((HOST, server[1]), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in pairwise(places):
            connection.sendall(requests[begin:end])
        while len(answers := re.findall(rb"\r\n\r\n(\d+)(?=HTTP|$)", received)) < len(sizes):
            received += connection.recv(65_536)
    assert [int(answer) for answer in answers] == sizes


def test_requests_that_are_cut_off_before_their_answer_leave_no_traceback(
    server: tuple[HttpServer, int], caplog: pytest.LogCaptureFixture
) -> None:
    request = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
    for number, reset in ((1, True), (3, True), (30, False)):  # more than may wait are a 400, at once
        for _ in range(5):
            with socket.create_connection((HOST, server[1]), timeout=20) as connection:
                connection.sendall(request * number)
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    assert b" 400 " in answer(connection)
    until(lambda: not server[0].server_state.tasks)
    assert "Exception in ASGI application" not in caplog.text


def test_a_service_that_is_only_busy_answers_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(http_server, "PROBE_CONNECTIONS", 3)
    with serving() as (server, port), ExitStack() as stack:

        def connected(request: bytes) -> socket.socket:
            connection = stack.enter_context(socket.create_connection((HOST, port), timeout=20))
            connection.sendall(request)
            return connection

        busy = [connected(sized(100)) for _ in range(5)]
        until(lambda: sum(not connection.is_idle for connection in server.server_state.connections) == 5)
        for _ in range(2 * 3):  # those that ask for nothing make room for others
            connected(b"")
            assert b" 200 " in answered(port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            until(lambda: len(server.server_state.connections) <= 5 + 3)
        refused = answered(port, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 503 " in refused.partition(b"\r\n")[0]
        assert b"connection: close" in refused.lower()
        with pytest.raises((InvalidStatus, InvalidMessage, ConnectionError)):
            connect(f"ws://{HOST}:{port}/ws")
        busy[0].sendall(b"y" * 100)
        assert b" 200 " in busy[0].recv(65_536)
        assert b" 200 " in answered(port, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")  # in the place of one that is idle


def answered(port: int, request: bytes) -> bytes:
    with socket.create_connection((HOST, port), timeout=20) as connection:
        connection.sendall(request)
        return connection.recv(65_536)


def test_few_connections_wait_to_be_accepted(server: tuple[HttpServer, int]) -> None:
    """All of them are answered before a probe that comes after them."""
    with ExitStack() as stack:
        blocking = stack.enter_context(socket.create_connection((HOST, server[1]), timeout=20))
        stack.callback(RELEASED.set)
        blocking.sendall(b"GET /blocked HTTP/1.1\r\nHost: x\r\n\r\n")
        assert BLOCKED.wait(20)
        waiting = [stack.enter_context(socket.socket()) for _ in range(2 * http_server.BACKLOG)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex((HOST, server[1]))
        assert len(select.select([], waiting, [], 0.2)[1]) <= http_server.BACKLOG + 1


def test_garbage_is_collected_once_a_second_at_most() -> None:
    bodies, collected = BoundedBodies(application(), None), list[str]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            collected.append(phase)

    gc.disable()
    gc.callbacks.append(note)
    try:
        for _ in range(5):
            bodies._release(http_server.MAX_UNCOLLECTED_BYTES + 1)
        assert len(collected) == 1
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def test_bodies_that_were_refused_are_not_kept(server: tuple[HttpServer, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI leaves each in a cycle."""
    monkeypatch.setattr(http_server, "COLLECT_S", 0.0)
    gc.disable()
    try:
        for _ in range(30):
            posted(server[1], chunked(2 * MIB).replace(b"/length", b"/parsed"))
        parts = (part for each in gc.get_objects() if type(each) in (list, dict) for part in _parts(each))
        assert sum(len(part) for part in parts if isinstance(part, bytes)) < http_server.MAX_UNCOLLECTED_BYTES + 2 * MIB
    finally:
        gc.enable()


def _parts(container: list[object] | dict[object, object]) -> Iterable[object]:
    return list(container.values()) if isinstance(container, dict) else list(container)


def chunked(size: int) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (n, b"y" * n) for n in (size // 2, size - size // 2) if n)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\nX-Trailer: y\r\n\r\n"

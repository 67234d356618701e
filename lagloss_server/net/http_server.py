"""The HTTP server of every service: uvicorn, with limits for clients that take more than their share.

A request's head and body are limited in size and time, an answer has to be read, and connections are limited in number.
What is refused here is counted (`exposition.HTTP_REFUSED`): the service does not see it.
No header says where a request comes from: what a proxy writes there is read by those who know the proxy
(`lagloss_server.net.clients`).
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Literal

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lagloss.errors import EXIT_UNREACHABLE
from lagloss_server.base import ending
from lagloss_server.net.exposition import HTTP_REFUSED
from lagloss_server.net.problem_details import Problem, busy, too_large

MAX_HEAD_BYTES: Final = 16 * 1024
"""Limit of request line and headers, and of anything else that brings a request no further, such as trailers."""
MAX_BODY_BYTES: Final = 1024 * 1024
MAX_HELD_BYTES: Final = 32 * 1024 * 1024
"""Limit of the bodies of all requests in progress."""
MAX_UNCOLLECTED_BYTES: Final = 8 * 1024 * 1024
"""Size of the bodies of ended requests after which garbage is collected. FastAPI leaves a refused body in a cycle of an
exception and its frame, which Python counts as one object of thousands."""
COLLECT_S: Final = 1.0
"""Shortest time between two of these collections: each holds up all requests."""
MAX_PIPELINED: Final = 8
"""Limit of the requests of a connection that wait for the answer to an earlier one; browsers and proxies send none."""
HEAD_S: Final = 10.0
"""From the connection, or the first byte of a further request, to the end of the head."""
BODY_S: Final = 10.0
MIN_BODY_BYTES_PER_S: Final = 10_000
"""A body may take `BODY_S`, and a second more for this many bytes; while the application computes, no time counts."""
STALLED_S: Final = 30.0
"""An answer of which the client reads nothing for this long is given up."""
KEEP_ALIVE_S: Final = 5
STOP_S: Final = 3
"""Time for requests in progress at the end: browsers keep a WebSocket open."""
_OPEN_FILES: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
MAX_CONNECTIONS: Final = 1_000 if _OPEN_FILES == resource.RLIM_INFINITY else min(1_000, _OPEN_FILES // 2)
"""Half of the files that the process may open, at most: the others are for Kafka and PostgreSQL."""
PROBE_CONNECTIONS: Final = 32
"""Connections beyond `MAX_CONNECTIONS`, for probes alone: a service that is only busy must not be restarted as dead."""
PROBE_PATHS: Final = frozenset({"/livez", "/readyz", "/healthz"})
BACKLOG: Final = 128
"""Connections that wait to be accepted. Each is answered before a later one, a probe's too, though its client may have
gone: uvicorn's 2,048 of a flood would take minutes."""
_TICKS: Final = 10
"""uvicorn ticks each 0.1 s."""

Refusal = Literal[
    "head", "slow head", "malformed", "pipelined", "connections", "body", "slow body", "bodies", "unread answer"
]
_BODY_REFUSALS: Final[dict[int, Refusal]] = {413: "body", 408: "slow body", 503: "bodies"}


def _count(reason: Refusal) -> None:
    HTTP_REFUSED.labels(reason).inc()


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's faster HTTP protocol, with bounds on what a client can make it keep."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_idle = True
        """No request is in progress."""
        self.idle_since = self.loop.time()
        """When it began to wait for a request, on the loop's clock."""
        self.head_since: float | None = self.idle_since
        """Since when the rest of a head is due; None while a request is in progress, and between requests."""
        self.resumed_at = 0.0
        """When most of what there was to send had been sent, on the loop's clock."""
        self._is_in_head = self._is_in_message = False
        self._unanswered = deque[RequestResponseCycle]()
        self._gets_on = False
        self._useless_bytes = 0
        """Received since the request last got on."""
        self._refusal: Refusal = "malformed"
        """Why the next 400 is answered."""
        self.is_for_probes = False
        """It came when `MAX_CONNECTIONS` others had requests in progress."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn's limit_concurrency would answer 503 to everybody, probes too, while one client holds that many
        beyond = len(self.connections) - MAX_CONNECTIONS
        if beyond > 0:
            others = (
                connection
                for connection in self.connections
                if isinstance(connection, BoundedHttp) and connection is not self
            )
            idle = [connection for connection in others if connection.is_idle and not connection.transport.is_closing()]
            ordinary = [connection for connection in idle if not connection.is_for_probes]
            if not ordinary:
                self.is_for_probes, self.app = True, self._answer_probe
            if ordinary or beyond > PROBE_CONNECTIONS:
                min(ordinary or idle, key=lambda connection: connection.idle_since, default=self).transport.abort()
                _count("connections")

    async def _answer_probe(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBE_PATHS:
            await self.config.loaded_app(scope, receive, send)
            return
        _count("connections")
        problem = busy("too many requests are in progress; send again later")
        problem.headers["Connection"] = "close"
        await problem.response()(scope, receive, send)

    def handle_websocket_upgrade(self) -> None:
        if self.is_for_probes:
            _count("connections")
            self.transport.abort()
        else:
            super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        _count(self._refusal)
        super().send_400_response(msg)
        self._give_up()

    def _give_up(self) -> None:
        """Have no answer written any more. uvicorn does so for the newest request only: each other one would be an
        exception in the log, with its traceback."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        # In pieces: the 256 kB that may come at a time would be parsed whole before anything could be counted.
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:  # now a WebSocket's
                return
            piece = data[start : start + MAX_HEAD_BYTES]
            self._gets_on = False
            super().data_received(piece)
            self._useless_bytes = 0 if self._gets_on else self._useless_bytes + len(piece)
            if self._useless_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refusal = "head"
                self.send_400_response("Request line and headers are too large")
        if self.is_idle and self.head_since is None:
            self.head_since = self.loop.time()

    def resume_writing(self) -> None:
        self.resumed_at = self.loop.time()
        super().resume_writing()

    def on_message_begin(self) -> None:
        self._is_in_head = self._is_in_message = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # trailers follow when the headers were checked, and must not become some of them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refusal = "head"
            raise ValueError("request line and headers are too large")  # the parser makes it a 400
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = "pipelined"
            raise ValueError("too many pipelined requests")
        self._is_in_head, self._gets_on, self.is_idle, self.head_since = False, True, False, None
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # else it becomes a WebSocket
            self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._gets_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message, self._gets_on = False, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        self.is_idle, self.idle_since = self.cycle.response_complete, self.loop.time()
        self.head_since = self.idle_since if self._is_in_message else None  # the rest of its body is due, too


class HttpServer(uvicorn.Server):
    """A service's server; `run` returns at SIGTERM and SIGINT, in another thread than the main one at `should_exit`.

    Args:
        max_body_bytes: limit of a body; None: the application has limits of its own.
        keep_alive_s: time that a connection is kept between two requests.
        websockets: whether the application has any.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        max_body_bytes: int | None = MAX_BODY_BYTES,
        keep_alive_s: int = KEEP_ALIVE_S,
        websockets: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                BoundedBodies(app, max_body_bytes),
                host=host,
                port=port,
                http=BoundedHttp,
                ws="auto" if websockets else "none",
                ws_max_size=MAX_BODY_BYTES,
                workers=1,  # whatever WEB_CONCURRENCY says
                log_level="warning",
                log_config=None,  # its lines go the way of all others
                access_log=False,
                server_header=False,
                proxy_headers=False,  # FORWARDED_ALLOW_IPS would let clients choose their address
                backlog=BACKLOG,
                timeout_keep_alive=keep_alive_s,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._unsent: dict[Any, tuple[int, float]] = {}
        """By connection the bytes that its client has not read, and when it last read any."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        gc.freeze()  # modules and caches of the start: going through them takes most of the time of a collection
        with suppress(KeyboardInterrupt):  # uvicorn ends by the signal that it got
            super().run(*args, **kwargs)
        if not self.started:
            sys.exit(EXIT_UNREACHABLE)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        ending.start_ending(ending.ENDING_S)  # the loop takes the bytes by which `end_in_time` is told of signals
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            self._end_overdue(list(self.server_state.connections), now)
        return await super().on_tick(counter)

    def _end_overdue(self, connections: Iterable[Any], now: float) -> None:
        """Close connections whose client sends no head, or reads no answer."""
        before, self._unsent = self._unsent, {}
        for connection in connections:
            if (
                isinstance(connection, BoundedHttp)
                and connection.head_since is not None
                and now - connection.head_since > HEAD_S
            ):
                if not connection.transport.is_closing():
                    _count("slow head")
                connection.transport.close()
            unsent = connection.transport.get_write_buffer_size()
            if unsent:
                was, since = before.get(connection, (unsent + 1, now))
                self._unsent[connection] = (unsent, now if unsent < was else max(since, _read_at(connection, now)))
                if now - self._unsent[connection][1] > STALLED_S:
                    _count("unread answer")
                    connection.transport.abort()  # closed, it would wait for the client still


def _read_at(connection: Any, now: float) -> float:
    """Return when the client is known to have read something."""
    if isinstance(connection, BoundedHttp):
        return connection.resumed_at
    return 0.0 if connection.transport.is_closing() else now  # a WebSocket's pings notice it while that is open


class BoundedBodies:
    """An ASGI application around another that gives it no more of a body than allowed, and only while it comes.

    What the application answers once its body was refused is dropped: it was not shown all of it.
    """

    def __init__(self, app: ASGIApp, max_bytes: int | None) -> None:
        self._app = app
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._uncollected_bytes = 0
        self._collected_at = -COLLECT_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(self, scope, receive)
        is_answered = False

        async def answer(message: Message) -> None:
            nonlocal is_answered
            if body.refusal is None or is_answered:
                is_answered = True
                await send(message)

        try:
            if body.refusal is None:
                await self._app(scope, body.receive, answer)
        except Exception:
            if body.refusal is None:  # else it is the application's, whose body ended early
                raise
        finally:
            self._release(body.size)
            if body.refusal is not None:
                _count(_BODY_REFUSALS[body.refusal.status])
        if body.refusal is not None and not is_answered:
            await body.refusal.response()(scope, receive, send)

    def _release(self, size: int) -> None:
        self.held_bytes -= size
        self._uncollected_bytes += size
        if self._uncollected_bytes > MAX_UNCOLLECTED_BYTES and time.monotonic() >= self._collected_at + COLLECT_S:
            gc.collect()
            self._uncollected_bytes, self._collected_at = 0, time.monotonic()


class _Body:
    """The body of one request as its application receives it."""

    def __init__(self, bounds: BoundedBodies, scope: Scope, receive: Receive) -> None:
        self._bounds = bounds
        self._receive = receive
        self._is_complete = False
        self._waited_s = 0.0
        self.size = 0
        announced = next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
        self.refusal = self._refusal_of(announced)

    async def receive(self) -> Message:
        if self._is_complete and self.refusal is None:
            return await self._receive()  # it tells when the client has gone, in its own time
        began = time.monotonic()
        try:
            if self.refusal is None:
                async with asyncio.timeout(BODY_S + self.size / MIN_BODY_BYTES_PER_S - self._waited_s):
                    message = await self._receive()
                self._take(message)
        except TimeoutError:
            detail = f"expected at least {MIN_BODY_BYTES_PER_S} bytes per second"
            self.refusal = Problem(408, "Request body too slow", detail, headers={"Connection": "close"})
        self._waited_s += time.monotonic() - began
        return message if self.refusal is None else {"type": "http.disconnect"}

    def _take(self, message: Message) -> None:
        received = len(message.get("body", b""))
        self.size += received
        self._bounds.held_bytes += received
        self._is_complete = not message.get("more_body", False)
        self.refusal = self._refusal_of(self.size)

    def _refusal_of(self, size: int) -> Problem | None:
        max_bytes = self._bounds.max_bytes
        if max_bytes is None or size == 0:
            return None
        if size > max_bytes:
            return too_large(max_bytes)
        is_full = self._bounds.held_bytes > MAX_HELD_BYTES
        return busy("too many request bodies are being read; send again later") if is_full else None

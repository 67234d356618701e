"""ASGI middleware: each HTTP request to a service is a message, in with its last byte, out with the response.

    app.add_middleware(BeaconMiddleware, emitter=emitter)

Plain ASGI, for FastAPI, Starlette and others.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final, Literal

from lagloss.checksums import Checksums, Payload
from lagloss.identity import Carrier, Identities, Missing, Source, from_headers, recorded_traceparent
from lagloss.kafka.in_flight import InFlightMessage, current_identity, handling_now
from lagloss.sdk.emitter import Emitter

__all__ = ["BeaconMiddleware", "current_identity"]

MAX_BODY_BYTES: Final = 1_048_576
NO_RESPONSE: Final = "no response"
"""Reason of the `filtered` beacon when no response was sent."""

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class BeaconMiddleware:
    """ASGI middleware that sends `in` at the last byte of a request and an exit beacon at the first byte of the
    response.

    In between, the message is in flight. A response of 400 or more is `filtered`, with the reason `http 422`, for
    example; an exception gives the reason `http 500`, a missing response `no response`. Closes the emitter when the
    server shuts down.

    At the first node, a message's trace is that of the header `traceparent`, else of OpenTelemetry's active span.

    Args:
        app: the application.
        emitter: of this node; of a KafkaNode, `node.emitter`.
        success: the meaning of a response below 400: `"out"` of this node, or `"nothing"` if a producer of the node
            reports the `out` once the next topic has the message.
        to: the next node, if there are several.
        paths: a regular expression that matches the whole path of requests that are messages.
        methods: their methods.
        identity: finds a message's id and event time. Unless it is `from_headers`, the body is read whole before the
            application is called, so that it can be searched.
        missing: how to treat a request without identity; it reaches the application in any case.
        max_body_bytes: a larger body is not searched.
        checksum: send the CRC-32C of the body with `in`, and if `True` with `out`, too: for a service that passes the
            body on unchanged. `"in"`: one that sends something else on. Needs the extra `checksum`.

    Raises:
        ValueError: for an unknown `missing`.
        ImportError: for `checksum` without its extra.
    """

    def __init__(
        self,
        app: App,
        emitter: Emitter,
        *,
        success: Literal["out", "nothing"] = "out",
        to: str | None = None,
        paths: str = ".*",
        methods: Collection[str] = ("POST", "PUT", "PATCH"),
        identity: Source = from_headers,
        missing: Missing = "skip",
        max_body_bytes: int = MAX_BODY_BYTES,
        checksum: bool | Literal["in"] = False,
    ) -> None:
        self._checksums = Checksums() if checksum else None
        self._passes_on = checksum is True
        self.app = app
        self.emitter = emitter
        self.identities = Identities(identity, missing, first=emitter.first, reads_traces=emitter.keeps_traces)
        self._reports_out = success == "out"
        self._to = to
        self._paths = re.compile(paths)
        self._methods = frozenset(method.upper() for method in methods)
        self._max_body_bytes = max_body_bytes

    @property
    def skipped(self) -> int:
        """Requests without a usable id and event time so far; they send no beacon."""
        return self.identities.skipped

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._closing(send))
        elif scope["type"] == "http" and self._is_message(scope):
            await self._serve(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _is_message(self, scope: MutableMapping[str, Any]) -> bool:
        return scope["method"] in self._methods and self._paths.fullmatch(scope["path"]) is not None

    def _closing(self, send: Send) -> Send:
        async def closing(event: Event) -> None:
            if event["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                # Servers that are stopped by a signal exit without atexit.
                await asyncio.to_thread(self.emitter.close)
            await send(event)

        return closing

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        body = b""
        if self.identities.needs_body:
            body, receive = await _read_ahead(receive, self._max_body_bytes)
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        identity = self.identities.of(Carrier(headers, body, scope))
        if identity is None:
            await self.app(scope, receive, send)
            return
        if self.emitter.keeps_traces:
            identity = identity._replace(traceparent=recorded_traceparent(identity.traceparent))
        handling = InFlightMessage(self.emitter, identity)
        exchange = _Exchange(handling, receive, send, self._answered, self._checksums)
        with handling_now(handling):
            await exchange.run(self.app, scope)

    def _answered(self, handling: InFlightMessage, failure: str | None, payload: Payload) -> None:
        if handling.identity is None:
            return
        if failure is not None:
            handling.identity.report(self.emitter.filtered, reason=failure)
        elif self._reports_out:
            handling.identity.report(self.emitter.sent, to=self._to, **(payload if self._passes_on else {}))


class _Exchange:
    """One request and its response."""

    def __init__(
        self,
        handling: InFlightMessage,
        receive: Receive,
        send: Send,
        answered: Callable[[InFlightMessage, str | None, Payload], None],
        checksums: Checksums | None,
    ) -> None:
        self._handling = handling
        self._receive = receive
        self._send = send
        self._answered = answered
        self._checksums = checksums
        self._crc = self._size = 0
        self._payload = Payload()
        self._is_in = False
        self._is_answered = False

    async def run(self, app: App, scope: MutableMapping[str, Any]) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            self._answer("http 500")
            raise
        finally:
            self._answer(NO_RESPONSE)

    async def receive(self) -> Event:
        event = await self._receive()
        if event["type"] == "http.request":
            if self._checksums is not None:
                part = event.get("body", b"")
                self._crc, self._size = self._checksums.extend(self._crc, part), self._size + len(part)
            if not event.get("more_body", False):
                if self._checksums is not None:  # of the whole body only
                    self._payload = {"payload_crc": self._crc, "payload_bytes": self._size}
                self._take_in()
        return event

    async def send(self, event: Event) -> None:
        await self._send(event)
        if event["type"] == "http.response.start":
            status = event["status"]
            self._answer(f"http {status}" if status >= 400 else None)

    def _take_in(self) -> None:
        if not self._is_in:
            self._is_in = True
            self._handling.received(**self._payload)

    def _answer(self, failure: str | None) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._take_in()  # for a request whose body the application did not read
            self._answered(self._handling, failure, self._payload)
            self._handling.end_handling()


async def _read_ahead(receive: Receive, max_bytes: int) -> tuple[bytes, Receive]:
    """Read the body of a request before the application does.

    Returns:
        The body, empty if it is larger than `max_bytes` or incomplete; and a `receive` that replays all events.
    """
    events: deque[Event] = deque()
    body = bytearray()
    is_whole = False
    while not is_whole and len(body) <= max_bytes:
        event = await receive()
        events.append(event)
        if event["type"] != "http.request":
            break
        body += event.get("body", b"")
        is_whole = not event.get("more_body", False)

    async def again() -> Event:
        return events.popleft() if events else await receive()

    return bytes(body) if is_whole and len(body) <= max_bytes else b"", again

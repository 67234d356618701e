"""The protocol on stdin and stdout, until the end of input: requests that were read before are still answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId

_LAST_ANSWERS_S: Final = 60.0
"""Longest wait for answers after the end of input: a search in the log takes up to 30 s."""


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client. Meanwhile stdout belongs to the protocol: what else is printed goes to stderr."""
    unanswered, options = Unanswered(), server.create_initialization_options()
    try:
        async with stdio_server() as (messages, answers):
            await server.run(Messages(messages, unanswered), Answers(answers, unanswered), options)
    except* BrokenPipeError:  # the client has gone, and does not read the last answers
        pass


@dataclass(slots=True)
class Unanswered:
    """Ids of the requests that were read and are not answered yet."""

    ids: set[RequestId] = field(default_factory=set)
    changed: anyio.Event = field(default_factory=anyio.Event)

    def read(self, item: SessionMessage | Exception) -> None:
        match item:
            case SessionMessage(message=JSONRPCRequest(id=request_id)):
                self.ids.add(request_id)
            case SessionMessage(
                message=JSONRPCNotification(method="notifications/cancelled", params=Mapping() as params)
            ):
                self._settle(params.get("requestId"))  # the server does not answer it any more

    def written(self, item: SessionMessage) -> None:
        match item.message:
            case JSONRPCResponse(id=request_id) | JSONRPCError(id=request_id):
                self._settle(request_id)

    def _settle(self, request_id: object) -> None:
        self.ids = {unanswered for unanswered in self.ids if unanswered != request_id}
        self.changed.set()
        self.changed = anyio.Event()

    async def wait(self) -> None:
        """Wait until no request is unanswered."""
        with anyio.move_on_after(_LAST_ANSWERS_S):
            while self.ids:
                await self.changed.wait()


class _CountedStream:
    """A stream of messages whose unanswered requests are counted."""

    def __init__(self, stream: Any, unanswered: Unanswered) -> None:
        self._stream = stream
        self._unanswered = unanswered

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)


class Messages(_CountedStream):
    """A stream of messages whose end waits for the answers: at its end the server cancels what it is doing."""

    async def receive(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._stream.receive()
        self._unanswered.read(item)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            await self._unanswered.wait()
            raise StopAsyncIteration from None


class Answers(_CountedStream):
    """A stream of messages to the client that notes which requests are answered."""

    async def send(self, item: SessionMessage, /) -> None:
        await self._stream.send(item)
        self._unanswered.written(item)

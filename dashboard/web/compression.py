"""Answers made smaller for the way, and those that are the same for everybody only once."""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard.request.links import STATIC

_LEVEL: Final = 6
"""Of gzip: 9 takes three times as long for a hundredth less."""
_MAX_KEPT: Final = 64
"""Files: a page asks for some twenty. Further ones, by names of a client's own, are compressed each time."""
_HAS_CONDITIONS: Final = ("if-none-match", "if-modified-since", "range")


class Compressed:
    """An ASGI application around another. The answers for the program's own files (`STATIC`) are kept in memory:
    compressing all scripts of a page anew takes longer than anything else that the server does for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = GZipMiddleware(app, minimum_size=500, compresslevel=_LEVEL)
        self._kept: dict[str, tuple[Message, ...]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        if key not in self._kept:
            await self._answer_and_keep(key, scope, receive, send)
            return
        for message in self._kept[key]:
            await send(deepcopy(message))  # who sends it adds headers

    async def _answer_and_keep(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and keep the answer if it is complete. That of a client that left is not: what stands between here
        and the file ends it early, with a last message as of a whole one."""
        answer: list[Message] = []
        left = False

        async def receive_and_note() -> Message:
            nonlocal left
            message = await receive()
            left = left or message["type"] == "http.disconnect"
            return message

        async def send_and_keep(message: Message) -> None:
            answer.append(deepcopy(message))
            await send(message)
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and not left and answer[0].get("status") == 200 and len(self._kept) < _MAX_KEPT:
                self._kept[key] = tuple(answer)

        await self._app(scope, receive_and_note, send_and_keep)


def _key(scope: Scope) -> str | None:
    """Return the key to keep an answer by; None not to keep it."""
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(STATIC):
        return None
    headers = Headers(scope=scope)
    if "gzip" not in headers.get("accept-encoding", "") or any(name in headers for name in _HAS_CONDITIONS):
        return None
    return f"{scope['path']}?{scope['query_string'].decode('latin-1')}"

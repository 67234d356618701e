"""Answers of other servers over HTTP, read up to a size and a time."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any, Final

import httpx2

MAX_ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Twice as much as a schema in a definition may have; tokens and keys are far smaller."""
ANSWER_S: Final = 30.0
"""For the body of an answer that a client keeps."""


class AnswerBody(bytearray):
    """The body of an answer, unpacked, as far as it was read."""

    def __init__(self, until_s: float, max_bytes: int = 0) -> None:
        super().__init__()
        self._until_s = until_s
        self._max_bytes = max_bytes or MAX_ANSWER_BYTES

    def add(self, piece: bytes) -> None:
        """Add a piece. Raises httpx2.HTTPError if that is too much, or later than `until_s`, on the monotonic clock."""
        self.extend(piece)
        if len(self) > self._max_bytes:
            raise httpx2.ReadError(f"expected up to {self._max_bytes} bytes")
        if time.monotonic() > self._until_s:
            raise httpx2.ReadTimeout("the response took too long")


def read_answer(answer: httpx2.Response, until_s: float) -> bytes:
    """Return the body of a streamed answer that is complete at `until_s`, on the monotonic clock.

    Raises:
        httpx2.HTTPError: it is larger than `MAX_ANSWER_BYTES`, or takes longer.
    """
    body = AnswerBody(until_s)
    for piece in answer.iter_bytes():
        body.add(piece)
    return bytes(body)


def keep_answer(answer: httpx2.Response) -> None:
    """Read an answer as a hook of its client, which would read it without a limit. Raises as `read_answer`."""
    answer._content = read_answer(answer, time.monotonic() + ANSWER_S)


async def keep_answer_async(answer: httpx2.Response) -> None:
    """Do the same for an asynchronous client."""
    body = AnswerBody(time.monotonic() + ANSWER_S)
    async with aclosing(answer.aiter_bytes()) as pieces:
        async for piece in pieces:
            body.add(piece)
    answer._content = bytes(body)


BOUNDED: Final[dict[str, list[Any]]] = {"response": [keep_answer]}
"""Hooks of a client all of whose answers have a limit, also those that redirect."""

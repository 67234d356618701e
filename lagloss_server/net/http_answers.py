"""Answers of other servers over HTTP, read up to a size and a time."""

from __future__ import annotations

import time
from typing import Final

import httpx2

MAX_ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Twice as much as a schema in a definition may have; tokens are far smaller."""


def read_answer(answer: httpx2.Response, until_s: float) -> bytes:
    """Return the body of a streamed answer that is complete at `until_s`, on the monotonic clock.

    Raises:
        httpx2.HTTPError: it is larger than `MAX_ANSWER_BYTES`, or takes longer.
    """
    body = bytearray()
    for piece in answer.iter_bytes():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise httpx2.ReadError(f"expected up to {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > until_s:
            raise httpx2.ReadTimeout("the response took too long")
    return bytes(body)

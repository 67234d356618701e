"""Bodies of requests: read, unpacked, and never held longer or larger than allowed."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import zstandard
from fastapi import Request
from starlette.requests import ClientDisconnect

from collector.shared_room import SharedRoom
from lagloss_server.net.problem_details import Problem, busy, too_large

MAX_BATCH_BYTES: Final = 1024 * 1024
MAX_BLOCKS_BYTES: Final = 4 * 1024 * 1024
"""Several blocks; one takes less than 1 MB, as the broker does."""
MAX_DEFINITION_BYTES: Final = 64 * 1024
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Bodies of all requests under way, as they came and unpacked; a caller gets half of it at most."""
MAX_ZSTD_WINDOW: Final = 8 * 1024 * 1024
"""Limit of RFC 9659 for zstd in HTTP."""


class Bodies:
    """Reads bodies; all of those held at a time together take `max_held_bytes` at most."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._room = SharedRoom(max_held_bytes)

    @asynccontextmanager
    async def read(self, request: Request, max_bytes: int, caller: str) -> AsyncIterator[bytes]:
        """Return the body, unpacked as its Content-Encoding says; it counts as held by the caller until the block ends.

        Raises:
            Problem: 413 for one that is too large, as sent or unpacked, 415 for an unknown encoding, 400 for one that
                is cut short or cannot be unpacked, 503 while too much is held.
        """
        unpack = _UNPACK.get(request.headers.get("content-encoding", "identity").strip().lower())
        if unpack is None:
            detail = f"expected Content-Encoding {', '.join(_UNPACK)}"
            raise Problem(415, "Unknown encoding", detail, headers={"Accept-Encoding": "gzip, zstd, identity"})
        held = 0
        try:
            packed = bytearray()
            _refuse_announced(request, max_bytes)
            async for chunk in _chunks(request):
                if len(packed) + len(chunk) > max_bytes:
                    raise too_large(max_bytes)
                held += self._take(caller, len(chunk))
                packed += chunk
            body = unpack(packed, max_bytes)
            if body is not packed:
                held += self._take(caller, len(body))
            yield bytes(body).removeprefix(codecs.BOM_UTF8)  # no block, report or protobuf begins like it
        finally:
            self._room.give_back(caller, held)

    def _take(self, caller: str, size: int) -> int:
        if not self._room.take(caller, size):
            raise busy("too many bodies are being read at this moment")
        return size


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise Problem(400, "Incomplete body", "the client went away before its end") from None


def _refuse_announced(request: Request, max_bytes: int) -> None:
    """Refuse a body that is too long by its Content-Length, without reading it."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and int(length) > max_bytes:
        raise too_large(max_bytes)


def _as_it_is(packed: bytearray, max_bytes: int) -> bytes | bytearray:
    return packed


def _gunzip(packed: bytearray, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unpacker.decompress(packed, max_bytes + 1)
    except zlib.error as error:
        raise _broken("gzip", error) from None
    if len(body) > max_bytes:
        raise too_large(max_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise _broken("gzip", "expected one whole member")
    return body


def _unzstd(packed: bytearray, max_bytes: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
    try:
        if len(unpacker.stream_reader(bytes(packed)).read(max_bytes + 1)) > max_bytes:
            raise too_large(max_bytes)
        whole = unpacker.decompressobj()  # it alone detects a truncated frame, but it has no limit of its own
        body: bytes = whole.decompress(bytes(packed))
    except zstandard.ZstdError as error:
        raise _broken("zstd", error) from None
    if not whole.eof or whole.unused_data:
        raise _broken("zstd", "expected one whole frame")
    return body


def _broken(encoding: str, detail: object) -> Problem:
    return Problem(400, "Broken body", f"not {encoding}: {detail}")


_UNPACK: Final = {"identity": _as_it_is, "gzip": _gunzip, "zstd": _unzstd}

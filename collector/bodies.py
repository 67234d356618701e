"""Bodies of requests: read, unpacked, and never held longer or larger than allowed."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import zstandard
from fastapi import Request
from starlette.requests import ClientDisconnect

from collector.fairness import SharedRoom
from lagloss_server.net.problem_details import Problem, busy, too_large

MAX_BATCH_BYTES: Final = 1024 * 1024
MAX_BLOCKS_BYTES: Final = 4 * 1024 * 1024
"""Several blocks; one takes less than 1 MB, as the broker does."""
MAX_DEFINITION_BYTES: Final = 64 * 1024
MAX_OBJECTS: Final = 200_000
"""Opening braces in a body of JSON. Those that are of use have some 20 bytes for each; one of 3 bytes for each would
take 25 times its size in memory before any item of it is looked at."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Bodies of all requests under way, as they came and unpacked; a caller gets half of it at most."""
MAX_ZSTD_WINDOW: Final = 8 * 1024 * 1024
"""Limit of RFC 9659 for zstd in HTTP."""
PIECE_BYTES: Final = 64 * 1024
"""A body is unpacked by so much at a time, each of which is charged before the next."""
UNIT_BYTES: Final = 1024
"""Bytes of a body that cost one unit of work."""

Charge = Callable[[int], Awaitable[None]]
"""Charges units of work; raises a Problem (429 or 413) where the caller has none left."""


async def free_of_charge(units: int) -> None:
    """Charge nothing."""


class Bodies:
    """Reads bodies; all of those held at a time together take `max_held_bytes` at most."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._room = SharedRoom(max_held_bytes)

    @asynccontextmanager
    async def read(
        self, request: Request, max_bytes: int, caller: str, charge: Charge = free_of_charge
    ) -> AsyncIterator[bytes]:
        """Return the body, unpacked as its Content-Encoding says; it counts as held by the caller until the block ends.

        Each KiB is charged once it is known of, and before anything else is done with it: also of a body that is then
        refused. A body of any size costs at least one unit.

        Raises:
            Problem: 413 for one that is too large, as sent or unpacked, 415 for an unknown encoding, 400 for one that
                is cut short or cannot be unpacked, 503 while too much is held; and those of `charge`.
        """
        tab = _Tab(charge)
        await tab.reach(1)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in _UNPACK:
            detail = f"expected one of these values of Content-Encoding: {', '.join(_UNPACK)}"
            raise Problem(415, "Unsupported encoding", detail, headers={"Accept-Encoding": "gzip, zstd, identity"})
        unpack, size = _UNPACK[encoding], 0
        try:
            packed = bytearray()
            await tab.reach(_announced(request, max_bytes))
            async for chunk in _chunks(request):
                if len(packed) + len(chunk) > max_bytes:
                    raise too_large(max_bytes)
                await tab.reach(len(packed) + len(chunk))
                size += self._take(caller, len(chunk))
                packed += chunk
            body = packed if unpack is None else bytearray()
            for piece in unpack(packed) if unpack else ():
                if len(body) + len(piece) > max_bytes:
                    raise too_large(max_bytes)
                await tab.reach(len(body) + len(piece))
                size += self._take(caller, len(piece))
                body += piece
            yield bytes(body).removeprefix(codecs.BOM_UTF8)  # no block, report or protobuf begins like it
        finally:
            self._room.give_back(caller, size)

    def _take(self, caller: str, size: int) -> int:
        if not self._room.take(caller, size):
            raise busy("too many request bodies are being read; send again later")
        return size


def demand_few_objects(body: bytes) -> None:
    """Refuse JSON of too many objects before it is parsed, with a Problem (413)."""
    if body.count(b"{") > MAX_OBJECTS:
        raise Problem(413, "Too many objects", f"expected up to {MAX_OBJECTS} objects; send fewer per request")


class _Tab:
    """What a body has cost so far."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._units = 0

    async def reach(self, size: int) -> None:
        """Charge what so many bytes cost more than was charged before."""
        units = -(-size // UNIT_BYTES)
        if units > self._units:
            await self._charge(units - self._units)
            self._units = units


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise Problem(400, "Incomplete body", "the client disconnected before the end of the body") from None


def _announced(request: Request, max_bytes: int) -> int:
    """Return the body's Content-Length, 0 without one; refuse one that is too long, without reading the body."""
    length = request.headers.get("content-length", "")
    size = int(length) if length.isascii() and length.isdecimal() else 0
    if size > max_bytes:
        raise too_large(max_bytes)
    return size


def _gunzip(packed: bytearray) -> Iterator[bytes]:
    unpacker, rest = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), bytes(packed)
    try:
        while piece := unpacker.decompress(rest, PIECE_BYTES):
            yield piece
            rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise _broken("gzip", error) from None
    if not unpacker.eof or unpacker.unused_data:
        raise _broken("gzip", "expected one complete gzip member")


def _unzstd(packed: bytearray) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
    try:
        reader = unpacker.stream_reader(bytes(packed))
        while piece := reader.read(PIECE_BYTES):
            yield piece
        whole = unpacker.decompressobj()  # it alone detects a truncated frame, but it has no limit of its own
        whole.decompress(bytes(packed))
    except zstandard.ZstdError as error:
        raise _broken("zstd", error) from None
    if not whole.eof or whole.unused_data:
        raise _broken("zstd", "expected one complete zstd frame")


def _broken(encoding: str, detail: object) -> Problem:
    return Problem(400, "Malformed body", f"not {encoding}: {detail}")


_UNPACK: Final[dict[str, Callable[[bytearray], Iterator[bytes]] | None]] = {
    "identity": None,
    "gzip": _gunzip,
    "zstd": _unzstd,
}

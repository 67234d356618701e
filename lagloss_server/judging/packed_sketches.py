"""Sketches in few bytes: the counts of neighbouring bins one after another, as varints, compressed.

A window's bins are mostly neighbours, so a key is written only where some before it are empty: as a negative number, of
how many these are. Documents with sketches have these beside them, each once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from lagloss.wire.avro import decode_bytes, decode_longs, encode_bytes, encode_longs
from lagloss.wire.sketch import Sketch
from lagloss_server.packing.packed_json import pack_text, unpack_text

_LEVEL: Final = 6
_MEMORY: Final = 9
_VERSION: Final = b"\1"


def pack_document(value: Any) -> bytes:
    """Return a JSON value packed, and beside it the sketches in it; equal ones give equal bytes. In JSON, each sketch
    is its number among them."""
    sketches: dict[bytes, Sketch] = {}
    numbers: dict[bytes, int] = {}

    def number(sketch: Sketch) -> int:
        key = sketch.keys.tobytes() + sketch.counts.tobytes()
        sketches.setdefault(key, sketch)
        return numbers.setdefault(key, len(numbers))

    text = encode_bytes(pack_text(msgspec.json.encode(value, enc_hook=number)))
    return b"".join((_VERSION, text, pack_sketches([*sketches.values()])))


def unpack_document(packed: bytes) -> tuple[bytes, bytes]:
    """Return the JSON that `pack_document` packed, and its sketches, for `unpack_sketches`.

    Raises:
        ValueError, zstandard.ZstdError: it was packed in another form.
    """
    if packed[:1] != _VERSION:
        raise ValueError(f"expected a packed document of version {_VERSION.hex()}, found {packed[:1].hex() or 'none'}")
    text, rest = decode_bytes(packed[1:])
    return unpack_text(text), rest


def pack_sketches(sketches: Sequence[Sketch]) -> bytes:
    """Return the sketches packed: how many they are; the number of bins of each, then the lowest key of each; then the
    counts of all, and negative numbers for empty bins between."""
    sizes = np.array([sketch.keys.size for sketch in sketches], np.int64)
    keys = np.concatenate([np.empty(0, np.int64), *(sketch.keys for sketch in sketches)])
    counts = np.concatenate([np.empty(0, np.int64), *(sketch.counts for sketch in sketches)])
    firsts = (np.cumsum(sizes) - sizes)[sizes > 0]
    empty = np.diff(keys, prepend=0) - 1
    empty[firsts] = 0
    positions = np.flatnonzero(empty)
    numbers = np.concatenate(([len(sketches)], sizes, keys[firsts], np.insert(counts, positions, -empty[positions])))
    # what looks like a repetition in counts is chance: Z_FILTERED codes them one by one, in 1 to 8 % fewer bytes
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, _MEMORY, zlib.Z_FILTERED)
    return compressor.compress(encode_longs(numbers)) + compressor.flush()


def unpack_sketches(packed: bytes) -> list[Sketch]:
    """Return the sketches that `pack_sketches` packed."""
    numbers = decode_longs(zlib.decompress(packed, -zlib.MAX_WBITS))
    many = int(numbers[0])
    sizes, rest = numbers[1 : 1 + many], numbers[1 + many :]
    filled = int((sizes > 0).sum())
    lowest, bins = rest[:filled].tolist(), rest[filled:]
    is_bin = bins >= 0
    keys, counts = np.cumsum(np.where(is_bin, 1, -bins))[is_bin], bins[is_bin]
    sketches, position = [], 0
    for size in sizes.tolist():
        span = slice(position, position + size)
        position += size
        if size:
            own = keys[span]
            sketches.append(Sketch((own + (lowest.pop(0) - own[0])).astype(np.int32), counts[span]))
        else:
            sketches.append(Sketch())
    return sketches

"""A small encoder and decoder of blocks and reports, with fastavro and struct."""

from __future__ import annotations

import functools
import io
import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema

MAX_BIN = math.ceil(math.log(2.0**48) / math.log(1.01 / 0.99))  # of the longest lag, 2^48 ms
MIN_BIN = math.ceil(math.log(0.001) / math.log(1.01 / 0.99))  # of the shortest that is not zero, 0.001 ms


@functools.cache
def schema(name: str) -> tuple[bytes, Any]:
    """The 10 bytes that open a message of this schema (C3 01 and the fingerprint), and the schema."""
    path = Path(__file__).parents[2] / "lagloss" / "wire" / "schemas" / f"{name}.avsc"
    plain = json.loads(path.read_text(encoding="utf-8"))
    canonical = fastavro.schema.to_parsing_canonical_form(plain)
    fingerprint = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(fingerprint), fastavro.parse_schema(plain)


def avro(name: str, fields: dict[str, Any]) -> bytes:
    """The Avro single object: C3 01, the schema's fingerprint, the body. Tallies have bins and ranges as lists."""
    marker, parsed = schema(name)
    body = io.BytesIO()
    if "tallies" in fields:
        fields = {**fields, "tallies": [packed(tally) for tally in fields["tallies"]]}
    fastavro.schemaless_writer(body, parsed, fields)
    return marker + body.getvalue()


def decode(name: str, value: bytes | None) -> dict[str, Any] | None:
    """The Avro single object as a dict, or None where it is none of this schema."""
    marker, parsed = schema(name)
    if value is None or value[:10] != marker:
        return None
    try:
        found: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), parsed)
        if "tallies" in found:
            found["tallies"] = [unpacked(tally) for tally in found["tallies"]]
    except Exception:  # whatever it is, it is not such a message
        return None
    return found  # type: ignore[no-any-return]


def column(form: str, values: list[Any]) -> bytes:
    return struct.pack(f"<{len(values)}{form}", *values)


def names_column(names: list[str]) -> bytes:
    return b"".join(bytes([len(name.encode())]) + name.encode() for name in names)


def traces_column(positions: list[int]) -> bytes:
    """A trace id and a span id, all of ones, for the beacons at these positions."""
    return b"".join(struct.pack("<H", position) + b"\1" * 24 for position in positions)


def float32(value: float) -> float:
    """The float32 nearest to the value, as it is read back."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def signed64(value: int) -> int:
    """The sum modulo 2^64, read as signed."""
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


# --- Bins and ranges of a tally --------------------------------------------------------------------------------------


def packed(tally: dict[str, Any]) -> dict[str, Any]:
    """The tally with its bins and ranges as bytes."""
    bins, before = b"", 0
    for row in tally["lag_sketch"]:
        bins += longs([row["key"] - before, row["count"]])
        before = row["key"]
    ranges = [longs([row["partition"], row["first"], row["last"] - row["first"]]) for row in tally["ranges"]]
    return {**tally, "lag_sketch": bins, "ranges": b"".join(ranges)}


def unpacked(tally: dict[str, Any]) -> dict[str, Any]:
    """The tally with its bins and ranges as lists, in order and in range, or a ValueError."""
    numbers = read_longs(tally["lag_sketch"])
    bins, key = [], 0
    for start in range(0, len(numbers), 2):
        step, count = numbers[start : start + 2]
        key += step
        demand(start == 0 or step > 0)
        demand(key == 0 or MIN_BIN <= abs(key) - 10_000 <= MAX_BIN)
        demand(1 <= count < 2**53)
        bins.append({"key": key, "count": count})
    numbers = read_longs(tally["ranges"])
    ranges = []
    for start in range(0, len(numbers), 3):
        partition, first, length = numbers[start : start + 3]
        demand(0 <= partition < 65_536)
        demand(first >= 0 and length >= 0 and first + length < 2**63)
        ranges.append({"partition": partition, "first": first, "last": first + length})
    places = [(row["partition"], row["first"]) for row in ranges]
    demand(places == sorted(set(places)))
    return {**tally, "lag_sketch": bins, "ranges": ranges}


def demand(holds: bool) -> None:
    if not holds:
        raise ValueError


def longs(values: Iterable[int]) -> bytes:
    """The numbers as Avro writes a long: 0, -1, 1, -2 and so on as 0, 1, 2, 3, and these in groups of seven bits, the
    lowest first, each but the last with its high bit set."""
    written = bytearray()
    for value in values:
        rest = 2 * value if value >= 0 else -2 * value - 1
        while rest >= 128:
            written.append(rest % 128 + 128)
            rest //= 128
        written.append(rest)
    return bytes(written)


def read_longs(data: bytes) -> list[int]:
    """The numbers of 64 bits that the bytes are, of ten bytes at most each, or a ValueError."""
    found, digits = [], b""
    for byte in data:
        digits += bytes([byte])
        if byte < 128:
            value = sum((digit % 128) * 128**place for place, digit in enumerate(digits))
            demand(len(digits) <= 10 and value < 2**64)
            found.append(value // 2 if value % 2 == 0 else -(value + 1) // 2)
            digits = b""
    demand(digits == b"")
    return found

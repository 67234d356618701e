"""A small encoder of blocks and reports, with fastavro and struct."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro

from tests.oracle.evidence import schema


def avro(name: str, fields: dict[str, Any]) -> bytes:
    """The Avro single object: C3 01, the schema's fingerprint, the body. Blocks and reports come in all versions."""
    if name == "beacon_block" and (fields.get("out_of_order") is not None or fields["emitter"][0] % 8 == 1):
        name = "beacon_block_v3"
    elif name == "beacon_block" and (fields.get("traces") or fields["emitter"][0] % 4 == 0):
        name = "beacon_block_v2"
    if name == "emitter_report" and (fields.get("resumes") or fields["emitter"][0] % 2):
        name = "emitter_report_v2"
    marker, parsed = schema(name)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, fields)
    return marker + body.getvalue()


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

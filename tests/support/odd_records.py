"""Records that somebody else may write: whatever a schema allows, and good ones with damaged bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import fastavro
from hypothesis import strategies as st

from lagloss.wire.format import BLOCK_SCHEMA, REPORT_SCHEMA, SAMPLE_ALL, WireSchema, block_key, hash_id
from tests.oracle.wire import longs, packed

Keyed = tuple[bytes | None, bytes | None]
"""Key and value of a record."""

LONGS = st.sampled_from(
    [-(1 << 63), -(1 << 53), -(1 << 31), -1, 0, 1, 60, (1 << 31) - 1, 1 << 32, (1 << 53) - 1, 1 << 53, (1 << 63) - 1]
) | st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.sampled_from([-(1 << 31), -1, 0, 1, 8, (1 << 31) - 1]) | st.integers(-(1 << 31), (1 << 31) - 1)
TEXTS = st.sampled_from(["", "\0", "a\0b", "x" * 501, "\U0001f600" * 200, "'; --", "../..", "\n"]) | st.text(
    max_size=20
)
NUMBERS = st.lists(LONGS, max_size=6).map(longs) | st.binary(max_size=12)
"""Bytes that may be numbers one after another."""
FLOATS = st.sampled_from([0.0, -0.0, 1e-45, 5.0, -5.0, 3.4e38, -3.4e38, float("inf"), float("nan")]) | st.floats(
    width=32
)


def written(schema: WireSchema, record: dict[str, Any]) -> bytes:
    """Return the record as fastavro writes it by its schema."""
    out = io.BytesIO()
    out.write(schema.header)
    fastavro.schemaless_writer(out, schema.parsed, record)
    return out.getvalue()


def either(mostly: Any, of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """`mostly` in three of four draws, so that a record is odd in few places at a time."""
    return st.one_of(st.just(mostly), st.just(mostly), st.just(mostly), of)


@st.composite
def blocks(draw: st.DrawFn, pipeline: str, checkpoints: Sequence[str], start_s: int) -> Keyed:
    """Any block of this pipeline that its schema allows."""
    count = draw(st.integers(0, 5))
    ids = [draw(st.text(min_size=1, max_size=60)).encode() for _ in range(count)]
    row: dict[str, Any] = {
        "pipeline": pipeline,
        "checkpoint": draw(either(draw(st.sampled_from(checkpoints)), TEXTS)),
        "emitter": draw(st.binary(min_size=16, max_size=16)),
        "seq": draw(either(1, LONGS)),
        "window_start": draw(either(start_s, LONGS)),
        "partitions": draw(either(8, INTS)),
        "sample": draw(either(SAMPLE_ALL, LONGS)),
        "replay": draw(either(None, TEXTS)),
        "reason": draw(either(None, TEXTS)),
        "count": draw(either(count, INTS)),
        "id_hash": b"".join(struct.pack("<Q", hash_id(raw.decode())) for raw in ids),
        "lag_ms": b"".join(struct.pack("<f", draw(FLOATS)) for _ in ids),
        "event_offset_ms": draw(st.none() | st.binary(min_size=2 * count, max_size=2 * count) | st.binary(max_size=9)),
        "message_ids": draw(st.none() | st.just(b"".join(bytes([len(raw)]) + raw for raw in ids)) | st.binary()),
        "payload_crc": draw(st.none() | st.binary(min_size=4 * count, max_size=4 * count) | st.binary(max_size=9)),
        "out_of_order": draw(st.none() | st.just(b"\0\0\1\0") | st.binary(max_size=6)),
        "supplied_at": draw(either(None, LONGS)),
        "traces": draw(st.none() | st.just(_traces(range(count))) | st.just(_traces([1, 0])) | st.binary(max_size=60)),
    }
    key = draw(either(block_key(pipeline, row["window_start"]), st.none() | st.binary(max_size=20)))
    return key, written(BLOCK_SCHEMA, row)


def _traces(positions: Iterable[int]) -> bytes:
    return b"".join(position.to_bytes(2, "little") + bytes(range(24)) for position in positions)


@st.composite
def places(draw: st.DrawFn) -> dict[str, bytes]:
    """Any bins and ranges of a tally, in bytes, most of them good."""
    keys = sorted(draw(st.sets(st.sampled_from([-10_000, 0, 10_127]) | st.integers(9_900, 10_100), max_size=3)))
    bins = [(draw(either(key, INTS)), draw(either(3, LONGS))) for key in keys]
    numbers = sorted(draw(st.sets(st.integers(0, 9), max_size=3)))
    ranges = [
        (draw(either(number // 4, INTS)), draw(either(number, LONGS)), draw(either(9, LONGS))) for number in numbers
    ]
    good = packed(
        {
            "lag_sketch": [{"key": key, "count": count} for key, count in bins],
            "ranges": [{"partition": partition, "first": first, "last": last} for partition, first, last in ranges],
        }
    )
    return {name: draw(either(value, NUMBERS)) for name, value in good.items()}


@st.composite
def reports(draw: st.DrawFn, pipeline: str, node: str, checkpoints: Sequence[str], start_s: int) -> Keyed:
    """Any report of this pipeline that its schema allows."""
    now_ms = start_s * 1000 + 300_000

    def place() -> str:
        return str(draw(either(draw(st.sampled_from(checkpoints)), TEXTS)))

    def tally() -> dict[str, Any]:
        return {
            "checkpoint": place(),
            "window_start": draw(either(start_s, LONGS)),
            "replay": draw(either(None, TEXTS)),
            "sample": draw(either(SAMPLE_ALL, LONGS)),
            **{name: draw(either(3, LONGS)) for name in ("beacons", "payload_bytes", "id_sum", "dropped")},
            **draw(places()),
        }

    row = {
        "pipeline": pipeline,
        "node": draw(either(node, TEXTS)),
        "emitter": draw(st.binary(min_size=16, max_size=16)),
        "host": draw(either("host", TEXTS)),
        **{name: draw(either(now_ms, LONGS)) for name in ("seq", "started_at", "sent_at")},
        "closed": draw(st.booleans()),
        "final_through": draw(either(start_s + 60, LONGS)),
        "progress": [
            {"checkpoint": place(), "lane": draw(either("t/0", TEXTS)), "until": draw(either(now_ms, LONGS))}
            for _ in range(draw(st.integers(0, 3)))
        ],
        "tallies": [tally() for _ in range(draw(st.integers(0, 3)))],
        "resumes": draw(st.booleans()),
        "labels": draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
        "unfinished": draw(st.booleans()),
    }
    return row["emitter"], written(REPORT_SCHEMA, row)


@st.composite
def damaged(draw: st.DrawFn, good: st.SearchStrategy[Keyed]) -> Keyed:
    """Some of these with bytes changed, cut out, doubled, or nothing left at all."""
    key, value = draw(good)
    body = bytearray(value or b"")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return draw(st.sampled_from([key, None])), draw(st.sampled_from([bytes(body), bytes(body), None]))

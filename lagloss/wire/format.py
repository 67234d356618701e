"""The wire format: beacon blocks and emitter reports as Avro single-object bytes, columns as numpy arrays.

A record's value is ``C3 01``, the 8-byte little-endian CRC-64-AVRO fingerprint of its schema, then the Avro body.
docs/wire-format.md describes both schemas for people who write an SDK in another language.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any, Final, Literal, TypedDict, cast

import fastavro
import numpy as np
import numpy.typing as npt
import xxhash

from lagloss.wire.avro import (
    NULL,
    PRESENT,
    decode_rows,
    encode_array,
    encode_boolean,
    encode_bytes,
    encode_long,
    encode_longs,
    encode_optional,
    encode_string,
)
from lagloss.wire.positions import positions_fit
from lagloss.wire.sketch import Sketch
from lagloss.wire.traces import traces_fit

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
F32 = npt.NDArray[np.float32]

SAMPLE_ALL: Final = 1 << 32
"""The `sample` of a block or tally that leaves no id out."""
WINDOW_S: Final = 60
"""Length of a window of event time, in seconds."""
MAX_ID_BYTES: Final = 255
MAX_NAME_BYTES: Final = 500
"""Limit of a name, lane or replay. A Kafka topic's name has up to 249, an index key of PostgreSQL up to 2,700."""
UNNAMED_REPLAY: Final = "unnamed"
"""Replaces a replay's name that is empty or that records cannot carry."""
BLOCKS_TYPE: Final = "application/vnd.lagloss.blocks"
REPORT_TYPE: Final = "application/vnd.lagloss.report"
"""Media types of blocks and reports over HTTP."""
MAX_BLOCK_BEACONS: Final = 8192
MAX_PARTITIONS: Final = 1 << 16
"""What a block may be made for, and where a tally may say that blocks lie; a topic has far fewer."""
MAX_REPORT_PARTS: Final = 1 << 16
"""Limit of a report's tallies, of its lanes, and of the ranges of one of its tallies."""
MAX_COUNT: Final = (1 << 53) - 1
"""Of beacons or bytes: what JSON and a double hold exactly, and sums of a thousand of which a signed long holds."""
MAX_TIME_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what dates in Python and PostgreSQL can show."""
MAX_LABELS: Final = 20
MAX_LABEL_CHARS: Final = 100
RETENTION_MS: Final = 7 * 24 * 3_600_000
"""Retention of the topics, and the largest distance from a window's start to the append time of a later record that
names it, in ms."""
MAX_AHEAD_MS: Final = 120_000
"""Largest distance from the append time of a record to the start of a later window that it names, in ms."""

BadReason = Literal[
    "not_avro",
    "unknown_fingerprint",
    "count_mismatch",
    "key_mismatch",
    "header_invalid",
    "lag_not_finite",
    "unknown_pipeline",
    "unknown_checkpoint",
    "unknown_node",
    "window_invalid",
    "window_ahead",
    "window_too_old",
    "too_many_names",
    "range_invalid",
    "failed",
]
"""Reasons for setting a record aside; the same names in the quarantine table, /metrics and `doctor`."""


class BadRecord(ValueError):
    """Invalid record: {reason}.

    `pipeline`, `checkpoint` and `window_start` say whose it was, where that much could be read. `fault` says what in it
    is outside its range.
    """

    def __init__(
        self,
        reason: BadReason,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        window_start: int | None = None,
        fault: FieldFault | None = None,
    ) -> None:
        super().__init__(reason if fault is None else f"{reason}: {fault.field}: {fault.expected}")
        self.reason: BadReason = reason
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.window_start = window_start
        self.fault = fault


@dataclass(frozen=True, slots=True)
class FieldFault:
    """Which field of a record is wrong, what was expected there, and the place in the list of a report's parts."""

    field: str
    expected: str
    position: int | None = None


@dataclass(slots=True)
class BeaconBlock:
    """Beacons of one checkpoint, one window and one partition; every column holds `count` values.

    `supplied_at`: by when all of its beacons had been observed (epoch ms, by the emitter's clock), where the time of
    any was supplied by another clock.

    Not frozen only because that doubles the cost of making one, and a closing makes a hundred thousand.
    """

    pipeline: str
    checkpoint: str
    emitter: bytes
    seq: int
    window_start: int
    partitions: int
    id_hash: U64
    lag_ms: F32
    sample: int = SAMPLE_ALL
    replay: str | None = None
    reason: str | None = None
    event_offset_ms: U16 | None = None
    message_ids: bytes | None = None
    payload_crc: U32 | None = None
    traces: bytes | None = None
    out_of_order: bytes | None = None
    supplied_at: int | None = None

    @property
    def count(self) -> int:
        return int(self.id_hash.size)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition of the beacons topic, both ends included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Beacons of one emitter, checkpoint, window and replay so far; cumulative."""

    checkpoint: str
    window_start: int
    beacons: int
    id_sum: int
    lag_sketch: Sketch
    ranges: tuple[OffsetRange, ...] = ()
    replay: str | None = None
    sample: int = SAMPLE_ALL
    payload_bytes: int = 0
    dropped: int = 0


@dataclass(slots=True)
class Progress:
    """Progress of a lane: `until` (epoch ms), everything in it has been taken in (or, for work in flight, has left)."""

    checkpoint: str
    lane: str
    until: int


@dataclass(slots=True)
class EmitterReport:
    """An emitter's tallies and progress. Times in epoch ms, final_through in epoch s.

    Not frozen, nor is `Progress`, only because that doubles the cost of making one: ten thousand come each second.
    """

    pipeline: str
    node: str
    emitter: bytes
    host: str
    seq: int
    started_at: int
    sent_at: int
    closed: bool
    final_through: int
    progress: tuple[Progress, ...] = ()
    tallies: tuple[Tally, ...] = ()
    resumes: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    unfinished: bool = False


_SINGLE_OBJECT: Final = b"\xc3\x01"
"""What every Avro single object begins with."""
_HEADER_BYTES: Final = 10
_SCHEMAS: Final = resources.files("lagloss.wire") / "schemas"


class WireSchema:
    """A schema of the wire format; `header` opens its records."""

    def __init__(self, name: str) -> None:
        raw = json.loads((_SCHEMAS / name).read_text("utf-8"))
        canonical = fastavro.schema.to_parsing_canonical_form(raw)
        fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
        self.header: Final = _SINGLE_OBJECT + fingerprint
        self.parsed: Final = fastavro.parse_schema(raw)

    def decode(self, value: bytes | memoryview) -> dict[str, Any]:
        """Return the record.

        Raises:
            BadRecord: not_avro or unknown_fingerprint.
        """
        head = bytes(value[:_HEADER_BYTES])
        if head != self.header:
            is_other = len(head) == _HEADER_BYTES and head.startswith(_SINGLE_OBJECT)
            raise BadRecord("unknown_fingerprint" if is_other else "not_avro")
        body = io.BytesIO(value)
        body.seek(_HEADER_BYTES)
        try:
            record = cast("dict[str, Any]", fastavro.schemaless_reader(body, self.parsed, None))
        except Exception as error:  # fastavro raises whatever the bytes lead it to: EOFError, IndexError, UnicodeError
            raise BadRecord("not_avro") from error
        if body.tell() != len(value):
            raise BadRecord("not_avro")
        return record

    def first_text(self, value: bytes) -> str | None:
        """Return the first field, a string, of a record; None if there is none."""
        if not value.startswith(self.header):
            return None
        body = io.BytesIO(value)
        body.seek(_HEADER_BYTES)
        try:
            return cast("str", fastavro.schemaless_reader(body, "string", None))
        except Exception:  # as in `decode`
            return None


_U8, _U4, _U2, _F4 = (np.dtype(kind) for kind in ("<u8", "<u4", "<u2", "<f4"))

BLOCK_SCHEMA: Final = WireSchema("beacon_block.avsc")
REPORT_SCHEMA: Final = WireSchema("emitter_report.avsc")


@lru_cache(maxsize=16_384)
def name_fits(text: str) -> bool:
    """Return whether this may be a name, lane or replay: UTF-8 (no half of a surrogate pair) of bounded size.

    Remembered, since all records of an emitter have the same few names.
    """
    try:
        return "\0" not in text and len(text.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def replay_name(name: str) -> str:
    """Return this name of a replay, or `UNNAMED_REPLAY` where records cannot carry it."""
    return name if name and name_fits(name) else UNNAMED_REPLAY


def hash_id(message_id: str) -> int:
    """Return xxh3_64, seed 0, of the id's UTF-8 bytes."""
    return xxhash.xxh3_64_intdigest(message_id.encode())


def partition_of(id_hash: int, partitions: int) -> int:
    """Return the partition that holds every beacon of this id."""
    return (id_hash * partitions) >> 64


def partitions_of(id_hash: U64, partitions: int) -> npt.NDArray[np.int64]:
    """Return `partition_of` for a column: the high 64 bits of a 64 x 32 bit product."""
    n = np.uint64(partitions)
    high, low = id_hash >> np.uint64(32), id_hash & np.uint64(0xFFFFFFFF)
    return ((high * n + ((low * n) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def window_start_of(event_ms: float) -> int:
    """Return the start of the window that holds this event time, in epoch seconds."""
    return int(event_ms // (WINDOW_S * 1000)) * WINDOW_S


def block_key(pipeline: str, window_start: int) -> bytes:
    return f"{pipeline}/{window_start}".encode()


_LENGTHS: Final = [bytes((length,)) for length in range(256)]


def pack_ids(message_ids: Iterable[bytes]) -> bytes:
    """Encode ids as (uint8 length, UTF-8 bytes) one after another."""
    return b"".join([_LENGTHS[len(raw)] + raw for raw in message_ids])


def count_ids(packed: bytes) -> int:
    """Return the number of packed ids, or -1 if the last one is cut off.

    Ids of one length are counted in one step; others are walked (50 ns each, and only the first checkpoint's blocks
    carry any).
    """
    if _stride(packed):
        return len(packed) // _stride(packed)
    start = count = 0
    while start < len(packed):
        start += packed[start] + 1
        count += 1
    return count if start == len(packed) else -1


def unpack_ids(packed: bytes, indexes: Sequence[int]) -> list[bytes]:
    """Return the ids at the positions `indexes` (ascending, each within the count: see `count_ids`)."""
    stride = _stride(packed)
    if stride:
        return [packed[number * stride + 1 : (number + 1) * stride] for number in indexes]
    ids, start, index = [], 0, 0
    for position in indexes:
        while index < position:
            start += packed[start] + 1
            index += 1
        ids.append(packed[start + 1 : start + 1 + packed[start]])
    return ids


def id_starts(packed: bytes) -> npt.NDArray[np.int64]:
    """Return the start of each of the packed ids, at its length byte."""
    if stride := _stride(packed):
        return np.arange(0, len(packed), stride, dtype=np.int64)
    starts, start = [], 0
    while start < len(packed):
        starts.append(start)
        start += packed[start] + 1
    return np.array(starts, np.int64)


def _stride(packed: bytes) -> int:
    """Return the bytes from one id to the next if all are of one length, else 0."""
    if not packed or len(packed) % (packed[0] + 1):
        return 0
    stride = packed[0] + 1
    return stride if packed[::stride] == packed[:1] * (len(packed) // stride) else 0


def encode_block(block: BeaconBlock) -> bytes:
    """Return the block as the value of a record."""
    return b"".join(
        (
            BLOCK_SCHEMA.header,
            encode_string(block.pipeline),
            encode_string(block.checkpoint),
            block.emitter,
            encode_long(block.seq),
            encode_long(block.window_start),
            encode_long(block.partitions),
            encode_long(block.sample),
            _optional_string(block.replay),
            _optional_string(block.reason),
            encode_long(block.count),
            encode_bytes(block.id_hash.astype(_U8, copy=False).tobytes()),
            encode_bytes(block.lag_ms.astype(_F4, copy=False).tobytes()),
            _optional_column(block.event_offset_ms, _U2),
            encode_optional(block.message_ids),
            _optional_column(block.payload_crc, _U4),
            encode_optional(block.traces),
            encode_optional(block.out_of_order),
            NULL if block.supplied_at is None else PRESENT + encode_long(block.supplied_at),
        )
    )


def _optional_column(values: npt.NDArray[Any] | None, kind: np.dtype[Any]) -> bytes:
    return NULL if values is None else encode_optional(values.astype(kind, copy=False).tobytes())


def _optional_string(text: str | None) -> bytes:
    return NULL if text is None else encode_optional(text.encode())


def decode_block(value: bytes | memoryview) -> BeaconBlock:
    """Decode the block in a record's value; its columns are views of that value.

    Raises:
        BadRecord: not_avro, unknown_fingerprint, or count_mismatch (with the block's checkpoint and window).
    """
    raw = BLOCK_SCHEMA.decode(value)
    count: int = raw["count"]
    id_hash, lag_ms = raw["id_hash"], raw["lag_ms"]
    offsets, names, crcs, traces = raw["event_offset_ms"], raw["message_ids"], raw["payload_crc"], raw["traces"]
    out_of_order = raw["out_of_order"]
    if (
        len(id_hash) != 8 * count
        or len(lag_ms) != 4 * count
        or (offsets is not None and len(offsets) != 2 * count)
        or (crcs is not None and len(crcs) != 4 * count)
        or (names is not None and count_ids(names) != count)
        or (traces is not None and not traces_fit(traces, count))
        or (out_of_order is not None and not positions_fit(out_of_order, count))
    ):
        raise BadRecord("count_mismatch", raw["pipeline"], raw["checkpoint"], raw["window_start"])
    return BeaconBlock(
        raw["pipeline"],
        raw["checkpoint"],
        raw["emitter"],
        raw["seq"],
        raw["window_start"],
        raw["partitions"],
        np.frombuffer(id_hash, _U8),
        np.frombuffer(lag_ms, _F4),
        raw["sample"],
        raw["replay"],
        raw["reason"],
        None if offsets is None else np.frombuffer(offsets, _U2),
        names,
        None if crcs is None else np.frombuffer(crcs, _U4),
        traces,
        out_of_order,
        raw["supplied_at"],
    )


def pipeline_of_report(value: bytes | None) -> str | None:
    """Return the pipeline that the bytes of a report name, without decoding the rest; None if they are none of its.

    Takes a hundredth of the time of `decode_report`. The bytes may be no good report all the same.
    """
    return REPORT_SCHEMA.first_text(value or b"")


def encode_report(report: EmitterReport) -> bytes:
    """Return the report as the value of a record."""
    return b"".join(
        (
            REPORT_SCHEMA.header,
            encode_string(report.pipeline),
            encode_string(report.node),
            report.emitter,
            encode_string(report.host),
            encode_long(report.seq),
            encode_long(report.started_at),
            encode_long(report.sent_at),
            encode_boolean(report.closed),
            encode_long(report.final_through),
            encode_array([_encode_progress(progress) for progress in report.progress]),
            encode_array([_encode_tally(tally) for tally in report.tallies]),
            encode_boolean(report.resumes),
            encode_array([encode_string(name) + encode_string(label) for name, label in report.labels.items()]),
            encode_boolean(report.unfinished),
        )
    )


def _encode_progress(progress: Progress) -> bytes:
    return encode_string(progress.checkpoint) + encode_string(progress.lane) + encode_long(progress.until)


def _encode_tally(tally: Tally) -> bytes:
    return b"".join(
        (
            encode_string(tally.checkpoint),
            encode_long(tally.window_start),
            _optional_string(tally.replay),
            encode_long(tally.sample),
            encode_long(tally.beacons),
            encode_long(tally.payload_bytes),
            encode_long(signed64(tally.id_sum)),
            encode_long(tally.dropped),
            encode_bytes(tally.lag_sketch.to_bytes()),
            encode_bytes(pack_ranges(tally.ranges)),
        )
    )


class BinRecord(TypedDict):
    """A bin of a sketch."""

    key: int
    count: int


class RangeRecord(TypedDict):
    """Offsets of a partition, from `first` to `last`."""

    partition: int
    first: int
    last: int


class TallyRecord(TypedDict):
    """A tally by the names of its schema's fields, with bins and ranges as lists, for JSON."""

    checkpoint: str
    window_start: int
    replay: str | None
    sample: int
    beacons: int
    payload_bytes: int
    id_sum: int
    dropped: int
    lag_sketch: list[BinRecord]
    ranges: list[RangeRecord]


def tally_record(tally: Tally) -> TallyRecord:
    """Return the tally by the names of its schema's fields, with bins and ranges as lists, for JSON."""
    return {
        "checkpoint": tally.checkpoint,
        "window_start": tally.window_start,
        "replay": tally.replay,
        "sample": tally.sample,
        "beacons": tally.beacons,
        "payload_bytes": tally.payload_bytes,
        "id_sum": signed64(tally.id_sum),
        "dropped": tally.dropped,
        "lag_sketch": [{"key": key, "count": count} for key, count in tally.lag_sketch.bins().items()],
        "ranges": [  # written out: `asdict` takes four times as long
            {"partition": place.partition, "first": place.first, "last": place.last} for place in tally.ranges
        ],
    }


def decode_report(value: bytes | memoryview) -> EmitterReport:
    """Decode the report in a record's value.

    Raises:
        BadRecord: not_avro, unknown_fingerprint, or header_invalid for bins or ranges that are not made of whole
            numbers in range.
    """
    raw = REPORT_SCHEMA.decode(value)
    raw["progress"] = tuple(Progress(**progress) for progress in raw["progress"])
    raw["tallies"] = tuple(_unpacked(tally, position) for position, tally in enumerate(raw["tallies"]))
    return EmitterReport(**raw)


def _unpacked(tally: dict[str, Any], position: int) -> Tally:
    for name, unpack in _PACKED_FIELDS.items():
        try:
            tally[name] = unpack(tally[name])
        except ValueError as error:
            raise BadRecord("header_invalid", fault=FieldFault("tallies", f"{name}: {error}", position)) from error
    return Tally(**tally)


def pack_ranges(ranges: Iterable[OffsetRange]) -> bytes:
    """Return ranges as a tally has them: partition, first, and last less first, of one after another."""
    numbers = [number for place in ranges for number in (place.partition, place.first, place.last - place.first)]
    return encode_longs(np.array(numbers, np.int64))


def unpack_ranges(packed: bytes) -> tuple[OffsetRange, ...]:
    """Return the ranges that `pack_ranges` packed.

    Raises:
        ValueError: the bytes are not whole ranges, or a number has more than 64 bits.
    """
    return next(unpack_each_ranges([packed]))


def unpack_each_ranges(packed: Sequence[bytes]) -> Iterator[tuple[OffsetRange, ...]]:
    """Unpack the ranges of many tallies at once: a decoding costs the same for a few numbers as for thousands.

    Raises:
        ValueError: as `unpack_ranges`, for any of them.
    """
    rows, ends = decode_rows(packed, 3)
    ranges = [OffsetRange(partition, first, first + length) for partition, first, length in rows.tolist()]
    return (tuple(ranges[start:end]) for start, end in pairwise([0, *ends.tolist()]))


_PACKED_FIELDS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "lag_sketch": Sketch.from_bytes,
    "ranges": unpack_ranges,
}


def share_of(sample: int) -> float:
    """Return a sample as the share of all ids that it takes, to six digits: 0.1 and not 0.09999999986."""
    return float(f"{sample / SAMPLE_ALL:.6g}")


def signed64(value: int) -> int:
    """Return `value` modulo 2^64, read as signed."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)

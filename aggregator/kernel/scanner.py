"""Scanning: the headers of all blocks of an Arrow batch at once, without an object a block.

A fast path beside `wire.format.decode_block`, which stays the judge: a record that this finds anything odd about is
left to it, so what is bad, and why, is decided in one place. A test holds both to the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lagloss.wire.format import BLOCK_SCHEMA, MAX_BLOCK_BEACONS, MAX_NAME_BYTES, MAX_PARTITIONS, MAX_TIME_MS, SAMPLE_ALL
from lagloss.wire.sketch import MAX_LAG_MS
from lagloss.wire.traces import TRACE_ROW
from lagloss_server.packing.compiled import U8, Int, compiled
from lagloss_server.packing.varints import avro_long

I64 = npt.NDArray[np.int64]

FIELDS = (
    "checkpoint", "checkpoint_size", "emitter", "seq", "window_start", "partitions", "sample", "count",
    "ids", "lags", "offsets", "names", "names_size", "crcs", "traces", "traces_size", "reason", "reason_size",
    "out_of_order", "out_of_order_size", "supplied_at",
)  # fmt: skip
"""What is kept of a header. Positions are in the batch's bytes; -1 where a column or a time is not there."""
_EXTRAS = [FIELDS.index(name) for name in ("names", "crcs", "traces", "reason", "out_of_order", "supplied_at")]
MAX_EXPONENT = 127 + int(MAX_LAG_MS).bit_length() - 1
"""Of a float32: the exponent of MAX_LAG_MS, a power of two."""
_HEADER = np.frombuffer(BLOCK_SCHEMA.header, np.uint8)
_TRACE_BYTES = TRACE_ROW.itemsize


@dataclass(frozen=True)
class Bytes:
    """A binary column: row i is data[starts[i]:starts[i + 1]]. A null is empty."""

    data: U8
    starts: npt.NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.Array) -> Bytes:
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        return cls(np.frombuffer(data or b"", np.uint8), starts)

    def at(self, start: int, size: int) -> bytes:
        return self.data[start : start + size].tobytes()


@dataclass(frozen=True)
class Headers:
    """The headers of a batch's blocks, a row of `table` a field; `good` says where a block can be taken as it is: a
    live one that is whole, whose texts are plain ASCII, whose key is its own, and whose numbers are in range; `extras`,
    where it has more than ids, lags and offsets."""

    data: U8
    good: npt.NDArray[np.bool_]
    extras: npt.NDArray[np.bool_]
    table: I64

    @property
    def fields(self) -> dict[str, I64]:
        return dict(zip(FIELDS, self.table, strict=True))

    def of(self, blocks: Any) -> dict[str, I64]:
        """Return the fields of some blocks."""
        return dict(zip(FIELDS, self.table[:, blocks], strict=True))


def scan(keys: Bytes, values: Bytes) -> Headers:
    """Scan the headers of these records."""
    n = values.starts.size - 1
    # rows that are not good keep whatever the memory held: nobody reads their fields but behind a mask
    good, fields = np.zeros(n, np.bool_), np.empty((len(FIELDS), n), np.int64)
    _scan(values.data, values.starts, keys.data, keys.starts, _HEADER, good, fields)
    return Headers(values.data, good, fields[_EXTRAS].max(axis=0, initial=-1) >= 0, fields)


@compiled
def _bytes(data: U8, position: Int, end: Int) -> tuple[Int, Int, Int]:
    """Start and size of a length-prefixed field and where it ends; an end of -1 where it does not fit."""
    size, start = avro_long(data, position, end)
    if start < 0 or size < 0 or size > end - start:
        return 0, 0, -1
    return start, size, start + size


@compiled
def _optional(data: U8, position: Int, end: Int) -> tuple[Int, Int, Int]:
    """Return the same for a union with null: a start of -1 where it is null."""
    branch, position = avro_long(data, position, end)
    if position < 0 or branch < 0 or branch > 1:
        return 0, 0, -1
    if branch == 0:
        return -1, 0, position
    return _bytes(data, position, end)


@compiled
def _optional_time(data: U8, position: Int, end: Int) -> tuple[Int, Int]:
    """Return a time (epoch ms; -1 where it is null) and where it ends, -1 where it does not fit or is no time."""
    branch, position = avro_long(data, position, end)
    if position < 0 or branch < 0 or branch > 1:
        return -1, -1
    if branch == 0:
        return -1, position
    time_ms, position = avro_long(data, position, end)
    return (time_ms, position) if 0 <= time_ms <= MAX_TIME_MS else (time_ms, -1)


@compiled
def _is_ascii(data: U8, start: Int, size: Int) -> bool:
    return not bool((data[start : start + size] & 0x80).any())


@compiled
def _is_plain(data: U8, start: Int, size: Int) -> bool:
    """Return whether a text is short, plain ASCII and without NUL."""
    return size <= MAX_NAME_BYTES and _is_ascii(data, start, size) and bool((data[start : start + size] != 0).all())


@compiled
def _is_key(keys: U8, start: Int, end: Int, data: U8, pipeline: Int, size: Int, window_start: Int) -> bool:
    """Return whether a key is `pipeline/window_start`, the number in plain decimal."""
    if end - start < size + 2 or keys[start + size] != 0x2F or window_start < 0:
        return False
    for step in range(size):
        if keys[start + step] != data[pipeline + step]:
            return False
    last, rest = end - 1, window_start
    while last > start + size:
        if keys[last] != 0x30 + rest % 10:
            return False
        rest //= 10
        last -= 1
    return bool(rest == 0 and (keys[start + size + 1] != 0x30 or end - start == size + 2))


@compiled
def _are_lags(data: U8, start: Int, count: Int) -> bool:
    """Return whether each of these float32 is below MAX_LAG_MS = 2^48, by its exponent; infinity and NaN are not."""
    largest = 0
    for index in range(start + 3, start + 4 * count, 4):
        largest = max(largest, (data[index] & 0x7F) << 1 | data[index - 1] >> 7)
    return largest < MAX_EXPONENT


@compiled
def _count_ids(data: U8, start: Int, size: Int) -> Int:
    """Count ids as `wire.format.count_ids` does."""
    position, end, count = start, start + size, 0
    while position < end:
        position += np.int64(data[position]) + 1
        count += 1
    return count if position == end else -1


@compiled
def _ascend(data: U8, start: Int, size: Int, count: Int, step: Int) -> bool:
    """Return whether the entries of `step` bytes begin with positions, uint16, that ascend and are below `count`, as
    `wire.traces.traces_fit` and `wire.positions.positions_fit` want them."""
    if size % step:
        return False
    before: Int = -1
    for index in range(start, start + size, step):
        position = np.int64(data[index]) | np.int64(data[index + 1]) << 8
        if position <= before or position >= count:
            return False
        before = position
    return True


@compiled
def _scan(data: U8, starts: Any, keys: U8, key_starts: Any, header: U8, good: Any, values: Any) -> None:
    for row in range(good.size):
        position, end = np.int64(starts[row]), np.int64(starts[row + 1])
        body = position + header.size
        if body > end or (data[position:body] != header).any():
            continue
        pipeline, pipeline_size, position = _bytes(data, body, end)
        if position < 0:
            continue
        checkpoint, checkpoint_size, position = _bytes(data, position, end)
        if position < 0 or end - position < 16:
            continue
        emitter = position
        seq, position = avro_long(data, position + 16, end)
        if position < 0:
            continue
        window_start, position = avro_long(data, position, end)
        if position < 0:
            continue
        partitions, position = avro_long(data, position, end)
        if position < 0:
            continue
        sample, position = avro_long(data, position, end)
        if position < 0:
            continue
        replay, _, position = _optional(data, position, end)
        if position < 0:
            continue
        reason, reason_size, position = _optional(data, position, end)
        if position < 0:
            continue
        count, position = avro_long(data, position, end)
        if position < 0:
            continue
        ids, ids_size, position = _bytes(data, position, end)
        if position < 0:
            continue
        lags, lags_size, position = _bytes(data, position, end)
        if position < 0:
            continue
        offsets, offsets_size, position = _optional(data, position, end)
        if position < 0:
            continue
        names, names_size, position = _optional(data, position, end)
        if position < 0:
            continue
        crcs, crcs_size, position = _optional(data, position, end)
        if position < 0:
            continue
        traces, traces_size, position = _optional(data, position, end)
        if position < 0:
            continue
        out_of_order, out_of_order_size, position = _optional(data, position, end)
        if position < 0:
            continue
        supplied_at, position = _optional_time(data, position, end)
        if position != end or replay >= 0 or seq < 0 or count < 1 or count > MAX_BLOCK_BEACONS:
            continue
        if partitions < 1 or partitions > MAX_PARTITIONS or sample < 1 or sample > SAMPLE_ALL:
            continue
        if ids_size != 8 * count or lags_size != 4 * count:
            continue
        if (offsets >= 0 and offsets_size != 2 * count) or (crcs >= 0 and crcs_size != 4 * count):
            continue
        if names >= 0 and _count_ids(data, names, names_size) != count:
            continue
        if traces >= 0 and not _ascend(data, traces, traces_size, count, _TRACE_BYTES):
            continue
        if out_of_order >= 0 and (
            out_of_order_size == 0 or not _ascend(data, out_of_order, out_of_order_size, count, 2)
        ):
            continue
        if reason >= 0 and not _is_plain(data, reason, reason_size):
            continue
        if not _is_ascii(data, checkpoint, checkpoint_size) or not _is_ascii(data, pipeline, pipeline_size):
            continue
        if not _is_key(keys, key_starts[row], key_starts[row + 1], data, pipeline, pipeline_size, window_start):
            continue
        if not _are_lags(data, lags, count):
            continue
        good[row] = True
        # in the order of FIELDS: numba takes no structures of arrays here
        values[0, row], values[1, row], values[2, row], values[3, row] = checkpoint, checkpoint_size, emitter, seq
        values[4, row], values[5, row], values[6, row], values[7, row] = window_start, partitions, sample, count
        values[8, row], values[9, row], values[10, row], values[11, row] = ids, lags, offsets, names
        values[12, row], values[13, row], values[14, row], values[15, row] = names_size, crcs, traces, traces_size
        values[16, row], values[17, row] = reason, reason_size
        values[18, row], values[19, row], values[20, row] = out_of_order, out_of_order_size, supplied_at

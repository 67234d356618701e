"""The kernel's compiled loops, held to the plain definitions they stand in for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator.kernel.bins import sketch_of
from aggregator.kernel.id_index import IdIndex
from aggregator.kernel.scanner import Bytes, scan
from lagloss.wire.format import MAX_TIME_MS, BadRecord, BeaconBlock, block_key, decode_block, encode_block, pack_ids
from lagloss.wire.positions import pack_positions
from lagloss.wire.sketch import GAMMA, Sketch
from lagloss.wire.traces import pack_traces

START = 1_780_000_020


def block(count: int, *, first: bool = False, crc: bool = False, traced: bool = False, seq: int = 7) -> BeaconBlock:
    rng = np.random.default_rng(seq)
    contexts = rng.integers(0, 256, (count, 24), dtype=np.uint8) * rng.integers(0, 2, (count, 1), dtype=np.uint8)
    return BeaconBlock(
        pipeline="clicks",
        checkpoint="src.in",
        emitter=bytes(range(16)),
        seq=seq,
        window_start=START,
        partitions=8,
        id_hash=rng.integers(0, 2**64, count, dtype=np.uint64),
        lag_ms=rng.normal(5, 50, count).astype(np.float32),
        event_offset_ms=rng.integers(0, 60_000, count).astype(np.uint16) if first else None,
        message_ids=pack_ids(f"é{at}".encode() for at in range(count)) if first else None,
        payload_crc=rng.integers(0, 2**32, count, dtype=np.uint32) if crc else None,
        reason="späm" if seq % 5 == 0 else "spam" if seq % 3 == 0 else None,
        replay="again" if seq % 7 == 6 else None,
        traces=pack_traces(contexts) if traced else None,
        out_of_order=pack_positions(rng.random(count) < 0.3) if seq % 4 == 1 else None,
        supplied_at=START * 1_000 + seq if seq % 5 == 1 else None,
    )


def scanned(key: bytes, *values: bytes) -> list[tuple[object, ...] | None]:
    """For each value what the scan found: seq, count and the columns' bytes, or None where it left the row alone."""
    nothing = pa.array([b"x", *values], pa.binary())[1:]  # a slice, as the kernel passes them
    headers = scan(Bytes.of(pa.array([key] * len(values), pa.binary())), Bytes.of(nothing))
    of = {name: column.tolist() for name, column in headers.fields.items()}

    def column(row: int, name: str, width: int) -> bytes | None:
        start = of[name][row]
        return None if start < 0 else headers.data[start : start + width * of["count"][row]].tobytes()

    def row_of(row: int) -> tuple[object, ...]:
        columns = (column(row, *what) for what in (("ids", 8), ("lags", 4), ("offsets", 2), ("crcs", 4)))
        first, size = of["traces"][row], of["traces_size"][row]
        traces = None if first < 0 else headers.data[first : first + size].tobytes()
        first, size = of["out_of_order"][row], of["out_of_order_size"][row]
        late = None if first < 0 else headers.data[first : first + size].tobytes()
        numbers = (of[name][row] for name in ("seq", "partitions", "sample", "count"))
        supplied_at = None if of["supplied_at"][row] < 0 else of["supplied_at"][row]
        return *numbers, *columns, traces, late, supplied_at

    return [row_of(row) if headers.good[row] else None for row in range(len(values))]


def told(value: bytes) -> tuple[object, ...]:
    """The same of a decoded block."""
    found = decode_block(value)
    columns = (found.id_hash, found.lag_ms, found.event_offset_ms, found.payload_crc)
    raw = (None if column is None else column.tobytes() for column in columns)
    rest = found.traces, found.out_of_order, found.supplied_at
    return found.seq, found.partitions, found.sample, found.count, *raw, *rest


def test_a_scan_finds_what_decoding_finds() -> None:
    made = (
        block(seq * 13 % 90, first=seq % 2 == 0, crc=seq % 4 == 0, traced=seq % 3 == 0, seq=seq) for seq in range(1, 40)
    )
    values = [encode_block(one) for one in made]
    found = scanned(block_key("clicks", START), *values)
    for value, row in zip(values, found, strict=True):
        plain = decode_block(value)
        left_alone = plain.replay is not None or plain.reason == "späm"
        assert row == (None if left_alone else told(value))


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_scan_takes_no_bytes_that_decoding_refuses(data: st.DataObject) -> None:
    first, traced = data.draw(st.booleans()), data.draw(st.booleans())
    value = bytearray(encode_block(block(data.draw(st.integers(0, 5)), first=first, traced=traced)))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(value[: data.draw(st.integers(0, len(value)))]) if data.draw(st.booleans()) else bytes(value)
    [row] = scanned(block_key("clicks", START), broken)
    if row is None:
        return
    try:
        assert row == told(broken)
    except BadRecord as refused:
        raise AssertionError(f"taken, but {refused.reason}") from refused
    assert decode_block(broken).window_start == START
    assert np.isfinite(decode_block(broken).lag_ms).all()


def test_a_scan_leaves_other_keys_and_lags_that_are_no_numbers_alone() -> None:
    good = block(3)
    for key in (b"clicks/1780000080", b"click/1780000020", b"clicks/01780000020", b"clicks1780000020", b"", b"clicks/"):
        assert scanned(key, encode_block(good)) == [None]
    for lag in (np.nan, np.inf, -np.inf):
        odd = replace(good, lag_ms=np.array([1, lag, 2], np.float32))
        assert scanned(block_key("clicks", START), encode_block(odd)) == [None]


def test_a_scan_leaves_traces_that_do_not_fit_alone() -> None:
    entry = b"\2\0" + bytes(range(24))
    for traces, is_taken in ((entry, True), (b"", True), (entry[:-1], False), (b"\3" + entry[1:], False)):
        (row,) = scanned(block_key("clicks", START), encode_block(replace(block(3), traces=traces)))
        assert (row is not None) is is_taken
    (row,) = scanned(block_key("clicks", START), encode_block(replace(block(3), traces=entry * 2)))
    assert row is None


def test_a_scan_leaves_positions_that_do_not_fit_alone() -> None:
    for late, is_taken in ((b"\0\0\2\0", True), (b"", False), (b"\0", False), (b"\3\0", False), (b"\1\0\1\0", False)):
        (row,) = scanned(block_key("clicks", START), encode_block(replace(block(3), out_of_order=late)))
        assert (row is not None) is is_taken


def test_a_scan_leaves_times_that_no_date_can_show_alone() -> None:
    for time_ms, is_taken in ((0, True), (MAX_TIME_MS, True), (-1, False), (MAX_TIME_MS + 1, False)):
        (row,) = scanned(block_key("clicks", START), encode_block(replace(block(3), supplied_at=time_ms)))
        assert (row is not None) is is_taken


def test_lags_are_binned_by_table_as_they_are_by_logarithm() -> None:
    edges = GAMMA ** np.arange(-346.0, 4400.0)
    edges = edges[edges < 3e38].astype(np.float32)
    up, down = np.float32(np.inf), np.float32(0)
    near = np.concatenate([edges, np.nextafter(edges, up), np.nextafter(edges, down)])
    odd = np.array([0, -0.0, 0.001, -0.001, 1e-30, 3.4e38, -3.4e38], np.float32)
    any_bits = np.random.default_rng(3).integers(0, 2**32, 500_000, dtype=np.uint32).view(np.float32)
    lags = np.concatenate([near, -near, odd, any_bits[np.isfinite(any_bits)]])
    assert sketch_of(lags).bins() == Sketch.of(lags).bins()
    assert sketch_of(lags[:0]).bins() == {}


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=300), max_size=5))
def test_ids_get_their_rows_in_the_order_they_are_first_seen(columns: list[list[int]]) -> None:
    index, rows = IdIndex(), dict[int, int]()
    for column in columns:
        expected = [rows.setdefault(id_hash, len(rows)) for id_hash in column]
        assert index.rows_of(np.array(column, np.uint64)).tolist() == expected
    assert index.ids.tolist() == list(rows)

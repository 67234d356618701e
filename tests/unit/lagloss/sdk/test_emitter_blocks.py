"""Reading and packing beacons, against a slow and obvious loop."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.sdk.packing import (
    AHEAD_S,
    KEPT_S,
    MAX_PAYLOAD_BYTES,
    NO_EXTRAS,
    SAME_CLOCK_MS,
    BeaconReader,
    Columns,
    Extras,
    Observed,
    Packer,
    RefusedBeacons,
    TallyKey,
    apply_sample,
)
from lagloss.wire.checks import check_content
from lagloss.wire.format import (
    MAX_BLOCK_BEACONS,
    MAX_TIME_MS,
    SAMPLE_ALL,
    decode_block,
    encode_block,
    hash_id,
    partition_of,
    unpack_ids,
)
from lagloss.wire.positions import read_positions
from lagloss.wire.sketch import bin_keys
from lagloss.wire.traces import TraceContext, find_traces

NOW_MS = 1_700_000_000_000
EMITTER = bytes(range(16))
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
TRACEPARENT = f"00-{TRACE.trace_id}-{TRACE.span_id}-01"
SAMPLES = st.sampled_from([SAMPLE_ALL, SAMPLE_ALL // 2, 1])

ids = st.one_of(
    st.text(min_size=0, max_size=6),
    st.sampled_from(["a", "b", "é" * 127, "é" * 128, "\ud800", "x" * 255, "x" * 256]),
    st.sampled_from([None, 5, b"bytes"]),
)
times = st.one_of(
    st.integers(NOW_MS - 200_000, NOW_MS + 200_000),
    st.floats(NOW_MS - 100_000, NOW_MS),
    st.sampled_from(
        [
            None,
            "now",
            True,
            float("nan"),
            float("inf"),
            10**400,
            -1,
            NOW_MS - KEPT_S * 1000 - 1,
            NOW_MS + AHEAD_S * 1000 + 1,
            datetime(2023, 11, 14, 22, tzinfo=UTC),
            datetime(2023, 11, 14, 22),  # noqa: DTZ001
            np.int64(NOW_MS),
        ]
    ),
)
extras = st.one_of(
    st.none(),
    st.builds(
        Extras,
        observed_at=st.one_of(
            st.none(),
            st.integers(NOW_MS - 9_999, NOW_MS),
            st.sampled_from([float("nan"), "x", -MAX_TIME_MS, MAX_TIME_MS, MAX_TIME_MS + 1]),
        ),
        replay=st.sampled_from([None, "r", "", "\0", "x" * 501, 7]),
        reason=st.sampled_from([None, "robot", 7, "a\0", "\ud800", "😀" * 200]),
        payload_crc=st.one_of(st.none(), st.sampled_from([0, 2**32 - 1, -1, 2**32, "x"])),
        payload_bytes=st.sampled_from([0, 5, -1, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES + 1, 2**63, "x"]),
        traceparent=st.sampled_from([None, TRACEPARENT, TRACEPARENT[:-1] + "0", "x", 7, [TRACEPARENT], b"x"]),
        out_of_order=st.booleans(),
    ),
)
beacons = st.tuples(
    st.sampled_from(["in", "out", "out:x", "filtered"]),
    ids,
    times,
    st.integers(NOW_MS * 10**6 - 10**9, NOW_MS * 10**6 + 10**9),
    extras,
)


def as_ms(when: Any) -> float | None:
    """An event time, if it is one that is accepted."""
    if isinstance(when, datetime):
        when = when.timestamp() * 1000 if when.tzinfo else None
    if when is None or isinstance(when, (str, bool)) or when != when or abs(when) > MAX_TIME_MS:
        return None
    return float(when) if NOW_MS - KEPT_S * 1000 <= when <= NOW_MS + AHEAD_S * 1000 else None


def is_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and 1 <= len(value.encode()) <= 255
    except UnicodeEncodeError:
        return False


def slowly(given_: list[tuple[Any, ...]], traced: bool) -> tuple[Counter[Any], Counter[TallyKey], int]:
    """Beacons that make it into blocks, drops by tally, unplaced."""
    sent: Counter[Any] = Counter()
    dropped: Counter[TallyKey] = Counter()
    unplaced = 0
    for place, message_id, when, clock_ns, extra in given_:
        extra = extra or Extras()
        replay = {"": "unnamed", "\0": "unnamed", "x" * 501: "unnamed", 7: "7"}.get(extra.replay, extra.replay)
        reason = {7: "7", "a\0": "a\ufffd", "\ud800": "?", "😀" * 200: "😀" * 100}.get(extra.reason, extra.reason)
        event_ms = as_ms(when)
        if event_ms is None:
            unplaced += 1
            continue
        window = int(event_ms // 60_000) * 60
        bad_crc = extra.payload_crc is not None and extra.payload_crc not in (0, 2**32 - 1)
        bad_seen = extra.observed_at is not None and (
            extra.observed_at == "x" or extra.observed_at != extra.observed_at or extra.observed_at > MAX_TIME_MS
        )
        bad_size = extra.payload_bytes not in (0, 5, MAX_PAYLOAD_BYTES)
        if not is_id(message_id) or bad_crc or bad_seen or bad_size:
            dropped[TallyKey(place, replay, window)] += 1
            continue
        seen_ms = clock_ns / 1e6 if extra.observed_at is None else extra.observed_at
        sent[
            place,
            replay,
            reason,
            extra.payload_crc,
            window,
            message_id,
            TRACE if traced and place == "in" and extra.traceparent == TRACEPARENT else None,
            extra.out_of_order,
            seen_ms - event_ms,
        ] += 1
    return sent, dropped, unplaced


@settings(max_examples=300)
@given(st.lists(beacons, max_size=40), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans(), SAMPLES)
def test_blocks_hold_exactly_what_a_slow_loop_would_send(
    given_: list[tuple[Any, ...]], partitions: int, first: bool, names_ids: bool, keep_traces: bool, sample: int
) -> None:
    reader, refused = BeaconReader(keep_ids=first and names_ids, keep_traces=keep_traces), RefusedBeacons()
    observed = reader.read([value for beacon in given_ for value in beacon], NOW_MS, refused)
    expected, dropped, unplaced = slowly(given_, first and keep_traces)
    assert refused.dropped == dict(dropped)
    assert refused.unplaced == unplaced
    names = {hash_id(name[5]): name[5] for name in expected}
    left_out = Counter({name: count for name, count in expected.items() if hash_id(name[5]) % SAMPLE_ALL >= sample})
    expected -= left_out
    found: Counter[Any] = Counter()
    packer = Packer("p", "n", EMITTER, first, names_ids)
    packed = []
    if observed is not None:
        taken, tallies = apply_sample(observed, reader.kinds, sample)
        assert set(tallies) == {TallyKey(place, replay, window) for place, replay, _, _, window, *_ in left_out}
        packed = list(packer.pack(taken, reader.kinds, partitions, sample))
    for at, record in enumerate(packed, start=1):
        block = decode_block(record.value)
        check_content(block)
        place = block.checkpoint.removeprefix("n.")
        assert (block.pipeline, block.emitter, block.seq, block.partitions) == ("p", EMITTER, at, partitions)
        assert record.key == f"p/{block.window_start}".encode()
        assert record.increment.key == TallyKey(place, block.replay, block.window_start)
        assert record.increment.sample == block.sample == sample
        assert record.increment.lag_keys.tolist() == bin_keys(block.lag_ms).tolist()
        assert record.increment.beacons == block.count == record.increment.lag_keys.size > 0
        assert record.increment.id_sum % 2**64 == sum(block.id_hash.tolist()) % 2**64
        assert {partition_of(value, partitions) for value in block.id_hash.tolist()} == {record.partition}
        is_first = first and place == "in"
        assert (block.event_offset_ms is not None) == is_first
        assert (block.message_ids is not None) == (is_first and names_ids)
        if is_first and names_ids:
            assert block.message_ids is not None
            raws = unpack_ids(block.message_ids, range(block.count))
            assert [raw.decode() for raw in raws] == [names[value] for value in block.id_hash.tolist()]
        crcs = [None] * block.count if block.payload_crc is None else block.payload_crc.tolist()
        traces = {} if block.traces is None else find_traces(block.traces, np.arange(block.count))
        late = [] if block.out_of_order is None else read_positions(block.out_of_order).tolist()
        for row, (value, lag, crc) in enumerate(zip(block.id_hash.tolist(), block.lag_ms.tolist(), crcs, strict=True)):
            name = (
                place,
                block.replay,
                block.reason,
                crc,
                block.window_start,
                names[value],
                traces.get(row),
                row in late,
            )
            found[(*name, lag)] += 1
    assert without_lag(found) == without_lag(expected)
    assert lags_ms(found) == pytest.approx(lags_ms(expected), rel=1e-6, abs=1e-3)


@given(st.lists(st.tuples(st.sampled_from(["in", "out"]), st.integers(0, 3), st.integers(-9_000, 9_000)), min_size=1))
def test_a_block_says_by_when_the_times_of_another_clock_were_supplied(given_: list[tuple[str, int, int]]) -> None:
    reader = BeaconReader(keep_ids=False, times_are_own=False)
    expected, others = dict[tuple[str, int], int](), set[tuple[str, int]]()
    flat: list[Any] = []
    for row, (place, minute, apart_ms) in enumerate(given_):
        extras_ = Extras(observed_at=NOW_MS + row - apart_ms) if apart_ms else None
        flat += (place, f"m-{row}", NOW_MS - minute * 60_000, (NOW_MS + row) * 1_000_000, extras_)
        is_other = abs(apart_ms) > SAME_CLOCK_MS
        others |= {(place, minute)} if is_other else set()
        by_ms = NOW_MS + row - (0 if is_other else apart_ms)
        expected[place, minute] = max(by_ms, expected.get((place, minute), 0))
    observed = reader.read(flat, NOW_MS, RefusedBeacons())
    assert observed is not None
    packer = Packer("p", "n", EMITTER, first=False)
    blocks = [decode_block(packed.value) for packed in packer.pack(observed, reader.kinds, 1)]
    newest = NOW_MS // 60_000
    found = {(block.checkpoint[2:], newest - block.window_start // 60): block.supplied_at for block in blocks}
    supplied = {place: time_ms for place, time_ms in found.items() if time_ms is not None}
    expected = {place: time_ms for place, time_ms in expected.items() if place in others}
    assert supplied == pytest.approx(expected, rel=0, abs=1)


@pytest.mark.parametrize(("apart_ms", "supplied_at"), [(SAME_CLOCK_MS, None), (SAME_CLOCK_MS + 1, NOW_MS)])
def test_columns_with_one_supplied_time_say_by_when_it_was_supplied(apart_ms: int, supplied_at: int | None) -> None:
    extras_ = (NOW_MS - apart_ms, *NO_EXTRAS[1:])
    columns = Columns("in", ["a", "b"], np.full(2, NOW_MS, np.float64), NOW_MS * 1_000_000, extras_)
    reader = BeaconReader(keep_ids=False, times_are_own=False)
    observed = reader.read_columns(columns, NOW_MS, RefusedBeacons())
    assert observed is not None
    (packed,) = Packer("p", "n", EMITTER, first=False).pack(observed, reader.kinds, 1)
    block = decode_block(packed.value)
    assert block.supplied_at == supplied_at
    assert block.lag_ms.tolist() == [-apart_ms] * 2


def without_lag(beacons_: Counter[Any]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for (*name, _), count in beacons_.items():
        found[tuple(name)] += count
    return found


def lags_ms(beacons_: Counter[Any]) -> list[float]:
    return [
        lag
        for (*_, lag), count in sorted(beacons_.items(), key=lambda each: (str(each[0][:-1]), each[0][-1]))
        for _ in range(count)
    ]


def read(given_: list[tuple[Any, ...]], *, first: bool = False) -> list[Any]:
    reader = BeaconReader(keep_ids=first, keep_traces=first)
    observed = reader.read([value for beacon in given_ for value in beacon], NOW_MS, RefusedBeacons())
    assert observed is not None
    return [decode_block(each.value) for each in Packer("p", "n", EMITTER, first).pack(observed, reader.kinds, 1)]


def test_no_block_holds_more_than_8192_beacons() -> None:
    blocks = read([("in", f"m{i}", NOW_MS, NOW_MS * 10**6, None) for i in range(MAX_BLOCK_BEACONS + 1)])
    assert [block.count for block in blocks] == [MAX_BLOCK_BEACONS, 1]


@pytest.mark.parametrize("width", [255, 60])
def test_blocks_with_long_names_and_traces_stay_below_a_megabyte(width: int) -> None:
    traced = Extras(payload_crc=7, traceparent=TRACEPARENT)
    blocks = read([("in", f"{i:0{width}}", NOW_MS, NOW_MS * 10**6, traced) for i in range(10_000)], first=True)
    assert max(len(block.message_ids) for block in blocks) <= 512 * 1024
    assert max(len(encode_block(block)) for block in blocks) < 1_000_000
    assert sum(block.count for block in blocks) == sum(len(block.traces) // 26 for block in blocks) == 10_000


def test_traces_of_some_slices_of_a_flush_stay_with_their_beacons() -> None:
    reader = BeaconReader(keep_ids=True, keep_traces=True)
    plain, traced = None, Extras(traceparent=TRACEPARENT)
    slices = [[(at, extras) for at in range(3 * part, 3 * part + 3)] for part, extras in enumerate((plain, traced))]
    slices[1][1] = (4, plain)
    parts = []
    for part in slices:
        flat = [value for at, extras in part for value in ("in", f"m{at}", NOW_MS, NOW_MS * 10**6, extras)]
        parts.append(reader.read(flat, NOW_MS, RefusedBeacons()))
    observed = Observed.joined([part for part in parts if part is not None])
    (block,) = [decode_block(each.value) for each in Packer("p", "n", EMITTER, True).pack(observed, reader.kinds, 1)]
    assert block.message_ids is not None
    assert block.traces is not None
    names = unpack_ids(block.message_ids, range(6))
    assert {names[at] for at in find_traces(block.traces, np.arange(6))} == {b"m3", b"m5"}


def test_a_clock_in_nanoseconds_loses_nothing_to_float_arithmetic() -> None:
    (block,) = read([("in", "m", NOW_MS, NOW_MS * 10**6 + 1_500_001, None)])
    assert block.lag_ms[0] == np.float32(1.500001)


def test_more_reasons_than_anybody_tells_apart_go_by_one_name() -> None:
    given_ = [("dead", f"m{i}", NOW_MS, NOW_MS * 10**6, Extras(reason=f"error {i}")) for i in range(100)]
    assert len({block.reason for block in read(given_)}) == 65


def test_datetimes_and_milliseconds_name_the_same_window() -> None:
    when = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    blocks = read([("in", "m", at, NOW_MS * 10**6, None) for at in (when, NOW_MS, float(NOW_MS), when + timedelta(0))])
    assert [(block.window_start, block.count) for block in blocks] == [(NOW_MS // 60_000 * 60, 4)]


@pytest.mark.parametrize("odd", ["", "x" * 10**6, b"x", 7, [1], np.array([1, 2]), object()])
def test_what_is_no_traceparent_is_as_none_and_raises_nothing(odd: Any) -> None:
    log, now_ms = MemoryOutlet(down=True), time.time_ns() // 10**6
    with Emitter("p", "n", first=True, outlet=lambda: log) as emitter:
        assert emitter.received("a", now_ms, traceparent=odd)
        assert emitter.received("b", now_ms, traceparent=TRACEPARENT)
        kept = [value[5] or "" for value in emitter._buffer if isinstance(value, tuple)]
        assert max(map(len, kept)) <= 56
        log.down = False
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    assert sum(block.count for block in blocks) == 2
    assert sum(len(block.traces or b"") for block in blocks) == 26
    assert (emitter.stats().dropped, emitter.stats().errors) == (0, 0)

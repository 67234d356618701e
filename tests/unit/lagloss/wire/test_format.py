"""The wire format: bytes that other languages' SDKs must agree on, and what is refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss.wire.checks import read_report
from lagloss.wire.format import (
    MAX_COUNT,
    MAX_PARTITIONS,
    MAX_TIME_MS,
    REPORT_SCHEMA,
    BadRecord,
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    count_ids,
    decode_block,
    decode_report,
    encode_block,
    encode_report,
    hash_id,
    id_starts,
    pack_ids,
    pack_ranges,
    partition_of,
    partitions_of,
    signed64,
    tally_record,
    unpack_each_ranges,
    unpack_ids,
)
from lagloss.wire.sketch import MAX_KEY, MIN_KEY, Sketch
from tests.oracle.wire import decode, longs
from tests.support.odd_records import places, written

EMITTER = bytes(range(16))


def block(**fields: object) -> BeaconBlock:
    ids = ["a", "bb", "c"]
    given = {
        "pipeline": "clicks",
        "checkpoint": "src.in",
        "emitter": EMITTER,
        "seq": 7,
        "window_start": 1_780_000_020,
        "partitions": 8,
        "id_hash": np.array([hash_id(name) for name in ids], np.uint64),
        "lag_ms": np.array([1, -2.5, 3e6], np.float32),
        "event_offset_ms": np.array([0, 1, 59_999], np.uint16),
        "message_ids": pack_ids([name.encode() for name in ids]),
        "payload_crc": np.array([1, 2, 2**32 - 1], np.uint32),
        **fields,
    }
    return BeaconBlock(**given)  # type: ignore[arg-type]


def test_block_bytes_are_as_documented() -> None:
    value = encode_block(block())
    assert value[:10].hex() == "c301" + "c84bb981b0117d78"
    assert value[10:].hex().startswith("0c" + b"clicks".hex() + "0c" + b"src.in".hex() + EMITTER.hex() + "0e")


def test_hash_is_xxh3_64_with_seed_0() -> None:
    assert hash_id("a") == 0xE6C632B61E964E1F
    assert hash_id("") == 0x2D06800538D394C2


@pytest.mark.parametrize("traces", [None, b"\2\0" + bytes(range(24))])
def test_block_comes_back_as_it_was(traces: bytes | None) -> None:
    there = block(
        replay="again",
        reason="why",
        traces=traces,
        out_of_order=traces and b"\0\0\2\0",
        supplied_at=None if traces is None else MAX_TIME_MS,
    )
    back = decode_block(encode_block(there))
    for name in BeaconBlock.__slots__:
        assert np.array_equal(getattr(there, name), getattr(back, name)), name


KEYS = st.just(0) | st.integers(MIN_KEY, MAX_KEY) | st.integers(-MAX_KEY, -MIN_KEY)
SKETCHES = st.dictionaries(KEYS, st.integers(1, MAX_COUNT)).map(Sketch.from_bins)
RANGES = st.dictionaries(
    st.tuples(st.integers(0, MAX_PARTITIONS - 1), st.integers(0, 2**63 - 1)), st.integers(0, 2**63 - 1)
).map(lambda found: [OffsetRange(*place, max(place[1], last)) for place, last in sorted(found.items())])


@given(SKETCHES)
def test_any_sketch_survives_its_encoding(sketch: Sketch) -> None:
    back = Sketch.from_bytes(sketch.to_bytes())
    assert (back.bins(), back.keys.dtype, back.counts.dtype) == (sketch.bins(), np.int32, np.int64)
    assert back.is_sound(MAX_COUNT)


@given(st.lists(RANGES))
def test_any_ranges_survive_their_encoding(ranges: list[list[OffsetRange]]) -> None:
    assert [*unpack_each_ranges([pack_ranges(of_one) for of_one in ranges])] == [*map(tuple, ranges)]


TALLY = {
    "checkpoint": "src.in",
    "window_start": 1_780_000_020,
    "replay": None,
    "sample": 1 << 32,
    "beacons": 3,
    "payload_bytes": 0,
    "id_sum": 5,
    "dropped": 0,
}


def report_with(lag_sketch: bytes, ranges: bytes) -> bytes:
    good = REPORT_SCHEMA.decode(encode_report(EmitterReport("clicks", "src", EMITTER, "here", 9, 1, 2, True, 60)))
    return written(REPORT_SCHEMA, {**good, "tallies": [{**TALLY, "lag_sketch": lag_sketch, "ranges": ranges}]})


@settings(max_examples=300)
@given(places())
def test_any_bins_and_ranges_are_read_as_a_slow_reader_reads_them(packed: dict[str, bytes]) -> None:
    value = report_with(**packed)
    slow = decode("emitter_report", value)
    if slow is None:
        with pytest.raises(BadRecord, match="header_invalid"):
            read_report(value)
    else:
        assert [tally_record(tally) for tally in read_report(value).tallies] == slow["tallies"]


@pytest.mark.parametrize(
    ("lag_sketch", "ranges", "is_good"),
    [
        ([], [], True),
        ([10_127, 1, 1, 5], [0, 3, 0, 0, 4, 9, 1, 0, 0], True),
        ([-10_127, 1, 10_127, 5], [5, 3, 7, 5, 8, 1], True),  # ranges that overlap
        ([10_127, 1, 0, 5], [], False),  # the same key again
        ([10_127, 1, -1, 5], [], False),
        ([10_127, 0], [], False),
        ([10_127, -1], [], False),
        ([10_127, MAX_COUNT + 1], [], False),
        ([1, 1], [], False),
        ([MAX_KEY + 1, 1], [], False),
        ([1 << 31, 1], [], False),
        ([(1 << 32) + 10_127, 1], [], False),
        ([10_127, 1, (1 << 63) - 1, 1, (1 << 63) - 1, 1, 3, 1], [], False),  # which adds up to 10,128 in 64 bits
        ([10_127], [], False),
        ([10_127, 1, 1], [], False),
        ([], [0, 3], False),
        ([], [0, 3, -1], False),
        ([], [0, -1, 1], False),
        ([], [-1, 3, 1], False),
        ([], [MAX_PARTITIONS, 3, 1], False),
        ([], [0, 1, (1 << 63) - 1], False),
        ([], [0, 3, 1, 0, 3, 2], False),  # the same offset again
        ([], [0, 3, 1, 0, 2, 0], False),
        ([], [1, 3, 1, 0, 4, 1], False),
    ],
)
def test_numbers_of_bins_and_ranges_are_in_order_and_in_range(
    lag_sketch: list[int], ranges: list[int], is_good: bool
) -> None:
    value = report_with(longs(lag_sketch), longs(ranges))
    assert (decode("emitter_report", value) is not None) is is_good
    if is_good:
        read_report(value)
    else:
        with pytest.raises(BadRecord, match=r"header_invalid: tallies: (lag_sketch|ranges): expected"):
            read_report(value)


@pytest.mark.parametrize("broken", [b"\x80", b"\2\x80", b"\xff" * 9 + b"\x02\2", b"\x80" * 10 + b"\0\2"])
def test_numbers_that_are_cut_off_or_too_long_are_a_bad_record(broken: bytes) -> None:
    for packed in ({"lag_sketch": broken, "ranges": b""}, {"lag_sketch": b"", "ranges": broken + b"\2"}):
        with pytest.raises(BadRecord, match=r"header_invalid: tallies: .*expected"):
            decode_report(report_with(**packed))


def test_a_number_may_be_written_longer_than_it_must() -> None:
    """As Avro's own readers take it."""
    (tally,) = read_report(report_with(b"\x80\0\x82\0", b"\x80\x80\0\6\0")).tallies
    assert (tally.lag_sketch.bins(), tally.ranges) == ({0: 1}, (OffsetRange(0, 3, 3),))


def test_report_comes_back_as_it_was() -> None:
    tally = Tally("src.in", 60, 3, -5, Sketch.from_bins({0: 1, 10_040: 2}), (OffsetRange(1, 2, 3),), "again", 100, 7, 1)
    report = EmitterReport("p", "src", EMITTER, "here/1", 9, 1, 2, True, 60, (Progress("src.in", "t/0", 5),), (tally,))
    back = decode_report(encode_report(report))
    assert back.tallies[0].lag_sketch.bins() == {0: 1, 10_040: 2}
    assert encode_report(back) == encode_report(report)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not_avro"),
        (b"hello", "not_avro"),
        (b"\xc3\x01" + bytes(8) + b"body", "unknown_fingerprint"),
        (encode_block(block())[:-4], "not_avro"),
        (encode_block(block()) + b"x", "not_avro"),
        (encode_block(block(lag_ms=np.zeros(2, np.float32))), "count_mismatch"),
        (encode_block(block(message_ids=pack_ids([b"a", b"b"]))), "count_mismatch"),
        (encode_block(block(message_ids=b"\x05abc")), "count_mismatch"),
        (encode_block(block(traces=bytes(25))), "count_mismatch"),
        (encode_block(block(traces=b"\x03" + bytes(25))), "count_mismatch"),
        (encode_block(block(traces=bytes(26) * 2)), "count_mismatch"),
        *(
            (encode_block(block(out_of_order=wrong)), "count_mismatch")
            for wrong in (b"", b"\0", b"\3\0", b"\1\0\1\0", b"\1\0\0\0")
        ),
    ],
)
def test_bad_block_is_refused_with_its_reason(value: bytes, reason: str) -> None:
    with pytest.raises(BadRecord) as refused:
        decode_block(value)
    assert refused.value.reason == reason


@given(st.binary(max_size=200))
def test_decoding_anything_ends_in_a_block_or_a_refusal(body: bytes) -> None:
    for value in (body, encode_block(block())[:10] + body):
        with contextlib.suppress(BadRecord):
            decode_block(value)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(1, 1000))
def test_partitions_of_a_column_are_those_of_its_ids(ids: list[int], partitions: int) -> None:
    found = partitions_of(np.array(ids, np.uint64), partitions)
    assert found.tolist() == [partition_of(id_hash, partitions) for id_hash in ids]


@given(st.lists(st.binary(min_size=1, max_size=255), max_size=30))
def test_packed_ids_are_counted_and_found(ids: list[bytes]) -> None:
    packed = pack_ids(ids)
    assert count_ids(packed) == len(ids)
    assert unpack_ids(packed, range(len(ids))) == ids
    assert unpack_ids(packed, range(0, len(ids), 3)) == ids[::3]
    assert [packed[at + 1 : at + 1 + packed[at]] for at in id_starts(packed).tolist()] == ids


@given(st.integers(0, 2**70))
def test_signed64_is_the_same_sum_modulo_2_64(value: int) -> None:
    assert -(2**63) <= signed64(value) < 2**63
    assert (signed64(value) - value) % 2**64 == 0

"""The wire format: bytes that other languages' SDKs must agree on, and what is refused."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import (
    BLOCK_SCHEMA,
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
    partition_of,
    partitions_of,
    signed64,
    unpack_ids,
)
from lagloss.wire.sketch import Sketch
from tests.support.odd_records import written

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
    assert value[:10].hex() == "c301" + "cdc9c48ff0171919"
    assert value[10:].hex().startswith("0c" + b"clicks".hex() + "0c" + b"src.in".hex() + EMITTER.hex() + "0e")


def test_hash_is_xxh3_64_with_seed_0() -> None:
    assert hash_id("a") == 0xE6C632B61E964E1F
    assert hash_id("") == 0x2D06800538D394C2


@pytest.mark.parametrize("traces", [None, b"\2\0" + bytes(range(24))])
def test_block_comes_back_as_it_was(traces: bytes | None) -> None:
    there = block(replay="again", reason="why", traces=traces, out_of_order=traces and b"\0\0\2\0")
    back = decode_block(encode_block(there))
    for name in BeaconBlock.__slots__:
        assert np.array_equal(getattr(there, name), getattr(back, name)), name


def test_a_block_is_of_the_version_that_says_all_of_it() -> None:
    plain, traced, ordered = (version.header for version in BLOCK_SCHEMA.versions)
    assert encode_block(block())[:10] == plain
    assert encode_block(block(traces=b"\2\0" + bytes(range(24))))[:10] == traced
    assert encode_block(block(out_of_order=b"\2\0"))[:10] == ordered


@pytest.mark.parametrize("schema", [BLOCK_SCHEMA, REPORT_SCHEMA])
def test_a_record_of_an_older_version_is_read_as_avro_resolves_it(schema: Any) -> None:
    record = {
        BLOCK_SCHEMA: BLOCK_SCHEMA.decode(encode_block(block(traces=bytes(26), out_of_order=b"\1\0"))),
        REPORT_SCHEMA: REPORT_SCHEMA.decode(
            encode_report(EmitterReport("p", "src", EMITTER, "here", 9, 1, 2, True, 60, labels={"zone": "a"}))
        ),
    }[schema]
    for version in schema.versions:
        value = written(version, record)
        body = io.BytesIO(value[10:])
        assert schema.decode(value) == fastavro.schemaless_reader(body, version.parsed, schema.newest.parsed)


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

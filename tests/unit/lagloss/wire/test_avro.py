"""What is written by hand, against fastavro."""

from __future__ import annotations

import io

import fastavro
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lagloss.wire.avro import decode_long, decode_longs, decode_rows, encode_long, encode_longs
from lagloss.wire.format import (
    BLOCK_SCHEMA,
    MAX_COUNT,
    REPORT_SCHEMA,
    BadRecord,
    decode_block,
    decode_report,
    encode_block,
    encode_report,
    tally_record,
)
from tests.oracle.wire import packed
from tests.support.odd_records import LONGS, Keyed, blocks, reports, written

CHECKPOINTS = ["src.in", "src.out"]
START_S = 1_780_000_020


@given(st.lists(LONGS))
def test_longs_alone_and_in_a_row_are_what_fastavro_writes(values: list[int]) -> None:
    out = io.BytesIO()
    for value in values:
        fastavro.schemaless_writer(out, "long", value)
    assert b"".join(map(encode_long, values)) == out.getvalue()
    assert encode_longs(np.array(values, np.int64)) == out.getvalue()
    assert decode_longs(out.getvalue()).tolist() == values
    assert [decode_long(encode_long(value) + b"\x80\x01") for value in values] == values


@pytest.mark.parametrize(
    "data", [b"\x80", b"\x02\xff", b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\0"]
)
def test_a_row_that_is_cut_off_or_has_a_number_that_is_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        decode_longs(data)


@given(st.lists(st.lists(LONGS)), st.integers(1, 3))
def test_rows_of_many_values_are_those_of_each(values: list[list[int]], width: int) -> None:
    whole = [numbers[: len(numbers) // width * width] for numbers in values]
    rows, ends = decode_rows([encode_longs(np.array(numbers, np.int64)) for numbers in whole], width)
    starts = [0, *ends.tolist()]
    assert [rows[starts[at] : starts[at + 1]].ravel().tolist() for at in range(len(whole))] == whole


@pytest.mark.parametrize("values", [[b"\x80", b"\2\2"], [b"\2", b"\2"], [b"\2\2", b"\2\2\2"], [b"", b"\2\x80"]])
def test_rows_end_with_their_values(values: list[bytes]) -> None:
    with pytest.raises(ValueError, match="expected"):
        decode_rows(values, 2)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_64_bits_cannot_hold_is_an_error(value: int) -> None:
    with pytest.raises(OverflowError, match="64-bit number"):
        encode_long(value)


@given(blocks("clicks", CHECKPOINTS, START_S))
def test_a_block_is_what_fastavro_writes(record: Keyed) -> None:
    value = record[1] or b""
    try:
        block = decode_block(value)
    except BadRecord:
        assume(False)
    assert encode_block(block) == written(BLOCK_SCHEMA, BLOCK_SCHEMA.decode(value))


@given(reports("clicks", "src", CHECKPOINTS, START_S))
def test_a_report_is_what_fastavro_writes(record: Keyed) -> None:
    value = record[1] or b""
    try:
        report = decode_report(value)
    except BadRecord:
        assume(False)
    assume(all(tally.lag_sketch.is_sound(MAX_COUNT) for tally in report.tallies))  # keys that repeat are written once
    row = REPORT_SCHEMA.decode(value)
    row["tallies"] = [
        packed(dict(tally_record(tally))) for tally in report.tallies
    ]  # numbers may be longer than they must
    assert encode_report(report) == written(REPORT_SCHEMA, row)

"""What is written by hand, against fastavro."""

from __future__ import annotations

import io

import fastavro
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lagloss.wire.avro import decode_long, decode_longs, encode_long, encode_longs
from lagloss.wire.format import (
    BLOCK_SCHEMA,
    REPORT_SCHEMA,
    BadRecord,
    decode_block,
    decode_report,
    encode_block,
    encode_report,
    tally_record,
)
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


@pytest.mark.parametrize("data", [b"\x80", b"\x02\xff", b"\xff" * 10 + b"\x01"])
def test_a_row_that_is_cut_off_or_has_a_number_that_is_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        decode_longs(data)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_64_bits_cannot_hold_is_an_error(value: int) -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        encode_long(value)


@given(blocks("clicks", CHECKPOINTS, START_S))
def test_a_block_is_what_fastavro_writes(record: Keyed) -> None:
    value = record[1] or b""
    try:
        block = decode_block(value)
    except BadRecord:
        assume(False)
    version = 2 if block.out_of_order is not None else 1 if block.traces is not None else 0
    assert encode_block(block) == written(BLOCK_SCHEMA.versions[version], BLOCK_SCHEMA.decode(value))


@given(reports("clicks", "src", CHECKPOINTS, START_S))
def test_a_report_is_what_fastavro_writes(record: Keyed) -> None:
    value = record[1] or b""
    report = decode_report(value)
    row = REPORT_SCHEMA.decode(value)
    row["tallies"] = [tally_record(tally) for tally in report.tallies]  # a bin that comes twice counts once
    version = REPORT_SCHEMA.versions[bool(report.resumes or report.labels)]
    assert encode_report(report) == written(version, row)

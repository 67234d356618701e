"""Files of events may be written and read by versions of the code that differ; spoiled ones are found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_under_test.batch.avro_files import (
    BadFile,
    CorruptFile,
    EmptyFile,
    TruncatedFile,
    UnknownSchema,
    check,
    decode,
    encode,
    encode_receipts,
    metadata_of,
)
from pipeline_under_test.batch.events import ScoreEvent, ScoreMaker

MAKER = ScoreMaker(7)
EVENTS = [MAKER.make(1_795_250_400_000 + at) for at in range(200)]


def test_a_reader_that_is_ahead_takes_the_default_of_a_field_that_the_writer_does_not_know() -> None:
    assert decode(encode(EVENTS, 1), 2) == [replace(event, referrer=None) for event in EVENTS]


def test_a_reader_that_is_behind_leaves_out_a_field_that_it_does_not_know() -> None:
    assert decode(encode(EVENTS, 2), 1) == [replace(event, referrer=None) for event in EVENTS]


def test_a_file_of_another_schema_is_unknown() -> None:
    with pytest.raises(UnknownSchema):
        decode(encode_receipts(["a", "b"]))


@given(st.data())
def test_no_cut_and_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    body = encode(EVENTS[:20])
    at = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(EmptyFile if at == 0 else TruncatedFile):
        check(body[:at], metadata_of(body))
    changed = body[:at] + bytes([body[at] ^ data.draw(st.integers(1, 255))]) + body[at + 1 :]
    with pytest.raises(CorruptFile):
        check(changed, metadata_of(body))


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_bad_file_or_events(body: bytes) -> None:
    with pytest.raises(BadFile):
        decode(body)


@pytest.mark.parametrize(
    ("campaign", "value", "problem"), [("c", 1.0, None), ("", 1.0, "campaign"), ("c", float("inf"), "value")]
)
def test_an_event_says_why_it_cannot_be_imported(campaign: str, value: float, problem: str | None) -> None:
    assert ScoreEvent("e", 1, campaign, "u", "Click", value).problem == problem

"""Reports are read quickly as `read_report` reads them, good or bad."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.reports import packed_reports
from aggregator.reports.packed_reports import PackedReport, PackedTally, read_reports
from lagloss.wire.checks import read_report
from lagloss.wire.format import (
    MAX_COUNT,
    MAX_PARTITIONS,
    BadReason,
    BadRecord,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    encode_report,
    unpack_ranges,
)
from lagloss.wire.sketch import MAX_KEY, Sketch
from tests.support.odd_records import Keyed, blocks, damaged, reports

START_S = 1_780_000_020
REPORTS = reports("odd", "src", ["src.in", "src.out"], START_S)
BLOCKS = blocks("odd", ["src.in"], START_S)


def as_read(value: bytes | None) -> EmitterReport | BadReason:
    """What `read_report` says of a record."""
    try:
        return read_report(value)
    except BadRecord as bad:
        return bad.reason


def as_read_quickly(values: list[bytes | None]) -> list[EmitterReport | BadReason]:
    return [
        each.reason
        if isinstance(each, BadRecord)
        else replace(each.head, tallies=tuple(unpacked(tally) for tally in each.tallies))
        for each in read_reports(values)
    ]


def unpacked(tally: PackedTally) -> Tally:
    fields = {name: getattr(tally, name) for name in PackedTally.__slots__}
    sketch = Sketch.from_bytes(tally.lag_sketch)
    assert tally.lowest_bin == (int(sketch.keys[0]) if sketch.keys.size else None)
    return Tally(**{**fields, "lag_sketch": sketch, "ranges": unpack_ranges(tally.ranges)})


def as_text(found: object) -> str:
    return repr(found)  # arrays in it have no single truth


@settings(max_examples=400)
@given(st.lists(REPORTS | damaged(REPORTS) | BLOCKS, min_size=1, max_size=5))
def test_any_records_are_read_as_one_by_one_in_full(records: list[Keyed]) -> None:
    values = [value for _, value in records]
    assert as_text(as_read_quickly(values)) == as_text([as_read(value) for value in values])


def report(sketch: Sketch, *ranges: OffsetRange) -> EmitterReport:
    tallies = (
        Tally("mid.in", START_S, 3, -7, sketch, ranges, "again", sample=1 << 30, payload_bytes=9, dropped=2),
        Tally("mid.out", START_S, 0, 0, Sketch(), ()),
    )
    progress = (Progress("mid.in", "topic/0", 1_780_000_000_000), Progress("mid.out", "", 0))
    return EmitterReport("p", "mid", b"e" * 16, "host", 7, 1, 2, False, 3, progress, tallies, labels={"zone": "a"})


SKETCH = Sketch.from_bins({-MAX_KEY: 1, 0: 1, 10_500: MAX_COUNT, MAX_KEY: 2})
RANGES = (
    OffsetRange(0, 0, 0),
    OffsetRange(0, 5, (1 << 63) - 1),
    OffsetRange(0, (1 << 63) - 1, (1 << 63) - 1),
    OffsetRange(MAX_PARTITIONS - 1, 4, 4),
)
GOOD = encode_report(report(SKETCH, *RANGES))


def test_good_reports_are_not_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = as_text([as_read(GOOD)] * 3)
    monkeypatch.setattr(packed_reports, "read_report", lambda _: pytest.fail("read in full"))
    assert as_text(as_read_quickly([GOOD] * 3)) == expected


@pytest.mark.parametrize(
    "odd",
    [
        report(Sketch.from_bins({MAX_KEY + 1: 1})),
        report(Sketch.from_bins({10_500: -1})),
        report(Sketch.from_bins({10_500: MAX_COUNT + 1})),
        report(Sketch(np.array([10_500, 10_400], np.int32), np.array([1, 1], np.int64))),
        report(SKETCH, OffsetRange(0, 5, 4)),
        report(SKETCH, OffsetRange(0, 5, 5), OffsetRange(0, 5, 6)),
        report(SKETCH, OffsetRange(1, 5, 5), OffsetRange(0, 5, 6)),
    ],
)
def test_bins_and_ranges_out_of_order_or_range_are_found_and_the_others_are_not_touched(odd: EmitterReport) -> None:
    value = encode_report(odd)
    good, bad, again = as_read_quickly([GOOD, value, GOOD])
    assert as_text(good) == as_text(again) == as_text(as_read(GOOD))
    assert bad == as_read(value) == "header_invalid"


def test_bins_and_ranges_are_kept_as_they_came() -> None:
    """A number may be written longer than it must."""
    (plain,) = read_reports([encode_report(report(Sketch.from_bins({0: 1})))])
    assert isinstance(plain, PackedReport)
    value = encode_report(report(Sketch.from_bins({0: 1})))
    assert value.count(b"\4\0\2") == 1  # two bytes: the bin
    (longer,) = read_reports([value.replace(b"\4\0\2", b"\6\x80\0\2")])
    assert isinstance(longer, PackedReport)
    assert [tally.lag_sketch for tally in (plain.tallies[0], longer.tallies[0])] == [b"\0\2", b"\x80\0\2"]


def test_records_of_many_batches_are_read_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_reports, "AT_ONCE", 2)
    values: list[Any] = [GOOD, None, b"", GOOD, b"\xc3\1" + bytes(8)]
    assert as_text(as_read_quickly(values)) == as_text([as_read(value) for value in values])

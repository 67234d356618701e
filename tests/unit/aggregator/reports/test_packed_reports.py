"""Reports are read quickly as `read_report` reads them, good or bad, however they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.reports import packed_reports
from aggregator.reports.packed_reports import PackedReport, PackedTally, read_reports
from lagloss.wire.avro import encode_long
from lagloss.wire.checks import read_report
from lagloss.wire.format import (
    REPORT_SCHEMA,
    BadRecord,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    encode_report,
    tally_record,
)
from lagloss.wire.sketch import MAX_KEY, Sketch
from tests.support.odd_records import Keyed, blocks, damaged, reports, written

START_S = 1_780_000_020
REPORTS = reports("odd", "src", ["src.in", "src.out"], START_S)
BLOCKS = blocks("odd", ["src.in"], START_S)


def said(value: bytes | None) -> tuple[EmitterReport, tuple[PackedTally, ...]] | str:
    """What `read_report` says of a record."""
    try:
        report = read_report(value)
    except BadRecord as bad:
        return str(bad)
    return report, tuple(map(PackedTally.of, report.tallies))


def read(values: list[bytes | None]) -> list[tuple[EmitterReport, tuple[PackedTally, ...]] | str]:
    found = []
    for each in read_reports(values):
        if isinstance(each, BadRecord):
            found.append(str(each))
        else:
            whole = {name: getattr(each.head, name) for name in EmitterReport.__slots__}
            whole["tallies"] = tuple(unpacked(tally) for tally in each.tallies)
            found.append((EmitterReport(**whole), each.tallies))
    return found


def unpacked(tally: PackedTally) -> Tally:
    fields = {name: getattr(tally, name) for name in PackedTally.__slots__ if name not in ("bins", "packed_ranges")}
    return Tally(**fields, lag_sketch=tally.lag_sketch, ranges=tally.ranges)


def as_text(found: Any) -> str:
    return repr(found)  # arrays in it have no single truth


@settings(max_examples=400)
@given(st.lists(REPORTS | damaged(REPORTS) | BLOCKS, min_size=1, max_size=5))
def test_any_records_are_read_as_one_by_one_in_full(records: list[Keyed]) -> None:
    values = [value for _, value in records]
    assert as_text(read(values)) == as_text([said(value) for value in values])


def report(sketch: Sketch, **fields: Any) -> EmitterReport:
    ranges = tuple(OffsetRange(partition, 5, 1 << 40) for partition in range(8))
    tallies = (
        Tally("mid.in", START_S, 3, -7, sketch, ranges, "again", sample=1 << 30, payload_bytes=9, dropped=2),
        Tally("mid.out", START_S, 0, 0, Sketch(), ()),
    )
    progress = (Progress("mid.in", "topic/0", 1_780_000_000_000), Progress("mid.out", "", 0))
    return EmitterReport("p", "mid", b"e" * 16, "host", 7, 1, 2, False, 3, progress, tallies, **fields)


SKETCH = Sketch.from_bins({-11_000: 1, 0: 1, 10_500: 1 << 40})


@pytest.mark.parametrize("fields", [{}, {"resumes": True, "labels": {"zone": "a"}}])
def test_a_usual_report_of_either_version_is_not_read_in_full(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = encode_report(report(SKETCH, **fields))
    expected = as_text(said(value))
    monkeypatch.setattr(packed_reports, "read_report", lambda _: pytest.fail("read in full"))
    assert as_text(read([value])[0]) == expected


@pytest.mark.parametrize(
    "bins",
    [
        [(0, 1), (0, 2)],
        [(10_500, 1), (10_400, 1)],
        [(MAX_KEY + 1, 1)],
        [(10_500, -1)],
        [(-(1 << 31), 1)],
    ],
)
def test_bins_out_of_order_or_range_are_judged_in_full_and_the_others_are_not_touched(
    bins: list[tuple[int, int]],
) -> None:
    good = encode_report(report(SKETCH))
    record = {"key": 0, "count": 0}
    tally = tally_record(Tally("mid.in", START_S, 1, 1, Sketch()))
    tally["lag_sketch"] = [{**record, "key": key, "count": count} for key, count in bins]
    fields = {name: getattr(report(SKETCH), name) for name in EmitterReport.__slots__}
    odd = written(REPORT_SCHEMA.newest, {**fields, "progress": [], "tallies": [tally]})
    assert as_text(read([good, odd, good])) == as_text([said(good), said(odd), said(good)])


def test_arrays_in_several_pieces_are_read_too() -> None:
    """As Avro allows, and some of its writers write them: a piece may say its size, with a negative count."""
    whole = encode_report(report(SKETCH))
    bins = SKETCH.to_bytes()
    at = whole.index(bins)
    assert whole[at - 1] == 6  # three bins in one piece
    first = encode_long(-1) + encode_long(len(bins[:4])) + bins[:4]
    second = encode_long(2) + bins[4:]
    assert len(Sketch.from_bytes(bins[:4]).keys) == 1
    pieces = whole[: at - 1] + first + second + whole[at + len(bins) :]
    (found,) = read_reports([pieces])
    assert isinstance(found, PackedReport)
    assert as_text(read([pieces])[0]) == as_text(said(pieces)) == as_text(said(whole))

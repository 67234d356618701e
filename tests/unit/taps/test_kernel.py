"""The kernel of taps: when records count as observed, and which windows lack those that make no beacon."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import RETENTION_MS, BeaconBlock, decode_block
from lagloss_server.extraction import Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap
from taps.kernel import BlockMaker, Blocks
from taps.plan import STANDING_MS, EndMark, Mark, OffsetSpan, TapPlan
from taps.records import SpanRecords

MINUTE_MS = 60_000
SINCE_MS = 29_000_000 * MINUTE_MS


def windows_of(gone: int, begins_ms: int, planned_at_ms: int) -> dict[int, int]:
    """Return the beacons that count as dropped, by window in minutes since the tap's first."""
    extraction = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("timestamp"))
    tap = Tap("p", "a", "", "t", None, ("in", "out"), extraction, first=True)
    made = Blocks()
    plan = TapPlan(1, planned_at_ms, 8, 1 << 32, begins_ms=begins_ms, through_ms=planned_at_ms)
    BlockMaker(tap, bytes(16), SINCE_MS, Extractor(extraction)).drop_gone(plan, gone, made)
    found = {key.window_start - SINCE_MS // 1_000: count for key, count in made.dropped.items() if key.place == "in"}
    assert {key.place for key in made.dropped} == {"in", "out"}
    return {start // 60: count for start, count in found.items()}


def test_deleted_records_may_be_of_any_window_since_the_last_plan() -> None:
    found = windows_of(20, SINCE_MS + 5 * MINUTE_MS, SINCE_MS + 9 * MINUTE_MS)
    assert found == {minute: 4 - (minute - 4 > 1) for minute in range(4, 10)}  # 20 = 2 * 4 + 4 * 3


def test_windows_that_are_too_old_to_be_judged_are_left_out() -> None:
    assert min(windows_of(1, 0, SINCE_MS + RETENTION_MS + 5 * MINUTE_MS)) == 6


def test_those_of_a_tap_that_begins_may_be_of_any_since_its_first() -> None:
    assert windows_of(1, 0, SINCE_MS + 2 * MINUTE_MS + 1) == {0: 1, 1: 1, 2: 1}


def observed(
    record: tuple[int, bytes], ends: tuple[EndMark, ...], *, is_append_time: bool = False, **changes: Any
) -> tuple[float | None, set[int]]:
    """Return when a record (timestamp, value) at offset 5 is observed, in s since the tap's first window; and the
    windows, in minutes since then, that are incomplete by it."""
    block, spoilt = block_of(record, ends, is_append_time=is_append_time, **changes)
    return (None if block is None else (EVENT_MS + float(block.lag_ms[0]) - SINCE_MS) / 1_000), spoilt


def block_of(
    record: tuple[int, bytes],
    ends: tuple[EndMark, ...],
    *,
    is_append_time: bool = False,
    cluster: str = "",
    **changes: Any,
) -> tuple[BeaconBlock | None, set[int]]:
    """Return the block of a record at offset 5, and the windows that are incomplete by it, as `observed` does."""
    span = replace(OffsetSpan(0, 5, 6, ends), **changes)
    plan = TapPlan(1, SINCE_MS + 30 * MINUTE_MS, 8, 1 << 32, spans=(span,))
    tap = Tap("p", "a", cluster, "t", "g" if span.commits else None, ("out",), EXTRACTION, first=False)
    stamp_ms, value = record
    columns = Records(np.array([stamp_ms]), [None], [value], [None])
    read = SpanRecords(np.array([5]), columns, np.array([is_append_time]))
    made = BlockMaker(tap, bytes(16), SINCE_MS, Extractor(EXTRACTION)).make(plan, {0: read})
    spoilt = {key.window_start // 60 - SINCE_MS // MINUTE_MS for key in made.dropped}
    return (decode_block(made.blocks[0].value) if made.blocks else None), spoilt


def at(seconds: float) -> int:
    return SINCE_MS + int(seconds * 1_000)


EXTRACTION = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
EVENT_MS = at(600)
ORDER = json.dumps({"id": "x", "at": EVENT_MS}).encode()
LOOKS = (EndMark(5, at(610), at(610)), EndMark(9, at(611), at(612)))
ANY_TIME = st.integers(-(1 << 63), (1 << 63) - 1)


@given(ANY_TIME)
def test_a_producer_s_timestamp_counts_between_the_looks_before_and_after_alone(stamp_ms: int) -> None:
    seen_s, spoilt = observed((stamp_ms, ORDER), LOOKS)
    assert seen_s == min(max((stamp_ms - SINCE_MS) / 1_000, 610), 612)
    assert not spoilt


@given(ANY_TIME)
def test_without_a_look_before_a_record_is_not_appended_before_it_happened(stamp_ms: int) -> None:
    seen_s, _ = observed((stamp_ms, ORDER), LOOKS[1:])
    assert seen_s == min(max((stamp_ms - SINCE_MS) / 1_000, 600), 612)


def test_the_broker_s_own_time_needs_no_looks() -> None:
    assert observed((at(605), ORDER), LOOKS, is_append_time=True) == (605, set())


@pytest.mark.parametrize(
    ("stamp_s", "has_group", "is_append_time", "by_s"),
    [
        (620, False, False, 700),
        (698.9, False, False, 700),
        (699, False, False, None),
        (620, False, True, None),
        (620, True, False, None),
    ],
)
def test_a_record_was_surely_appended_by_the_look_that_shows_it(
    stamp_s: float, has_group: bool, is_append_time: bool, by_s: int | None
) -> None:
    apart = (EndMark(5, at(610), at(610)), EndMark(9, at(700), at(700)))
    commits = (Mark(6, at(650)),) if has_group else ()
    block, _ = block_of((at(stamp_s), ORDER), apart, is_append_time=is_append_time, commits=commits)
    assert block is not None
    assert block.supplied_at == (None if by_s is None else at(by_s))


@pytest.mark.parametrize("has_group", [False, True])
def test_the_clock_of_another_cluster_is_not_measured(has_group: bool) -> None:
    commits = (Mark(6, at(620)),) if has_group else ()
    block, _ = block_of((at(620), ORDER), LOOKS, is_append_time=True, cluster="eu", commits=commits)
    assert block is not None
    assert block.supplied_at == at(30 * 60)  # when it was planned


def test_a_record_ahead_of_the_clock_spoils_the_window_in_which_others_may_find_it() -> None:
    for ahead_s, minutes in ((119, {29, 30, 31}), (121, {29, 30})):
        value = json.dumps({"id": "x", "at": at(30 * 60 + ahead_s)}).encode()
        ends = (EndMark(5, at(1_799), at(1_799)), EndMark(9, at(1_800), at(1_800)))
        block, spoilt = block_of((at(1_799), value), ends)
        assert block is None
        assert minutes <= spoilt
        assert (31 in spoilt) == (31 in minutes)


@given(ANY_TIME)
def test_an_unreadable_record_spoils_the_windows_that_looks_bound_whatever_its_timestamp(stamp_ms: int) -> None:
    _, spoilt = observed((stamp_ms, b"{"), LOOKS)
    stamped = {(stamp_ms - SINCE_MS) // MINUTE_MS - back for back in (0, 1)}
    assert {9, 10} <= spoilt <= {9, 10} | stamped
    assert all(0 <= minute <= 31 for minute in spoilt)


def test_an_unreadable_record_spoils_the_windows_of_the_records_beside_it() -> None:
    backlog = json.dumps({"id": "x", "at": at(120)}).encode()
    columns = Records(np.array([at(610)] * 2), [None] * 2, [backlog, b"{"], [None] * 2)
    read = SpanRecords(np.array([5, 6]), columns, np.array([False] * 2))
    plan = TapPlan(1, at(612), 8, 1 << 32, spans=(OffsetSpan(0, 5, 7, LOOKS),))
    tap = Tap("p", "a", "", "t", None, ("out",), EXTRACTION, first=False)
    made = BlockMaker(tap, bytes(16), SINCE_MS, Extractor(EXTRACTION)).make(plan, {0: read})
    assert {key.window_start // 60 - SINCE_MS // MINUTE_MS for key in made.dropped} == {2, 9, 10}


def test_what_a_commit_has_passed_before_it_was_there_is_received_by_nobody() -> None:
    taken = {"commits": (Mark(9, at(609)),)}
    assert observed((0, ORDER), LOOKS, **taken) == (609, set())
    assert observed((at(620), ORDER), LOOKS, **taken) == (609, set())  # a producer's clock may be ahead
    assert observed((0, ORDER), LOOKS, commits=(Mark(9, STANDING_MS),)) == (None, {10})
    assert observed((at(609), ORDER), (), is_append_time=True, commits=(Mark(9, at(603)),)) == (None, {10})


@pytest.mark.parametrize(
    "unset", [b"0", b"-1", b'"1970-01-01T00:00:00Z"', b'"0001-01-01T00:00:00Z"', b"639000000000000000"]
)
def test_a_record_whose_event_time_was_never_set_may_be_any_message(unset: bytes) -> None:
    tap = Tap("p", "a", "", "t", None, ("out",), EXTRACTION, first=False)
    plan = TapPlan(1, SINCE_MS + 9 * MINUTE_MS, 8, 1 << 32, spans=(OffsetSpan(0, 0, 2),))
    values = [b'{"id": "a", "at": %s}' % unset, b'{"id": "b", "at": %d}' % (SINCE_MS - 1)]
    records = Records(np.full(2, SINCE_MS + 5 * MINUTE_MS), [None] * 2, values, [None] * 2)
    read = {0: SpanRecords(np.arange(2), records, np.array([False] * 2))}
    made = BlockMaker(tap, bytes(16), SINCE_MS, Extractor(EXTRACTION)).make(plan, read)
    assert (made.counts.early, made.counts.unreadable["time_too_old"].count) == (1, 1)
    assert SINCE_MS // 1_000 + 300 in {key.window_start for key in made.dropped}

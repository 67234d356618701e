"""The kernel of taps: what retention deleted is missing wherever it may have been."""

from __future__ import annotations

from lagloss.wire.format import RETENTION_MS
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap
from taps.extraction import Extractor
from taps.kernel import BlockMaker, Blocks
from taps.plan import TapPlan

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

"""What the tap of a table reports of its lane, and what it does while the table cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lagloss.broker.topics import REPORTS
from lagloss.sdk.outlets.kafka import MemoryOutlet
from lagloss.wire.format import EmitterReport, decode_report
from lagloss_server.base.errors import TableUnreadable
from lagloss_server.extraction import Extractor
from lagloss_server.model.tables import TableSpec, TableTap
from taps.kernel import BlockMaker
from taps.metrics import TapMetrics
from taps.plan_runner import RELEASED_MS
from taps.records import TapCounts
from taps.store import OwnedTap
from taps.tables.reading import TablePlan, TableRead, TableRow
from taps.tables.runner import TableRunner
from taps.wanted import LINGER_MS, RunningTap

SPEC = TableSpec(database="shop", table="a.orders", id="id", event_time="at", cursor="n", flush="30s")
TAP = TableTap("p", "sink", SPEC, ("out",), first=False)
MINUTE_MS = 60_000
NOW_MS = 30_000_000 * MINUTE_MS


class Rows:
    """A table that answers as it is told."""

    interval_s = 1.0

    def __init__(self) -> None:
        self.answer = TableRead((), {"passed": 1}, NOW_MS, NOW_MS, until_ms=NOW_MS)
        self.trouble: str | None = None
        self.is_closed = False

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        if self.trouble is not None:
            raise TableUnreadable(table=SPEC.table, detail=self.trouble)
        return self.answer

    def close(self) -> None:
        self.is_closed = True


@dataclass
class OnePlan:
    """A store of one tap in memory."""

    plan: TablePlan = field(default_factory=lambda: TablePlan(0, NOW_MS - 10 * MINUTE_MS, 1, 1))
    trouble: str = ""
    is_forgotten: bool = False

    def is_stored(self, _emitter: bytes) -> bool:
        return True

    def claim(self, _emitter: bytes, read: Callable[[Mapping[str, Any]], TablePlan]) -> OwnedTap[TablePlan]:
        return OwnedTap(read(self.plan.document()), (), TapCounts())

    def advance(self, _emitter: bytes, plan: TablePlan, *_: object) -> None:
        assert plan.number == self.plan.number + 1
        self.plan, self.trouble = plan, ""

    def note_trouble(self, _emitter: bytes, trouble: str) -> None:
        self.trouble = trouble

    def forget(self, _emitter: bytes) -> None:
        self.is_forgotten = True

    def release(self, _emitter: bytes) -> None:
        pass


class World:
    def __init__(self, tap: TableTap = TAP) -> None:
        self.rows, self.store, self.memory = Rows(), OnePlan(), MemoryOutlet()
        self.running = RunningTap(tap, bytes(16), NOW_MS - 10 * MINUTE_MS)
        maker = BlockMaker(tap, self.running.emitter, self.running.since_ms, Extractor(tap.extraction))
        store: Any = self.store
        self.runner = TableRunner(self.running, store, self.memory, self.rows, maker, TapMetrics(), 0)
        self.step()  # carries out the plan with which a tap is stored

    @property
    def report(self) -> EmitterReport:
        return decode_report(self.memory.values(REPORTS)[-1])

    def step(self) -> float | None:
        return self.runner.step()


def test_the_lane_is_the_horizon_less_the_time_in_which_the_sink_can_still_write() -> None:
    world = World()
    world.step()
    (lane,) = world.report.progress
    assert (lane.checkpoint, lane.lane) == ("sink.out", "table a.orders of shop 00000000")
    assert lane.until == NOW_MS - 30_000
    world.rows.answer = replace(world.rows.answer, until_ms=0)  # a transaction is open
    world.step()
    assert world.report.progress == (lane,)


def test_a_clock_that_was_ahead_leaves_no_horizon_of_later_times_once_it_is_right() -> None:
    world = World()
    ahead_ms = NOW_MS + 10 * MINUTE_MS
    world.rows.answer = TableRead((), {"passed": 1}, ahead_ms, ahead_ms, until_ms=ahead_ms)
    world.step()
    assert [lane.until for lane in world.report.progress] == [ahead_ms - 30_000]
    world.rows.answer = TableRead((), {"passed": 1}, NOW_MS + 1, NOW_MS + 2, until_ms=NOW_MS)
    world.step()
    assert [lane.until for lane in world.report.progress] == [NOW_MS - 30_000]
    assert world.report.final_through == (NOW_MS + 1) // 1000


def test_a_horizon_that_is_not_known_holds_everything_back() -> None:
    world = World()
    world.rows.answer = replace(world.rows.answer, until_ms=0)
    world.step()
    assert [lane.until for lane in world.report.progress] == [0]


def test_what_fills_the_table_of_an_in_can_be_behind_by_any_time() -> None:
    world = World(replace(TAP, places=("in", "out")))
    world.step()
    assert {lane.checkpoint: lane.until for lane in world.report.progress} == {
        "sink.out": NOW_MS - 30_000,
        "sink.in": 0,
    }
    source = World(replace(TAP, places=("in", "out"), first=True))
    source.step()
    assert [lane.checkpoint for lane in source.report.progress] == ["sink.out"]


@pytest.mark.parametrize("first", [False, True])
def test_a_row_at_the_in_of_a_node_with_another_exit_says_nothing_of_what_the_node_has_done(first: bool) -> None:
    world = World(replace(TAP, places=("in",), first=first))
    world.step()
    assert {lane.checkpoint: lane.until for lane in world.report.progress if lane.checkpoint == "sink.out"} == {
        "sink.out": 0
    }


def test_a_horizon_of_a_clock_that_was_ahead_ends_at_the_look_that_shows_it() -> None:
    world = World()
    later_ms = NOW_MS + MINUTE_MS
    world.rows.answer = TableRead((), {}, later_ms, later_ms, until_ms=later_ms + 60 * MINUTE_MS)
    world.step()
    assert [lane.until for lane in world.report.progress] == [later_ms - 30_000]


def test_the_lane_of_a_tap_that_is_closed_holds_nothing_back() -> None:
    world = World()
    world.step()
    world.runner.stop(close=True)
    while world.step() is not None:
        pass
    assert world.report.closed
    assert [lane.until for lane in world.report.progress] == [RELEASED_MS]
    assert not world.report.tallies, "no window lacks anything"
    assert world.store.is_forgotten
    assert world.rows.is_closed


def test_a_tap_that_was_replaced_says_so_whatever_becomes_of_its_table_and_goes_on_with_its_windows() -> None:
    world = World()
    world.step()
    through_ms = world.store.plan.through_ms
    world.rows.trouble = "relation does not exist"
    until_ms = NOW_MS + MINUTE_MS
    world.runner.go_on_as(replace(world.running, until_ms=until_ms))
    world.step()
    assert (world.report.closed, world.report.unfinished, world.report.sent_at) == (True, True, until_ms)
    assert {lane.lane: lane.until for lane in world.report.progress} == {
        "": through_ms - 30_000,
        "table a.orders of shop 00000000": RELEASED_MS,
    }
    world.step()
    assert world.store.plan.ends_ms == until_ms, "others may begin"
    world.rows.trouble = None
    rows = (row(1, until_ms - 1), row(2, until_ms))
    world.rows.answer = TableRead(rows, {"passed": 2}, NOW_MS + 1, NOW_MS + 2, until_ms=NOW_MS)
    while not world.report.tallies:  # the first block can take longer than a turn waits
        world.step()
    assert [(tally.window_start, tally.beacons) for tally in world.report.tallies] == [(NOW_MS // 1_000, 1)]
    assert world.report.closed


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_a_tap_has_not_read_by_its_end_is_gone(is_behind: bool) -> None:
    world = World()
    world.step()
    world.rows.trouble = "timeout"
    until_ms = NOW_MS + (3 * MINUTE_MS if is_behind else -LINGER_MS)
    world.runner.go_on_as(replace(world.running, until_ms=until_ms))
    world.runner.stop(close=True)
    while world.step() is not None:
        pass
    dropped = {tally.window_start * 1_000 for tally in world.report.tallies if tally.dropped}
    assert dropped == (set(range(NOW_MS - 10 * MINUTE_MS, until_ms, MINUTE_MS)) if is_behind else set())
    assert world.store.is_forgotten


def row(place: int, event_ms: int) -> TableRow:
    return TableRow(place, json.dumps({"id": str(place), "eventTime": event_ms}))


def test_while_the_table_cannot_be_read_the_lane_stands_still_and_says_why() -> None:
    world = World()
    world.step()
    number, reports = world.store.plan.number, len(world.memory.values(REPORTS))
    world.rows.trouble = "permission denied"
    assert world.step()
    assert world.runner.is_troubled
    assert world.store.trouble.startswith("Cannot read table a.orders: permission denied")
    assert (world.store.plan.number, len(world.memory.values(REPORTS))) == (number, reports)
    world.rows.trouble = None
    world.step()  # repeats the last plan
    world.step()
    assert world.store.trouble == ""
    assert world.store.plan.number == number + 1


def test_windows_in_which_rows_can_be_missing_are_incomplete() -> None:
    world = World()
    world.step()
    later_ms = NOW_MS + 2 * MINUTE_MS
    world.rows.answer = TableRead((), {}, later_ms, later_ms, later_ms, break_="it was truncated or rewritten")
    world.step()
    dropped = [tally.window_start for tally in world.report.tallies if tally.dropped]
    assert sorted(dropped) == [(NOW_MS + minute * MINUTE_MS) // 1_000 for minute in (-1, 0, 1, 2)]


def test_rows_that_can_be_missing_can_be_late_ones() -> None:
    world = World()
    world.step()
    later_ms = NOW_MS + MINUTE_MS
    world.rows.answer = TableRead((), {}, later_ms, later_ms, later_ms, break_="expired", late_ms=3 * MINUTE_MS)
    world.step()
    dropped = [tally.window_start for tally in world.report.tallies if tally.dropped]
    assert sorted(dropped) == [(NOW_MS + minute * MINUTE_MS) // 1_000 for minute in range(-4, 2)]


def test_the_next_look_is_due_when_the_kind_of_table_has_news() -> None:
    world = World()
    world.rows.interval_s = 15.0
    pause_s = world.step()
    assert pause_s is not None
    assert 10 < pause_s <= 15


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_row_is_dated_by_the_look_that_shows_it(is_complete: bool) -> None:
    world = World()
    world.step()
    row = TableRow(7, '{"id": "a", "eventTime": ' + str(NOW_MS) + "}")
    world.rows.answer = TableRead([row], {}, NOW_MS + 900, NOW_MS + 1_000, NOW_MS, is_complete=is_complete)
    world.step()
    (tally,) = world.report.tallies
    assert tally.beacons == 1
    assert 950 < (tally.lag_sketch.quantile_ms(0.5) or 0) < 1_050
    assert world.store.plan.through_ms == (NOW_MS + 900 if is_complete else NOW_MS)

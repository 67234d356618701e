"""The wall clock steps by an hour: lags show it as it is, and nothing waits for the clock to come by again."""

from __future__ import annotations

import time

import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.kafka.lane_proofs import Lane
from lagloss.wire.format import decode_block, decode_report
from tests.support.kafka_log import wait_for

HOUR_MS = 3_600_000
FLUSH_S = 0.1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How far every clock of the emitter is off, in ms; the monotonic one goes on."""
    off_ms = [0]
    time_ns, now_s = time.time_ns, time.time
    for module in ("emitter", "buffer", "shipper"):
        monkeypatch.setattr(f"lagloss.sdk.{module}.time_ns", lambda: time_ns() + off_ms[0] * 1_000_000)
    monkeypatch.setattr("time.time", lambda: now_s() + off_ms[0] / 1000)
    monkeypatch.setattr("lagloss.sdk.flusher.LONGEST_S", FLUSH_S)
    monkeypatch.setattr("lagloss.sdk.shipper.REPORT_S", FLUSH_S)
    return off_ms


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["forwards", "backwards"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "inner"])
def test_beacons_and_reports_go_on_within_a_flush_of_a_step(clock: list[int], step_ms: int, first: bool) -> None:
    log = MemoryOutlet()
    with Emitter("clicks", "mid", outlet=lambda: log, first=first) as emitter:
        event_ms = time.time_ns() // 1_000_000
        assert emitter.received("before", event_ms)
        assert emitter.flush()
        sequence = decode_report(log.values(REPORTS)[-1]).seq
        with emitter.processing():
            clock[0] = step_ms
            began = time.monotonic()
            # what an hour old or young clock would set as event time, and what others set
            assert emitter.received("after", event_ms + step_ms)
            assert emitter.sent("after", event_ms) == (not first or step_ms > 0)
            wait_for(lambda: emitter.stats().sent == 3 - emitter.stats().refused, 5)
            wait_for(lambda: decode_report(log.values(REPORTS)[-1]).seq > sequence, 5)
            assert time.monotonic() - began < 10 * FLUSH_S
        assert emitter.flush()
        report = decode_report(log.values(REPORTS)[-1])
    lags = {
        (block.checkpoint, lag)
        for value in log.values(BEACONS)
        for block in [decode_block(value)]
        for lag in block.lag_ms
    }
    assert all(abs(lag - (step_ms if checkpoint == "mid.out" else 0)) < 2_000 for checkpoint, lag in lags)
    assert abs(report.sent_at - event_ms - step_ms) < 5_000
    assert abs(report.final_through * 1000 - event_ms - step_ms) < 5_000
    assert [progress.until // 1000 for progress in report.progress] == [report.final_through]


def test_a_tally_that_a_step_makes_look_old_goes_on_where_it_was(
    clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss.sdk.flusher.TIDY_S", 0.0)
    log = MemoryOutlet()
    with Emitter("clicks", "mid", outlet=lambda: log) as emitter:
        event_ms = time.time_ns() // 1_000_000
        for step_ms in (0, HOUR_MS, -HOUR_MS):
            clock[0] = step_ms
            emitter.received("m", event_ms)
            assert emitter.flush()
            assert emitter.flush()
    tallies = [tally for value in log.values(REPORTS) for tally in decode_report(value).tallies]
    assert [tally.beacons for tally in tallies] == [1, 2, 3]


def test_a_lane_follows_a_clock_that_is_set_back_rather_than_stand_until_it_comes_by() -> None:
    lane, now_ms = Lane(since=0.0), 1_700_000_000_000
    lane.add_end(10, now_ms)
    lane.advance(10, 0)
    assert lane.until == now_ms
    lane.add_end(12, now_ms + 1_000)
    lane.add_end(12, now_ms - HOUR_MS)
    lane.advance(11, 0)
    assert lane.until == now_ms
    lane.advance(12, 0)
    assert lane.until == now_ms - HOUR_MS
    lane.advance(12, now_ms - HOUR_MS + 5)  # the broker's clock, of a record that was taken in
    assert lane.until == now_ms - HOUR_MS + 5

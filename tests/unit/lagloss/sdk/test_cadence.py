"""The cadence: how long beacons wait for their flush, whatever comes when."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.sdk.emitter import MAX_BUFFERED
from lagloss.sdk.flusher import ENOUGH, LONGEST_S, SHORTEST_S, wait_s
from lagloss.wire.format import decode_block
from tests.support.kafka_log import wait_for

TICK_S = 1e-6
ROOM = st.sampled_from([1, 10, 999, MAX_BUFFERED])


def flushes_s(
    beacons_s: list[float], max_buffered: int = MAX_BUFFERED, awaited_from_s: float = math.inf
) -> list[float]:
    """When the emitter flushes, from 0 until it has all these beacons; `beacons_s`: when each is observed, and from
    `awaited_from_s` on they are waited for."""
    flushed, now_s = [0.0], 0.0
    while flushed[-1] < max(beacons_s, default=0):
        beacons = sum(flushed[-1] < at <= now_s for at in beacons_s)
        left_s = wait_s(now_s - flushed[-1], beacons, max_buffered, is_awaited=now_s >= awaited_from_s)
        if left_s <= 0:
            flushed.append(now_s)
        else:
            now_s += max(left_s, TICK_S)
    return [round(at, 3) for at in flushed]


def steady(per_s: float, for_s: float = 10) -> list[float]:
    return [(at + 0.5) / per_s for at in range(math.ceil(per_s * for_s))]


@given(st.lists(st.floats(0.01, 20), max_size=50), st.integers(1, 40), ROOM)
def test_no_flush_comes_within_the_shortest_interval_and_none_after_the_longest(
    beacons_s: list[float], times: int, room: int
) -> None:
    gaps = [after - before for before, after in itertools.pairwise(flushes_s(beacons_s * times, room))]
    assert all(SHORTEST_S - 0.002 <= gap <= LONGEST_S + 0.002 for gap in gaps)


@given(st.floats(0.01, 20), st.lists(st.floats(0.01, 20), max_size=20), ROOM)
def test_a_burst_waits_for_the_shortest_interval_at_most(burst_s: float, others_s: list[float], room: int) -> None:
    flushed = flushes_s([*others_s, *[burst_s] * ENOUGH], room)
    assert min(at for at in flushed if at >= burst_s - 1e-3) - burst_s <= SHORTEST_S + 0.002


@pytest.mark.parametrize(
    ("per_s", "gaps"),
    [(1, {2.5}), (100, {2.5}), (249, {2.5}), (251, {2.0}), (499, {2.0}), (501, {1.0}), (5_000, {1.0})],
)
def test_a_steady_rate_is_flushed_at_its_interval(per_s: float, gaps: set[float]) -> None:
    assert {after - before for before, after in itertools.pairwise(flushes_s(steady(per_s)))} == gaps


def test_a_rate_that_rises_shortens_the_wait_that_is_under_way() -> None:
    slow, fast = steady(10, for_s=1.2), [1.2 + at for at in steady(1_000, for_s=2)]
    assert flushes_s(slow + fast)[:3] == [0, 2, 3]


def test_beacons_that_are_waited_for_wait_for_the_shortest_interval_at_most() -> None:
    assert flushes_s(steady(10), awaited_from_s=3)[:4] == [0, 2.5, 3.5, 4.5]
    assert flushes_s(steady(10), awaited_from_s=1.5)[:3] == [0, 2, 3]


def test_half_a_small_buffer_is_enough() -> None:
    assert flushes_s(steady(60), max_buffered=100)[:3] == [0, 1, 2]
    assert flushes_s(steady(40), max_buffered=100)[:3] == [0, 2, 4]


def test_beacons_are_sent_soon_once_they_are_waited_for_or_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lagloss.sdk.flusher.SHORTEST_S", 0.01)
    monkeypatch.setattr("lagloss.sdk.flusher.LONGEST_S", 60)
    log, now_ms = MemoryOutlet(), time.time_ns() // 1_000_000
    with Emitter("clicks", "mid", outlet=lambda: log) as emitter:
        assert emitter.received("few", now_ms)
        mark = emitter.mark()
        wait_for(lambda: emitter.acknowledged(mark), 5)
        assert all(emitter.received(f"many-{at}", now_ms) for at in range(ENOUGH))
        wait_for(lambda: emitter.stats().sent == ENOUGH + 1, 5)
        assert emitter.received("last", now_ms)
    assert sum(decode_block(value).count for value in log.values(BEACONS)) == ENOUGH + 2

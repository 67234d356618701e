"""Wide windows: what an honest emitter names is never cut, what is forged costs no more than its bound, and a read a
little at a time comes to its end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.closing import wide_reads
from aggregator.closing.wide_reads import Share, WideReads
from lagloss.sdk.account import Account
from lagloss.sdk.packing import Increment
from lagloss.wire.format import MAX_AHEAD_MS, BeaconBlock, OffsetRange, Tally, block_key, encode_block
from lagloss_server.queries.named_ranges import believed
from lagloss_server.queries.offset_ranges import SMALL_GAP, is_doubtful, records_in
from tests.support.log_in_memory import LogInMemory

START_S = 1_795_250_400
KEY = block_key("clicks", START_S)
MOST = 100
"""Records that a pipeline may have read in one turn of these tests."""


def send(log: LogInMemory, gaps: Sequence[tuple[int, int]], *, in_order: bool, seed: int) -> Tally:
    """An emitter's blocks of one window, each after so many records of others in a partition; the SDK's tally, whose
    acknowledgements came in any order of three."""
    account, acknowledged = Account("src"), []
    moment_ms = START_S * 1000 - 2 * MAX_AHEAD_MS  # some of it was there before any block of the window may be
    for seq, (partition, others) in enumerate(gaps):
        for _ in range(others):
            moment_ms += 1
            log.append(partition, appended_ms=moment_ms)
        block = BeaconBlock(
            "clicks", "src.in", bytes(16), seq, START_S, 2, np.array([seq], np.uint64), np.zeros(1, np.float32)
        )
        offset = log.append(partition, KEY, encode_block(block), max(moment_ms, START_S * 1000))
        acknowledged.append((Increment.of(block, 0), partition, offset))
    if not in_order:
        dice = random.Random(seed)
        for at in range(0, len(acknowledged), 3):
            some = acknowledged[at : at + 3]
            dice.shuffle(some)
            acknowledged[at : at + 3] = some
    for increment, partition, offset in acknowledged:
        account.add(increment, partition, offset, START_S)
    (tally,) = account.changed()
    return tally


def own(log: LogInMemory) -> set[tuple[int, int]]:
    return {(at.partition, at.offset) for records in log.partitions.values() for at in records if at.key == KEY}


def held_by(ranges: Sequence[OffsetRange]) -> set[tuple[int, int]]:
    return {(at.partition, offset) for at in ranges for offset in range(at.first, at.last + 1)}


def read(log: LogInMemory, named: Sequence[OffsetRange], beacons: int, most: int = MOST) -> tuple[Share, int]:
    """The share of the window once there is one, and how many turns that took."""
    reads: Any = WideReads(log)  # type: ignore[arg-type]
    for turn in range(100_000):
        reads.go_on()
        if reads.waits(("clicks", START_S)):
            continue
        doubtful = is_doubtful(named, beacons)
        share = reads.share(("clicks", START_S), named, [], log.watermarks(), most, is_doubtful=doubtful)
        if share is not None:
            return share, turn
    raise AssertionError("the window is never read")


GAPS = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(st.integers(0, 5), st.integers(0, 400))), min_size=1, max_size=30
)


@pytest.fixture(autouse=True, scope="module")
def one_record_a_turn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_reads, "READ_S", 0.0)
        yield


@given(GAPS, st.booleans(), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_of_an_honest_tally_every_block_is_read_and_no_range_refused(
    gaps: list[tuple[int, int]], in_order: bool, seed: int
) -> None:
    log = LogInMemory()
    tally = send(log, gaps, in_order=in_order, seed=seed)
    share, _ = read(log, tally.ranges, tally.beacons)
    assert share.refused == set()
    kept = {(record.partition, record.offset) for record in share.kept}
    assert own(log) <= kept | held_by(share.ranges)
    assert records_in(share.ranges) <= MOST
    seen: Any = log
    assert own(log) <= held_by(believed(seen, "clicks", START_S, [(tally.ranges, tally.beacons)]))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 100_000)), min_size=1, max_size=30))
def test_a_tally_whose_acknowledgements_came_in_order_is_never_doubtful(steps: list[tuple[int, int]]) -> None:
    account, ends = Account("src"), {0: 0, 1: 0}
    for partition, step in steps:
        ends[partition] += step
        block = BeaconBlock(
            "clicks", "src.in", bytes(16), 0, START_S, 2, np.zeros(1, np.uint64), np.zeros(1, np.float32)
        )
        account.add(Increment.of(block, 0), partition, ends[partition], START_S)
    (tally,) = account.changed()
    assert not is_doubtful(tally.ranges, tally.beacons)


@cache
def busy_log() -> LogInMemory:
    """A log with two of the window's blocks in each of two partitions, thousands of records apart."""
    log = LogInMemory()
    send(log, [(0, 5_000), (1, 3_000), (0, 12_000), (1, 9_000)], in_order=True, seed=0)
    for partition in (0, 1):
        for _ in range(3_000):
            log.append(partition, appended_ms=START_S * 1000 + 60_000)
    return log


FORGED = st.lists(
    st.builds(
        lambda partition, first, size: OffsetRange(partition, first, first + size),
        st.sampled_from([0, 1, 65_535]),
        st.one_of(st.integers(0, 20_000), st.integers(0, 2**62)),
        st.one_of(st.integers(0, 20_000), st.integers(0, 2**62)),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda item: item.partition,
)


@given(FORGED, st.integers(0, 100))
@settings(deadline=None)
def test_what_is_named_by_a_tally_that_forges_is_cut_to_its_beacons_and_a_small_gap(
    forged: list[OffsetRange], beacons: int
) -> None:
    busy = busy_log()
    before = busy.passed
    share, turns = read(busy, forged, beacons, most=100_000)
    assert records_in(share.ranges) <= len(forged) * (beacons + SMALL_GAP + 1) or own(busy) & held_by(share.ranges)
    assert busy.passed - before <= 2 * len(forged)  # their ends are looked at
    assert turns <= len(forged) + 2
    assert is_doubtful(forged, beacons) or not share.refused


def test_a_tally_of_everything_has_nothing_read() -> None:
    busy = busy_log()
    everything = [OffsetRange(partition, 0, 2**62) for partition in range(8)]
    share, _ = read(busy, everything, 2**53 - 1)
    assert (share.ranges, share.refused) == ([], set(everything))


def test_a_range_between_own_blocks_begins_where_the_window_may_have_its_first() -> None:
    busy = busy_log()
    first, last = (place.offset for place in busy.partitions[0] if place.key == KEY)
    share, _ = read(busy, [OffsetRange(0, first, last)], 2, most=100_000)
    (only,) = share.ranges
    assert (only.last, share.refused) == (last, set())
    assert busy.partitions[0][only.first].appended_ms >= START_S * 1000 - MAX_AHEAD_MS


def test_wide_windows_of_two_pipelines_are_read_by_turns() -> None:
    busy = busy_log()
    reads: Any = WideReads(busy)  # type: ignore[arg-type]
    wide = [OffsetRange(0, at, at) for at in range(0, 16_000, 50)]
    for name in ("one", "two"):
        assert reads.share((name, START_S), wide, [], busy.watermarks(), MOST, is_doubtful=False) is None
    for _ in range(2 * len(wide) + 200):
        reads.go_on()
    progress = [records_in(read.covered) for read in reads._reads.values()]
    assert min(progress) > 0
    assert max(progress) - min(progress) <= 1


def test_a_window_with_more_blocks_than_may_be_kept_is_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_reads, "KEPT_BYTES", 300)
    log = LogInMemory()
    tally = send(log, [(0, 30)] * 40, in_order=True, seed=0)
    share, _ = read(log, tally.ranges, tally.beacons)
    assert not share.kept
    assert own(log) <= held_by(share.ranges)
    reads: Any = WideReads(log)  # type: ignore[arg-type]
    later = ("clicks", START_S + 60)
    for window in (("clicks", START_S), later):
        assert reads.share(window, tally.ranges, [], log.watermarks(), MOST, is_doubtful=True) is None
    while not reads.share(("clicks", START_S), tally.ranges, [], log.watermarks(), MOST, is_doubtful=True):
        reads.go_on()
    assert reads.waits(later)
    reads.done([("clicks", START_S)])
    assert not reads.waits(later)


def test_a_range_that_has_grown_since_it_was_read_is_read_on() -> None:
    log = LogInMemory()
    tally = send(log, [(0, 150), (0, 150)], in_order=True, seed=0)
    named = [OffsetRange(0, tally.ranges[0].first, tally.ranges[-1].last)]
    reads: Any = WideReads(log)  # type: ignore[arg-type]
    window = ("clicks", START_S)

    def share(named: Sequence[OffsetRange]) -> Share | None:
        return reads.share(window, named, [], log.watermarks(), MOST, is_doubtful=True)  # type: ignore[no-any-return]

    assert share(named) is None
    while reads.waits(window):
        reads.go_on()
    for others in (10, 200):  # little is left to the turn that closes it, much is read as before
        for _ in range(others):
            log.append(0, appended_ms=START_S * 1000)
        last = log.append(0, KEY, b"", START_S * 1000)
        while (found := share([OffsetRange(0, named[0].first, last)])) is None:
            reads.go_on()
        kept = {(record.partition, record.offset) for record in found.kept}
        assert own(log) <= kept | held_by(found.ranges)
        assert not found.refused


def test_a_read_that_fails_concerns_its_windows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = busy_log()
    reads: Any = WideReads(busy)  # type: ignore[arg-type]
    wide = [OffsetRange(0, 5_000, 17_001)]
    for name in ("clicks", "orders"):
        assert reads.share((name, START_S), wide, [], busy.watermarks(), MOST, is_doubtful=False) is None
    monkeypatch.setattr(busy, "records", None)
    reads.go_on()
    reads.go_on()
    for name in ("clicks", "orders"):
        with pytest.raises(TypeError):
            reads.share((name, START_S), wide, [], busy.watermarks(), MOST, is_doubtful=False)
    assert reads.share(("others", START_S), wide[:0], [], busy.watermarks(), MOST, is_doubtful=False) == Share([])

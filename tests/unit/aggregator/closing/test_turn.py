"""A turn's limits: what it looks up counts, and no pipeline has more read in it than its part."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from aggregator.closing.reading import WindowReads
from lagloss.wire.format import OffsetRange
from lagloss_server.judging.evidence import EmitterState
from lagloss_server.queries.offset_ranges import MANY_RECORDS
from tests.support.log_in_memory import LogInMemory

DAY_MS = 86_400_000
HELD = 10_000_000


class SlowLog(LogInMemory):
    """A broker that takes 2 ms for an answer, and holds much."""

    def topic_id(self) -> str:
        return "one"

    def offsets_at(self, moment_ms: int) -> dict[int, int]:
        time.sleep(0.002)
        self.asked.append(moment_ms)
        return dict.fromkeys(self.partitions, min(moment_ms // 1_000, HELD))

    def watermarks(self) -> dict[int, Any]:
        return {partition: SimpleNamespace(low=0, high=HELD) for partition in self.partitions}


def reads_on(log: LogInMemory) -> Any:
    """Reads of which only the planning works."""
    nothing: Any = None
    beacons: Any = log
    return WindowReads(nothing, nothing, nothing, beacons, nothing)


def knowing(ranges: dict[tuple[str, int], list[OffsetRange]], died_ms: dict[tuple[str, int], list[int]]) -> Any:
    """What the reports say of some windows: their ranges, and when emitters died in them."""

    def evidence(pipeline: str, start_s: int) -> Any:
        states = [
            EmitterState(bytes(16), "src", 0, moment, False, 0, moment, 0) for moment in died_ms[pipeline, start_s]
        ]
        return SimpleNamespace(silent=lambda: states)

    reports = SimpleNamespace(ranges=ranges, doubtful=frozenset())
    return SimpleNamespace(reports=reports, evidence=evidence, now_ms=10 * DAY_MS)


def test_lookups_of_last_words_end_with_the_turn() -> None:
    log, windows = SlowLog(), [(f"p{at}", 0) for at in range(1_000)]
    died = {window: [DAY_MS + at * 100_000] for at, window in enumerate(windows)}  # none shares another's answer
    reads, known = reads_on(log), knowing({window: [] for window in windows}, died)
    begun = time.monotonic()
    shares = reads.shares(known, windows, begun + 0.1)
    assert 0 < len(shares) < 100
    assert len(log.asked) <= 2 * len(shares) + 1
    assert reads.shares(known, windows, begun).keys() == {windows[0]}  # one at least, so that all have their turn


def test_windows_of_emitters_that_died_together_share_the_answers() -> None:
    log, windows = SlowLog(), [("p", 60 * at) for at in range(50)]
    died = {window: [DAY_MS + at for at in range(0, 33_000, 11)] for window in windows}
    shares = reads_on(log).shares(knowing({window: [] for window in windows}, died), windows)
    assert len(shares) == 50
    assert len(log.asked) <= 2 + 1


def test_a_pipeline_has_no_more_read_in_a_turn_than_its_part_and_the_others_have_theirs() -> None:
    log, each = SlowLog(), MANY_RECORDS // 3
    windows = [window for at in range(10) for window in (("greedy", 60 * at), ("small", 60 * at))]
    ranges = {
        (name, start): [OffsetRange(0, start // 60 * size, start // 60 * size + size - 1)]
        for name, start in windows
        for size in [each if name == "greedy" else 10]
    }
    reads, known = reads_on(log), knowing(ranges, {window: [] for window in windows})
    reads._wide.most_records = lambda held, now_ms: MANY_RECORDS
    left = list(windows)
    turns = 0
    while left:
        shares = reads.shares(known, left)
        assert sum(name == "greedy" for name, _ in shares) in (1, 3)
        assert turns > 0 or sum(name == "small" for name, _ in shares) == 10
        left = [window for window in left if window not in shares]
        turns += 1
    assert turns == 4

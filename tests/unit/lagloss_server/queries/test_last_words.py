"""Where blocks of emitters that died may lie: all of it is found, and what the broker is asked for is bounded."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.judging.evidence import EmitterState
from lagloss_server.queries.emitters import BUCKET_MS, DYING_MS, MOST_SPANS, last_words
from lagloss_server.queries.offset_ranges import Watermarks

HELD = {0: Watermarks(0, 10**9)}
DAY_MS = 86_400_000


class Asked:
    """A partition that takes a record each millisecond; what it was asked for."""

    def __init__(self) -> None:
        self.moments: list[int] = []

    def offsets_at(self, moment_ms: int) -> dict[int, int]:
        self.moments.append(moment_ms)
        return {0: moment_ms}


def died_at(moment_ms: int) -> EmitterState:
    return EmitterState(bytes(16), "src", 0, moment_ms, False, 0, moment_ms, 0)


def test_3_000_emitters_that_died_within_33_s_take_two_lookups() -> None:
    log, dice = Asked(), random.Random(1)
    found = last_words(log.offsets_at, [died_at(DAY_MS + dice.randrange(33_000)) for _ in range(3_000)], HELD)
    assert len(found) == 1
    assert len(log.moments) == 2  # two for each of them once


def test_50_000_emitters_that_died_in_a_week_take_a_bounded_number() -> None:
    log = Asked()
    last_words(log.offsets_at, [died_at(at * 7 * DAY_MS // 50_000) for at in range(50_000)], HELD)
    sparse = Asked()
    last_words(sparse.offsets_at, [died_at(at * 60_000) for at in range(7 * 1_440)], HELD)
    assert len(log.moments) <= 2 * MOST_SPANS
    assert len(sparse.moments) == 2 * MOST_SPANS


@given(st.lists(st.integers(DAY_MS, 2 * DAY_MS), max_size=120))
def test_what_is_around_each_last_report_is_found(moments: list[int]) -> None:
    log = Asked()
    found = last_words(log.offsets_at, map(died_at, moments), HELD)
    for moment in moments:
        assert any(at.first <= moment - DYING_MS and moment + DYING_MS <= at.last for at in found)
    if len(found) < MOST_SPANS:  # nothing was joined but what touches: little more is read
        assert all(
            any(
                at.first - moment <= DYING_MS + BUCKET_MS and abs(at.first + DYING_MS - moment) <= BUCKET_MS
                for moment in moments
            )
            for at in found
        )

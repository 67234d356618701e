"""The search finds what a node sustains, to a tenth, whatever that is; what is not committed counts as late."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_under_test.stream.processes.scaling import Ratings
from pipeline_under_test.stream.rating.search import (
    LOWEST_RATE,
    TOLERANCE,
    NothingSustained,
    RateTrial,
    highest_sustained,
)
from pipeline_under_test.stream.rating.traffic import Done, WaitingRequest

TARGET_S = 2.0


class Node:
    """Keeps its lag up to `capacity` events a second; the load makes `load` of them at most."""

    def __init__(self, capacity: float, load: float = math.inf) -> None:
        self.capacity = capacity
        self.load = load
        self.asked: list[float] = []

    def __call__(self, per_s: float) -> RateTrial:
        self.asked.append(per_s)
        sent = min(per_s, self.load)
        return RateTrial(per_s, sent, 1.0 if sent <= self.capacity else math.inf)


@given(st.floats(LOWEST_RATE, 1e5), st.floats(LOWEST_RATE, 1e4))
def test_the_search_ends_within_a_tenth_below_the_capacity(capacity: float, first: float) -> None:
    node = Node(capacity)
    found = highest_sustained(node, TARGET_S, first).sent_per_s
    assert found <= capacity
    assert found >= capacity * (1 - TOLERANCE) - 1e-6
    assert len(node.asked) < 30


@given(st.floats(LOWEST_RATE, 1e5), st.floats(10, 1e4))
def test_where_the_load_has_no_more_to_give_its_most_is_the_rating(capacity: float, load: float) -> None:
    found = highest_sustained(Node(capacity, load), TARGET_S).sent_per_s
    assert found <= min(capacity, load)
    assert found >= min(capacity, load) * (1 - TOLERANCE) - 1e-6


def test_a_node_that_does_not_even_take_one_event_a_second_has_no_rating() -> None:
    with pytest.raises(NothingSustained, match="expected a lag of 2 s at 1 event/s, found inf s"):
        highest_sustained(Node(0.5), TARGET_S)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60),
)
def test_each_record_is_done_once_and_when_its_offset_was_first_seen_committed(steps: list[tuple[int, bool]]) -> None:
    waiting, ends, appended, found, now_s = WaitingRequest(), [0, 0, 0], {}, [], 0.0
    for number, is_committed in steps:
        now_s += 1
        waiting.appended(("t", number), ends[number], now_s)
        appended[now_s] = (number, ends[number])
        ends[number] += 1
        if is_committed:
            found += waiting.committed({("t", number): ends[number]}, now_s)
            assert all(appended[one.sent_s][0] == number for one in found if one.sent_s + one.lag_s == now_s)
    still = [at_s for at_s in appended if at_s not in {one.sent_s for one in found}]
    assert waiting.oldest_s() == (min(still) if still else None)
    found += waiting.committed({("t", number): end for number, end in enumerate(ends)}, now_s)
    assert sorted(one.sent_s for one in found) == sorted(appended)
    assert all(one.lag_s >= 0 for one in found)


def test_what_is_not_committed_is_not_done() -> None:
    waiting = WaitingRequest()
    for offset in range(3):
        waiting.appended(("t", 0), offset, float(offset))
    assert waiting.committed({("t", 1): 9}, 5.0) == []
    assert waiting.committed({("t", 0): 2}, 5.0) == [Done(0.0, 5.0), Done(1.0, 4.0)]
    assert waiting.oldest_s() == 2.0


def test_ratings_are_read_as_they_were_written_and_none_where_there_is_no_file(tmp_path: Path) -> None:
    assert Ratings.load(tmp_path) == Ratings({})
    text = '{"event-norm": {"events_per_s": 1234.5, "lag_target_s": 2.0, "at": "2026-01-02T03:04:05Z"}}'
    made = Ratings.model_validate_json(text)
    made.save(tmp_path)
    assert Ratings.load(tmp_path) == made
    assert made.root["event-norm"].events_per_s == 1234.5

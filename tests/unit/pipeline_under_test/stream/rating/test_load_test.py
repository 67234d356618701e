"""A trial sends at its rate whatever the node does, measures after the warm-up, and leaves nothing behind."""

from __future__ import annotations

import time
from collections import deque

import pytest

from pipeline_under_test.stream.rating import load_test
from pipeline_under_test.stream.rating.load_test import Bench, NodeFailed, attempt
from pipeline_under_test.stream.rating.traffic import Done

TARGET_S = 0.3
BENCH = Bench("stub", ())


class Node:
    """Does `capacity` events a second, one after the other, from when the first was sent."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.sent = 0
        self.idle_at = 0.0
        self.waiting: deque[tuple[float, float]] = deque()

    def send(self, count: int) -> None:
        now = time.time()
        self.sent += count
        for _ in range(count):
            self.idle_at = max(self.idle_at, now) + 1 / self.capacity
            self.waiting.append((now, self.idle_at))

    def look(self) -> list[Done]:
        now, done = time.time(), []
        while self.waiting and self.waiting[0][1] <= now:
            sent_s, done_s = self.waiting.popleft()
            done.append(Done(sent_s, done_s - sent_s))
        return done

    def oldest_s(self) -> float | None:
        return self.waiting[0][0] if self.waiting else None

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_test, "WARM_UP_S", 0.2)


def test_a_rate_below_the_capacity_is_sustained() -> None:
    node = Node(capacity=1000)
    made = attempt(BENCH, node, 200, 1.0, TARGET_S)
    assert made.is_full
    assert made.lag_p95_s < TARGET_S
    assert node.oldest_s() is None
    assert node.sent == pytest.approx(200 * 1.2, rel=0.1)


def test_a_rate_above_the_capacity_is_late_and_its_trial_ends_early_with_all_done() -> None:
    node = Node(capacity=200)
    made = attempt(BENCH, node, 600, 30.0, TARGET_S)
    assert made.lag_p95_s > TARGET_S
    assert node.oldest_s() is None
    assert node.sent < 600 * 10


def test_a_node_that_does_not_get_through_what_it_was_sent_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_test, "DRAIN_TIMEOUT_S", 0.2)
    with pytest.raises(NodeFailed, match="stub still has unprocessed events"):
        attempt(BENCH, Node(capacity=0.001), 100, 30.0, TARGET_S)

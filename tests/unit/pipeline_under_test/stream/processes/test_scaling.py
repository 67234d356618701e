"""The scaler carries out what the policy wants, and every change is written down with what it was made from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline_under_test.harness.group import Group
from pipeline_under_test.harness.policies import Policy, Rules
from pipeline_under_test.stream.processes.scaling import Ratings, Scaler, Scaling
from pipeline_under_test.stream.topology import CONN_GA, EVENT_NORM, EVENT_ROUTER, SCALED
from tests.fakes.queues import Queues

TIMEOUT_S = 30
QUICK = Rules(trend_s=2, quiet_s=3, cool_down_s=1)


@pytest.fixture
def groups(tmp_path: Path) -> dict[str, Group]:
    """Groups that want processes and are given none: nobody tends them."""
    return {node: Group(node, (), tmp_path, tmp_path, 1, 2) for node in SCALED}


@contextmanager
def scaling(policy: Policy, groups: dict[str, Group], arrived: int, data_dir: Path) -> Iterator[Scaler]:
    asked = Scaling(policy, 1, 2, QUICK)
    made = Scaler(asked, asked.ratings(data_dir), groups, Queues(arrived), data_dir)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def step_until(scaler: Scaler, condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT_S} s"
        scaler.step()
        time.sleep(0.02)


def test_a_change_is_carried_out_and_written_down_with_what_it_was_made_from(
    groups: dict[str, Group], tmp_path: Path
) -> None:
    groups[CONN_GA].is_held = True
    began_ms = time.time() * 1000
    with scaling("queue-lag", groups, 1000, tmp_path) as scaler:
        step_until(scaler, lambda: groups[EVENT_NORM].wanted == 2, "one more")
        step_until(scaler, lambda: scaler.seen()[EVENT_NORM]["processes"] == 2, "what is seen afterwards")
    assert groups[CONN_GA].wanted == 1  # nobody is missing where there are to be none
    assert groups["col-service"].wanted == 1  # no queue stands before it
    decisions = [json.loads(line) for line in (tmp_path / "scaling.jsonl").read_text().splitlines()]
    [made] = [decision for decision in decisions if decision["node"] == EVENT_NORM]
    assert began_ms <= made.pop("at_ms") <= time.time() * 1000
    assert made.pop("lag_s") >= 2
    assert made.pop("backlog") >= 3000
    assert "events are waiting" in made.pop("reason")
    assert made == {"node": EVENT_NORM, "policy": "queue-lag", "processes": 1, "cpu": 0, "wanted": 2}


def test_by_ratings_only_the_nodes_that_are_rated_become_more(groups: dict[str, Group], tmp_path: Path) -> None:
    rating = '{"events_per_s": 600, "lag_target_s": 2, "at": "2026-01-02T03:04:05Z"}'
    Ratings.model_validate_json(f'{{"{EVENT_ROUTER}": {rating}}}').save(tmp_path)
    with scaling("rated", groups, 1000, tmp_path) as scaler:
        step_until(scaler, lambda: groups[EVENT_ROUTER].wanted == 2, "one more")
    assert {node: group.wanted for node, group in groups.items() if group.wanted != 1} == {EVENT_ROUTER: 2}


def test_without_a_policy_nobody_is_looked_at(groups: dict[str, Group], tmp_path: Path) -> None:
    queues = Queues(1000)
    scaler = Scaler(Scaling(), {}, groups, queues, tmp_path)
    scaler.start()
    scaler.step()
    scaler.stop()
    assert queues.looks == 0
    assert scaler.seen() == {}

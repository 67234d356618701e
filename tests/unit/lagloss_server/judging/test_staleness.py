"""Staleness as of a window's end, against an oracle that looks at every single message."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.sketch import Sketch
from lagloss_server.judging.arithmetic import judge
from lagloss_server.judging.evidence import Evidence
from lagloss_server.judging.facts import CheckpointFacts, Pattern, WindowFacts
from lagloss_server.judging.staleness import (
    LOOK_BACK_S,
    DueMessages,
    SeenMinutes,
    awaited,
    ins_and_outs,
    lowest_lags_ms,
    staleness_ms,
)
from lagloss_server.model.definition import parse_definition
from tests.support.window_documents import clicks, window_of

START_S = 1_800_000_000
END_S = START_S + 60
MINUTE_MS = 60_000

messages = st.tuples(st.integers(0, 40 * MINUTE_MS - 1), st.integers(0, 90 * MINUTE_MS))
"""How long before the window's end it happened, and its lag (both ms)."""


def minute_of(age_ms: int) -> int:
    return (END_S * 1_000 - age_ms - 1) // MINUTE_MS * 60


@given(st.lists(messages, max_size=30))
def test_a_checkpoint_is_at_least_as_stale_as_is_said(found: list[tuple[int, int]]) -> None:
    lowest: dict[int, float] = {}
    for age_ms, lag_ms in found:
        lowest[minute_of(age_ms)] = min(lag_ms, lowest.get(minute_of(age_ms), math.inf))
    said = staleness_ms(START_S, SeenMinutes(lowest), SeenMinutes())
    seen = [age_ms for age_ms, lag_ms in found if lag_ms <= age_ms]
    if seen:
        assert said is not None
        assert said <= min(seen)


@pytest.mark.parametrize("lag_s", [0, 5, 59, 60, 600, 3_600])
def test_a_steady_stream_is_as_stale_as_its_lag(lag_s: int) -> None:
    minutes = {START_S - at * 60: lag_s * 1_000.0 for at in range(120)}
    said = staleness_ms(START_S, SeenMinutes(minutes), SeenMinutes(minutes))
    assert said is not None
    assert lag_s * 1_000 - MINUTE_MS < said <= lag_s * 1_000


def test_an_outage_makes_it_grow_until_messages_come_again_and_late_ones_do_not_unsay_it() -> None:
    came = SeenMinutes({START_S + at * 60: 0.0 for at in range(-5, 11)})
    at_once = {START_S + at * 60: 1_000.0 for at in (*range(-5, 0), 10)}
    grown = [staleness_ms(START_S + at * 60, SeenMinutes(at_once), came) for at in range(-1, 11)]
    assert grown == [1_000, *(at * MINUTE_MS for at in range(1, 11)), 1_000]
    late = at_once | {START_S + at * 60: (10 - at) * 60_000.0 + 1 for at in range(10)}
    assert [staleness_ms(START_S + at * 60, SeenMinutes(late), came) for at in range(-1, 11)] == grown


def test_an_idle_source_is_awaited_only_since_messages_came_again() -> None:
    seen, came = SeenMinutes({START_S - 7_200: 500.0}), SeenMinutes({START_S - 7_200: 0.0, START_S - 60: 0.0})
    assert staleness_ms(START_S, seen, came) == 2 * MINUTE_MS


def test_what_was_never_seen_or_too_long_ago_has_none() -> None:
    assert staleness_ms(START_S, SeenMinutes(), SeenMinutes()) is None
    assert staleness_ms(START_S, SeenMinutes({START_S - LOOK_BACK_S: 0.0}), SeenMinutes()) is None


def test_the_lowest_lag_is_of_live_beacons() -> None:
    facts = WindowFacts(checkpoints={"a.in": CheckpointFacts(3, lags=Sketch.of(np.array([40.0, 7.0, 900.0])))})
    assert lowest_lags_ms(facts) == {"a.in": pytest.approx(7, rel=0.01)}
    assert lowest_lags_ms(WindowFacts(checkpoints={"a.in": CheckpointFacts(0, replayed=4)})) == {}


def test_only_what_leads_to_a_destination_with_messages_is_awaited() -> None:
    graph = clicks().graph
    to_ga = graph.mask(["col-service.in", "col-service.out", "event-norm.in", "event-norm.out", "event-router.in",
                        "event-router.out:conn-ga", "conn-ga.in", "conn-ga.out"])  # fmt: skip
    facts = WindowFacts(patterns=(Pattern(to_ga, 10),))
    result = judge(graph, facts, Evidence(START_S, (END_S + 60) * 1_000, (), (), ()))
    expected = set(ins_and_outs(graph)) - {"event-router.out:conn-fb", "conn-fb.in", "conn-fb.out"}
    assert awaited(graph, result) == expected
    filtered = graph.mask(["col-service.in", "col-service.filtered"])
    nothing = judge(graph, WindowFacts(patterns=(Pattern(filtered, 10),)), Evidence(START_S, END_S * 1_000, (), (), ()))
    assert awaited(graph, nothing) == frozenset()


def test_a_hand_over_to_a_retrier_is_not_awaited() -> None:
    definition = parse_definition(
        "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: retried}, spec: {nodes: "
        "[{name: a, to: [b], retries: again}, {name: b}, {name: again}]}}"
    )
    assert list(ins_and_outs(definition.graph)) == ["a.in", "a.out", "b.in", "b.out"]


def test_messages_that_are_in_no_part_are_due_everywhere() -> None:
    rows = [{"name": name, "due": due, "filtered": 0, "dead": 0} for name, due in (("ga", 3), ("fb", 0))]
    some = DueMessages.of(window_of({"destinations": rows, "sample": 1.0, "on_time_share": 1.0, "on_time_of": 3}))
    assert (some.at("ga"), some.at("fb"), some.at(None)) == (True, False, True)
    outside = DueMessages.of(window_of({"destinations": rows, "sample": 1.0, "on_time_share": 0.5, "on_time_of": 6}))
    assert (outside.at("ga"), outside.at("fb")) == (True, True)

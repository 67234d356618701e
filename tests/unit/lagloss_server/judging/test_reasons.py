"""Filtered and dead messages, counted by node and reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lagloss.wire.format import SAMPLE_ALL
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.arithmetic import judge
from lagloss_server.judging.evidence import Evidence
from lagloss_server.judging.facts import MAX_REASONS as KEPT_REASONS
from lagloss_server.judging.facts import CheckpointFacts, WindowFacts
from lagloss_server.model.window import (
    MAX_REASONS,
    OTHER_REASONS,
    ReasonRow,
    Window,
    bounded_reasons,
)
from lagloss_server.sums.rollup import Rollup
from tests.support.window_documents import clicks

START_S = 1_795_250_400
GRAPH = clicks().graph
COUNTS = st.dictionaries(st.text(min_size=1, max_size=3) | st.just(OTHER_REASONS), st.integers(1, 100), max_size=30)
REASONS = {
    "conn-ga.dead": {"unreadable": 3},
    "conn-ga.filtered": {"no consent": 20, "bot": 5},
    "event-norm.filtered": {"bot": 1},
}


def judged(facts: WindowFacts) -> Window:
    return judge(GRAPH, facts, Evidence(START_S, (START_S + 120) * 1_000, emitters=(), tallies=(), lanes=()))


def facts(**more: object) -> WindowFacts:
    counts = {"conn-ga.dead": 5, "conn-ga.filtered": 25, "event-norm.filtered": 1}
    checkpoints = {name: CheckpointFacts(count, 0, count) for name, count in counts.items()}
    return replace(WindowFacts(checkpoints=checkpoints, reasons=REASONS), **more)  # type: ignore[arg-type]


@given(COUNTS, st.integers(1, 30))
def test_bounded_reasons_keep_the_most_frequent_and_the_sum(counts: dict[str, int], room: int) -> None:
    found = bounded_reasons(counts, room)
    assert sum(found.values()) == sum(counts.values())
    assert len(found.keys() - {OTHER_REASONS}) <= room
    left_out = [count for reason, count in counts.items() if reason not in found]
    assert all(found[reason] >= max(left_out, default=0) for reason in found.keys() - {OTHER_REASONS})
    assert bounded_reasons(bounded_reasons(counts, KEPT_REASONS), room) == found


def test_a_window_counts_reasons_by_node_in_the_order_of_the_flow() -> None:
    result = judged(facts())
    assert result.reasons_by_node == {
        "event-norm": {"filtered": {"bot": 1}},
        "conn-ga": {"filtered": {"no consent": 20, "bot": 5}, "dead": {"unreadable": 3}},
    }
    assert list(result.reasons_by_node or {}) == ["event-norm", "conn-ga"]
    assert result.document()["reasons_by_node"] == result.reasons_by_node


def test_reasons_of_a_sample_are_scaled() -> None:
    result = judged(facts(sample=SAMPLE_ALL // 4))
    assert (result.reasons_by_node or {})["conn-ga"]["dead"] == {"unreadable": 12}


def test_a_window_of_which_no_beacon_was_read_knows_no_reasons() -> None:
    assert judged(WindowFacts()).reasons_by_node == {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lagloss_server.judging.arithmetic.proves", lambda *_: True)
        assert judged(WindowFacts(arrivals=(Sketch(), Sketch()), proven=True)).reasons_by_node is None


def test_many_reasons_are_bounded_in_facts_and_results() -> None:
    many = {f"reason {at:03}": 200 - at for at in range(150)}
    found = facts(reasons={"conn-ga.dead": many})
    packed = WindowFacts.unpack(found.pack())
    assert len(packed.reasons["conn-ga.dead"]) == KEPT_REASONS + 1
    dead = (judged(found).reasons_by_node or {})["conn-ga"]["dead"]
    assert len(dead) == MAX_REASONS + 1
    assert dead == (judged(packed).reasons_by_node or {})["conn-ga"]["dead"]
    assert sum(dead.values()) == sum(many.values())


def test_rows_have_the_rest_whose_reason_is_not_known() -> None:
    assert judged(facts()).reason_rows == [
        ReasonRow("conn-ga", "filtered", "no consent", 20),
        ReasonRow("conn-ga", "filtered", "bot", 5),
        ReasonRow("conn-ga", "dead", "unreadable", 3),
        ReasonRow("conn-ga", "dead", None, 2),
        ReasonRow("event-norm", "filtered", "bot", 1),
    ]
    unread = structs.replace(judged(facts()), reasons_by_node=None)
    assert {row.reason for row in unread.reason_rows} == {None}


def test_roll_ups_add_reasons_up_and_keep_them_packed() -> None:
    one = Rollup.of_window(judged(facts()), facts())
    unread = structs.replace(one, reasons={})
    both = Rollup.merged([one, one, unread])
    assert both.reasons["conn-ga"]["filtered"] == {"no consent": 40, "bot": 10}
    assert Rollup.unpack(both.pack()).pack() == both.pack()
    assert Rollup.unpack(both.pack()).reasons == both.reasons
    assert ReasonRow("conn-ga", "filtered", None, 25) in both.reason_rows

"""Whether a span is whole: closed, nothing on the way, and no more lost than the SLA allows."""

from __future__ import annotations

from typing import Any

import pytest

from lagloss_server.model.definition import Definition
from lagloss_server.runs.wholeness import Wholeness, WindowState, wholeness
from tests.oracle.by_hand import ByHand, worked_case
from tests.oracle.plan import START_MS, START_S
from tests.support.in_memory import close_in_memory


def judged(case: ByHand, node: str | None = None, minutes: int = 1, max_loss: float = 0.01) -> Wholeness:
    world = case.world()
    closed = close_in_memory(world, START_S)
    window = WindowState(closed.result, closed.facts)
    graph = Definition.model_validate(case.definition).graph
    return wholeness("chain", START_S, START_S + 60 * minutes, node, [(graph, window)], max_loss)


# of ten messages j is lost on link src->mid, i at node mid, g on link mid->snk; h is filtered
@pytest.mark.parametrize(("node", "missing"), [("src", 0), ("mid", 2), ("snk", 3), (None, 3)])
def test_a_span_is_judged_up_to_a_node(node: str | None, missing: int) -> None:
    found = judged(worked_case(), node)
    assert (found.messages, found.missing, found.lost) == (10, missing, missing)
    assert found.state == ("lossy" if missing else "whole")


def test_what_is_lost_within_the_sla_is_not_waited_for() -> None:
    found = judged(worked_case(), max_loss=0.5)
    assert (found.state, found.why) == ("whole", "3 of 10 messages lost")


def test_a_message_on_the_way_is_waited_for_only_where_it_is() -> None:
    stands: dict[str, Any] = {"until_ms": {"mid.in": START_MS}}
    assert (judged(worked_case(**stands)).state, judged(worked_case(**stands), "src").state) == ("waiting", "whole")
    assert judged(worked_case(**stands)).why == "1 message in flight"


def test_minutes_that_are_not_closed_and_incomplete_evidence_are_waited_for() -> None:
    assert judged(worked_case(), "src", minutes=3).why == "2 of 3 minutes are not closed"
    uncertain = worked_case(tally_more={"mid.in": 1})
    assert (judged(uncertain).state, judged(uncertain).why) == ("waiting", "evidence is incomplete at mid")
    assert judged(uncertain, "src").state == "whole"


@pytest.mark.parametrize(("dead", "state"), [("mid", "whole"), ("snk", "whole"), ("src", "waiting")])
def test_a_process_that_died_past_the_first_node_is_not_waited_for_once_all_has_come(dead: str, state: str) -> None:
    checkpoints = ("src.in", "src.out", "mid.in", "mid.out", "snk.in", "snk.out")
    all_came = worked_case(trail=dict.fromkeys(checkpoints, "abc"), appended_ms={dead: START_MS + 30_000})
    assert judged(all_came).state == state


def test_what_may_be_lost_where_a_process_died_is_waited_for() -> None:
    assert judged(worked_case(appended_ms={"mid": START_MS + 30_000})).state == "waiting"

"""The examples that docs/arithmetic.md gives in figures, through the code that closes windows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.oracle.by_hand import ByHand, document, worked_case
from tests.oracle.plan import START_MS, START_S
from tests.support.in_memory import close_in_memory


def judged(case: ByHand) -> dict[str, Any]:
    return close_in_memory(case.world(), START_S).result.document()


def lost_at(result: dict[str, Any]) -> dict[str, tuple[int, int]]:
    places = {node["name"]: node["lost"] for node in result["nodes"]}
    places |= {f"{link['from']}->{link['to']}": link["lost"] for link in result["links"]}
    return {name: (lost["min"], lost["max"]) for name, lost in places.items() if lost["max"]}


def test_the_worked_case_loses_three_of_ten_at_three_places() -> None:
    result = judged(worked_case())
    assert (result["messages"], result["delivered"], result["filtered"]) == (10, 6, 1)
    assert result["lost"] == {"min": 3, "max": 3}
    assert result["loss_ratio"] == {"min": 0.3, "max": 0.3}
    assert result["verdict"] == "loss"
    assert lost_at(result) == {"src->mid": (1, 1), "mid": (1, 1), "mid->snk": (1, 1)}


def test_a_message_whose_lane_stands_still_is_pending() -> None:
    result = judged(worked_case(until_ms={"mid.in": START_MS}))
    assert (result["pending"], result["lost"]) == (1, {"min": 2, "max": 2})
    assert "pending" in result["reasons"]


def test_a_lost_beacon_in_the_middle_changes_nothing() -> None:
    trail = {**worked_case().trail, "mid.in": "acdefghi"}
    result = judged(worked_case(trail=trail))
    assert (result["lost"], result["verdict"]) == ({"min": 3, "max": 3}, "loss")


def test_a_tally_that_claims_more_than_was_read_makes_losses_uncertain() -> None:
    result = judged(worked_case(tally_more={"mid.in": 1}))
    assert (result["lost"], result["verdict"]) == ({"min": 1, "max": 3}, "loss")
    assert "evidence:mid" in result["reasons"]


def test_the_talks_table_gives_its_losses() -> None:
    # Counts 10, 9, 7, 5 at four nodes: per-node loss 0, 1, 2, 2; end to end 5, which is 50 %.
    names = ("a", "b", "c", "d")
    seen = {"a": "0123456789", "b": "012345678", "c": "0123456", "d": "01234"}
    nodes: list[dict[str, Any]] = [{"name": name, "to": [after]} for name, after in itertools.pairwise(names)]
    trail = {f"{name}.{side}": ids for name, ids in seen.items() for side in ("in", "out")}
    result = judged(ByHand(document(*nodes, {"name": "d"}), trail))
    counts = {c["name"]: c["distinct"] for c in result["checkpoints"]}
    assert [counts[f"{name}.in"] for name in names] == [10, 9, 7, 5]
    lost = {**dict.fromkeys(names, (0, 0)), **lost_at(result)}
    per_node = [lost["a"][0]] + [
        lost[before][0] + lost.get(f"{before}->{name}", (0, 0))[0] for before, name in itertools.pairwise(names)
    ]
    assert per_node == [0, 1, 2, 2]
    assert (result["lost"], result["loss_ratio"]["min"]) == ({"min": 5, "max": 5}, 0.5)


def test_the_talks_lags_give_process_durations() -> None:
    # lag-in 1, 3, 8 ms and lag-out 2, 4, 10 ms at A, B, C.
    nodes: list[dict[str, Any]] = [{"name": "A", "to": ["B"]}, {"name": "B", "to": ["C"]}, {"name": "C"}]
    lags = {"A.in": 1.0, "A.out": 2.0, "B.in": 3.0, "B.out": 4.0, "C.in": 8.0, "C.out": 10.0}
    result = judged(ByHand(document(*nodes), dict.fromkeys(lags, "0123456789"), lags=lags))
    durations = [node["process_duration_p95_ms"] for node in result["nodes"]]
    assert durations == pytest.approx([1, 1, 2], abs=0.2)
    assert [link["queue_time_p95_ms"] for link in result["links"]] == pytest.approx([1, 4], abs=0.2)
    assert result["e2e_lag_ms"]["p95"] == pytest.approx(10, rel=0.01)

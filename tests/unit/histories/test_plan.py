"""Plans of histories, and the table of their results."""

from __future__ import annotations

from tests.histories.history import Plan
from tests.histories.nemeses import NEMESES
from tests.histories.table import table


def test_a_seed_stands_for_one_plan_and_each_fault_is_healed_after_it_began() -> None:
    plans = [Plan.draw(seed) for seed in range(200)]
    assert plans == [Plan.draw(seed) for seed in range(200)]
    assert {name for plan in plans for name in plan.names} == set(NEMESES)
    assert {len(plan.names) for plan in plans} == {1, 2}
    for plan in plans:
        assert [step.at_s for step in plan.steps] == sorted(step.at_s for step in plan.steps)
        for index in range(len(plan.names)):
            begin, end = (step for step in plan.steps if step.nemesis == index)
            assert (begin.verb, end.verb) == ("inflict", "heal")
            shortest_s, longest_s = NEMESES[plan.names[index]].lasts_s
            assert shortest_s <= end.at_s - begin.at_s <= longest_s


def test_chosen_faults_are_those_of_the_plan() -> None:
    assert Plan.draw(3, ["kill", "pause"]).names == ("kill", "pause")


def test_the_table_counts_histories_by_their_faults_whatever_their_order() -> None:
    results = [
        {"nemeses": ["a"], "problems": []},
        {"nemeses": ["a", "b"], "problems": []},
        {"nemeses": ["b", "a"], "problems": ["x"]},
    ]
    assert table(results, ["a", "b"]).splitlines() == [
        "|  | 1 | 2 |",
        "| --- | --- | --- |",
        "| 1 a | 1 |  |",
        "| 2 b | 2 (1) |  |",
        "",
        "3 histories, 1 with problems.",
    ]

"""Whatever reports a log loses before they are followed: no loss is certain but what is missing by all reports."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lagloss.wire.format import decode_report
from tests.oracle import oracle
from tests.oracle.evidence import World
from tests.oracle.plan import START_S, Plan
from tests.oracle.topologies import TOPOLOGIES
from tests.oracle.worlds import build_world, plans
from tests.support.in_memory import close_in_memory


def without_reports(world: World, partition: int, first: int, last: int) -> World:
    """The world whose log has lost these reports of a partition, by their order in it, and is whole from the next on;
    of its blocks, what the tallies of the others name is read."""
    of_partition = sorted((each for each in world.reports if each.partition == partition), key=lambda each: each.offset)
    lost, behind = of_partition[first : last + 1], of_partition[last + 1 :]
    kept = tuple(each for each in world.reports if each not in lost)
    ranges = [place for each in kept for tally in decode_report(each.value).tallies for place in tally.ranges]
    blocks = tuple(
        block
        for block in world.beacons
        if any(place.partition == block.partition and place.first <= block.offset <= place.last for place in ranges)
    )
    whole_from_ms = behind[0].timestamp_ms if behind else world.now_ms
    return replace(world, reports=kept, beacons=blocks, whole_from_ms=whole_from_ms)


def certain(world: World) -> set[int]:
    return {missing.id.id_hash for missing in close_in_memory(world, START_S).missing if missing.kind == "lost"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(plan=plans(), data=st.data())
def test_no_loss_is_certain_but_of_what_is_missing_by_all_reports(plan: Plan, data: st.DataObject) -> None:
    readable = plan.phenomena - {"lost_reports", "ignored_reports"}
    world = build_world(replace(plan, phenomena=readable))
    partition = data.draw(st.sampled_from(sorted({each.partition for each in world.reports})))
    count = sum(each.partition == partition for each in world.reports)
    first = data.draw(st.integers(0, count - 1))
    world_cut = without_reports(world, partition, first, data.draw(st.integers(first, count - 1)))
    assert certain(world_cut) <= oracle.missing(world, START_S).keys()


@pytest.mark.parametrize("is_noted", [False, True])
def test_unless_it_is_noted_a_lost_report_makes_losses_certain(is_noted: bool) -> None:
    false_losses = 0
    for seed in range(30):
        phenomena = frozenset({"judged_late", "several_emitters"})
        world = build_world(Plan(sorted(TOPOLOGIES)[seed % len(TOPOLOGIES)], 8, 1, phenomena, seed))
        about = [each for each in world.reports if tells_of_window(each.value)]
        one = random.Random(seed).choice(about)
        at = sum(each.partition == one.partition and each.offset < one.offset for each in world.reports)
        world_cut = without_reports(world, one.partition, at, at)
        world_cut = world_cut if is_noted else replace(world_cut, whole_from_ms=0)
        false_losses += len(certain(world_cut) - oracle.missing(world, START_S).keys())
    assert (false_losses == 0) == is_noted


def tells_of_window(report: bytes) -> bool:
    return any(tally.window_start == START_S for tally in decode_report(report).tallies)

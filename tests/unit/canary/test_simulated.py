"""Simulated minutes without servers: the SDK's records in memory, the aggregator's rules, and the witness."""

from __future__ import annotations

import pytest

from canary.plan import MinutePlan
from tests.oracle.evidence import World
from tests.support.canary_past import judged, simulate


@pytest.fixture(scope="module")
def simulated() -> tuple[list[MinutePlan], World]:
    return simulate(10)


def test_each_minute_is_right(simulated: tuple[list[MinutePlan], World]) -> None:
    plans, world = simulated

    assert {plan.start_s: judged(world, plan).problems for plan in plans} == {plan.start_s: () for plan in plans}


def test_a_beacon_that_is_missing_in_the_log_is_noticed(simulated: tuple[list[MinutePlan], World]) -> None:
    plans, world = simulated
    kept = [record for number, record in enumerate(world.beacons) if number % 10]
    spoilt = World(world.definitions, tuple(kept), world.reports, world.now_ms)

    assert any(not judged(spoilt, plan).is_right for plan in plans[:5])

"""Every field of a result, compared with the oracle in tests/oracle, which shares no code with lagloss."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings

from tests.oracle import oracle
from tests.oracle.evidence import World
from tests.oracle.worlds import make_world, worlds
from tests.support.in_memory import close_in_memory


def assert_as_the_oracle_says(world: World, start_s: int) -> None:
    expected, closing = oracle.judge(world, start_s), close_in_memory(world, start_s)
    found = closing.result.document()
    for document in (expected, found):
        document["checkpoints"].sort(key=lambda checkpoint: checkpoint["name"])
    assert found == expected
    missing = {
        named.id.id_hash: (named.kind, sorted(named.places))
        for named in closing.missing
        if expected["reasons"].count("sample") == 0
    }
    told = {
        id_hash: ("lost" if fate["kind"] == "lost" else fate["kind"], sorted(fate["places"]))
        for id_hash, fate in oracle.missing(world, start_s).items()
        if expected["reasons"].count("sample") == 0
    }
    assert {id_hash: kind for id_hash, (kind, _) in missing.items()} == {i: kind for i, (kind, _) in told.items()}


@pytest.mark.parametrize("seed", range(60))
def test_random_world_is_judged_as_the_oracle_judges_it(seed: int) -> None:
    assert_as_the_oracle_says(*make_world(random.Random(seed)))


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_any_world_is_judged_as_the_oracle_judges_it(found: tuple[World, int]) -> None:
    assert_as_the_oracle_says(*found)

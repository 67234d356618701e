"""How long a refused record's partition rests, and what is read again."""

from __future__ import annotations

import pytest

from pipeline_under_test.stream.nodes import loop
from pipeline_under_test.stream.nodes.loop import Refusals

PLACE, OTHER = ("clicks.conn-ga", 0), ("clicks.conn-ga", 1)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "REST_S", 0)


def test_a_partition_is_read_again_from_the_first_record_that_was_refused() -> None:
    refused = Refusals()
    for offset in (7, 5, 9):
        refused.add(PLACE, offset)
    refused.add(OTHER, 2)
    assert sorted(refused.rested({})) == [(PLACE, 5), (OTHER, 2)]
    assert PLACE not in refused
    assert list(refused.rested({})) == []


def test_a_partition_rests_while_anything_of_it_is_in_flight() -> None:
    refused = Refusals()
    refused.add(PLACE, 7)
    assert list(refused.rested({PLACE: {"an older one"}, OTHER: set()})) == []
    assert PLACE in refused
    refused.add(PLACE, 6)
    assert list(refused.rested({PLACE: set()})) == [(PLACE, 6)]


def test_a_partition_rests_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "REST_S", 60)
    refused = Refusals()
    refused.add(PLACE, 7)
    assert list(refused.rested({})) == []


def test_a_partition_that_is_another_processs_is_not_read_again() -> None:
    refused = Refusals()
    refused.add(PLACE, 7)
    refused.drop(PLACE)
    assert PLACE not in refused
    assert list(refused.rested({})) == []

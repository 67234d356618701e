"""How long a refused record's partition rests, and what is read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lagloss import Emitter, MemoryOutlet
from pipeline_under_test.stream.nodes import handover, refusals
from pipeline_under_test.stream.nodes.refusals import Refusals

PLACE, OTHER = ("clicks.conn-ga", 0), ("clicks.conn-ga", 1)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REST_S", 0)


@pytest.fixture
def emitter() -> Iterator[Emitter]:
    with Emitter("clicks", "conn-ga", outlet=MemoryOutlet) as made:
        yield made


def test_a_partition_is_read_again_from_the_first_record_that_was_refused(emitter: Emitter) -> None:
    refused = Refusals()
    for offset in (7, 5, 9):
        refused.add(PLACE, offset, emitter.processing())
    refused.add(OTHER, 2, emitter.processing())
    assert sorted(refused.rested({})) == [(PLACE, 5), (OTHER, 2)]
    assert PLACE not in refused
    assert list(refused.rested({})) == []


def test_a_partition_rests_while_anything_of_it_is_in_hand(emitter: Emitter) -> None:
    refused = Refusals()
    refused.add(PLACE, 7, emitter.processing())
    assert list(refused.rested({PLACE: {"an older one"}, OTHER: set()})) == []
    assert PLACE in refused
    refused.add(PLACE, 6, emitter.processing())
    assert list(refused.rested({PLACE: set()})) == [(PLACE, 6)]


def test_a_partition_rests_for_its_time(emitter: Emitter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REST_S", 60)
    refused = Refusals()
    refused.add(PLACE, 7, emitter.processing())
    assert list(refused.rested({})) == []


def test_a_refused_record_is_work_in_hand_until_it_is_taken_in_again(emitter: Emitter) -> None:
    refused, hand = Refusals(), emitter._beacons.hand
    for offset in (7, 8):
        refused.add(PLACE, offset, emitter.processing())
    assert list(refused.rested({})) == [(PLACE, 7)]
    assert len(hand) == 2
    refused.taken_again(PLACE, 7)
    refused.taken_again(PLACE, 9)
    assert len(hand) == 1


def test_what_was_refused_is_in_hand_until_the_partitions_new_owner_has_it(
    emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, hand = Refusals(), emitter._beacons.hand
    refused.add(PLACE, 7, emitter.processing())
    refused.add(OTHER, 2, emitter.processing())
    refused.drop([PLACE])
    assert PLACE not in refused
    refused.step()
    assert len(hand) == 2
    refused.taken_again(OTHER, 2)
    assert refused.has_work
    monkeypatch.setattr(handover, "HANDOVER_S", 0)
    refused.add(PLACE, 9, emitter.processing())
    refused.drop([PLACE])
    refused.step()
    assert len(hand) == 2  # in the order in which they were handed over


def test_what_was_handed_over_ends_in_time(emitter: Emitter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "HANDOVER_S", 0)
    refused = Refusals()
    refused.add(PLACE, 7, emitter.processing())
    refused.drop([PLACE])
    refused.step()
    assert not refused.has_work
    assert len(emitter._beacons.hand) == 0

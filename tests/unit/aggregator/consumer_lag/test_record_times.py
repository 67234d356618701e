"""Waiting records: which are read, and which are known from the round before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from aggregator.consumer_lag.record_times import MAX_PLACES, RecordPlace, WaitingRecord, WaitingRecords
from lagloss.broker.partition_bounds import Key


class Read:
    """In place of what a consumer reads: the places asked for, each with a record or, at odd offsets, an end."""

    def __init__(self) -> None:
        self.places: list[RecordPlace] = []

    def __call__(self, turn: Mapping[Key, RecordPlace], _deadline: float) -> dict[RecordPlace, WaitingRecord]:
        self.places += turn.values()
        return {
            place: WaitingRecord(place.offset, is_end=place.offset % 2 == 1, stamped_ms=7) for place in turn.values()
        }


@pytest.fixture
def records() -> Iterator[WaitingRecords]:
    found = WaitingRecords({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})
    yield found
    found.close()


def places(count: int, offset: int) -> list[RecordPlace]:
    return [RecordPlace(("in", partition), offset) for partition in range(count)]


def test_a_record_that_goes_on_waiting_is_read_once_and_one_at_another_place_anew(
    records: WaitingRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Read()
    monkeypatch.setattr(records, "_read", read)
    assert records.read(places(2, 4)) == records.read(places(2, 4))
    assert sorted(read.places) == places(2, 4)
    records.read(places(2, 6))
    assert sorted(read.places[2:]) == places(2, 6)
    assert records.read(places(2, 4))[RecordPlace(("in", 0), 4)].stamped_ms == 7
    assert len(read.places) == 6


def test_an_end_is_looked_at_each_round(records: WaitingRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Read()
    monkeypatch.setattr(records, "_read", read)
    for _ in range(2):
        assert records.read(places(1, 5))[RecordPlace(("in", 0), 5)].is_end
    assert read.places == places(1, 5) * 2


def test_those_that_were_read_longest_ago_are_read_first(
    records: WaitingRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more partitions move each round than one can read, each has its turn."""
    read = Read()
    monkeypatch.setattr(records, "_read", read)
    for step in range(2):
        records.read(places(2 * MAX_PLACES, 4 + 2 * step))
    assert set(Counter(place.key for place in read.places).values()) == {1}


def test_what_is_known_leaves_the_reads_to_others(records: WaitingRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Read()
    monkeypatch.setattr(records, "_read", read)
    many = places(2 * MAX_PLACES, 4)
    assert len(records.read(many)) == MAX_PLACES
    assert len(records.read(many)) == 2 * MAX_PLACES
    assert sorted(read.places) == sorted(many)

"""Events of the stream go on under their ids, and are read again only if they are in no file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from pipeline_under_test.batch.events import ScoreEvent, ScoreMaker
from pipeline_under_test.batch.landing import Landing
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.sources import LoadSource, Position, scored, source_of
from pipeline_under_test.harness.commands import StopFlag
from pipeline_under_test.stream.events.event import Event
from tests.unit.pipeline_under_test.batch.conftest import World

CLICK = {"kind": "Click", "url": "https://shop.example/cart/1", "vendors": ["ga"]}


class ListSource:
    """Events at offsets 0, 1, 2 …, all due at once; then it stops the landing."""

    def __init__(self, events: list[ScoreEvent], stop: StopFlag) -> None:
        self._events = events
        self._stop = stop
        self._at = 0
        self.committed: list[int] = []

    def take(self) -> Iterator[ScoreEvent]:
        for event in self._events:
            self._at += 1
            yield event
        self._stop.set()

    def position(self) -> Position:
        return {("t", 0): self._at}

    def stored(self, position: Position) -> None:
        self.committed.append(position["t", 0])

    def close(self) -> None:
        pass


def test_an_event_of_the_stream_keeps_its_id_and_time_and_is_the_same_whenever_it_is_read() -> None:
    event = Event("e-1", 1_795_250_400_000, b"")
    found = scored(event, CLICK)
    assert (found.id, found.event_ms, found.campaign, found.kind) == ("e-1", event.event_time_ms, "cart", "Click")
    assert found == scored(event, CLICK)


def test_a_source_is_told_of_what_is_stored_file_by_file_and_of_nothing_else(world: World) -> None:
    stop = StopFlag()
    events = world.events(25)
    source = ListSource(events, stop)
    settings = world.settings.model_copy(update={"file_records": 10})
    Landing(settings, world.store, source, stop).run()
    assert source.committed == [10, 20, 25]
    assert [fact["ids"] for fact in world.facts("landing")] == [
        [event.id for event in events[at : at + 10]] for at in (0, 10, 20)
    ]


def test_a_file_that_is_not_stored_leaves_its_events_to_be_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopFlag()
    source = ListSource(world.events(3), stop)

    def refuse(**_: object) -> None:
        stop.set()
        raise EndpointConnectionError(endpoint_url="http://s3")

    monkeypatch.setattr(world.bucket, "put_object", refuse)
    monkeypatch.setattr(world.store, "_stop", stop)
    Landing(world.settings, world.store, source, stop).run()
    assert source.committed == []


def test_the_load_makes_events_at_its_rate(tmp_path: Path) -> None:
    source = source_of(BatchSettings(data_dir=tmp_path, rate=10), ScoreMaker(1))
    assert isinstance(source, LoadSource)
    source._next_s -= 1
    times_ms = [event.event_ms for event in source.take()]
    assert len(times_ms) >= 10
    assert all(99 <= later - earlier <= 101 for earlier, later in pairwise(times_ms))

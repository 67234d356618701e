"""Landing and importer together: what the ledger says became of each record is what the sink and the beacons show."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pipeline_under_test.batch.operator import dead_files
from pipeline_under_test.batch.topology import DB_IMPORT
from tests.unit.pipeline_under_test.batch.conftest import INFRASTRUCTURE, World

LINK_DB, LINK_INDEX = "link landing->db-import", "link landing->index-import"


def test_a_file_is_landed_imported_and_waits_for_what_comes_next(world: World) -> None:
    events = world.events()
    world.store.store(events)
    world.import_all()
    assert world.sink.rows == {event.id: event for event in events}
    assert world.outcomes() == {"pending": 5}  # nothing runs that aggregates, or imports into the index
    assert world.beacons()["scores db-import.out"] == 5
    assert world.beacons()["scores-files db-done.out"] == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("truncate:1", "TruncatedFile"),
        ("corrupt:1", "CorruptFile"),
        ("schema:1", "UnknownSchema"),
        ("empty:1", "EmptyFile"),
    ],
)
def test_a_spoiled_file_is_dead_after_two_tries_and_stops_no_other(world: World, fault: str, reason: str) -> None:
    world.inject(fault)
    world.store.store(world.events())
    world.inject()
    good = world.events()
    world.store.store(good)
    world.import_all()
    assert {fact["reason"] for fact in world.facts("failed")} == {reason}
    assert [fact["last"] for fact in world.facts("failed")] == [False, True]
    assert list(world.sink.rows) == [event.id for event in good]
    assert world.outcomes() == {"lost": 5, LINK_DB: 5, "pending": 5}
    assert world.beacons()["scores-files db-import.dead"] == 1
    assert world.beacons()["scores db-import.in"] == 5
    [dead] = dead_files(world.aws, INFRASTRUCTURE.dead[DB_IMPORT])
    assert dead in {fact["file"] for fact in world.facts("landed")}


def test_a_lost_notification_loses_the_records_on_both_links(world: World) -> None:
    world.inject("lose:notification:1")
    world.store.store(world.events())
    world.import_all()
    assert not world.sink.rows
    assert world.outcomes() == {"lost": 5, LINK_DB: 5, LINK_INDEX: 5}


def test_what_a_sink_drops_is_lost_at_the_importer_whose_table_says_what_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline_under_test.harness.faults.LOOK_EVERY_S", 0.0)
    with closing(World(tmp_path, tables=True)) as world:
        world.inject("drop:db-import:0.5")
        events = world.events(40)
        world.store.store(events)
        world.import_all()
        dropped = {event.id for event in events} - world.sink.rows.keys()
        assert 5 < len(dropped) < 35
        assert world.outcomes()["node db-import"] == len(dropped)
        assert world.beacons()["scores db-import.in"] == 40
        assert world.beacons()["scores db-import.out"] == 0


def test_a_duplicate_notification_is_work_done_twice_and_no_more_rows(world: World) -> None:
    world.inject("duplicate:notification:1")
    world.store.store(world.events())
    world.import_all()
    assert len(world.published) == 1
    assert len(world.sink.rows) == 5
    assert len(world.facts("writing")) == 2
    assert world.beacons()["scores db-import.out"] == 10


def test_an_overwritten_file_is_dead_and_its_successor_is_imported(world: World) -> None:
    world.inject("overwrite:1")
    first = world.events()
    world.store.store(first)
    world.import_all()
    assert len(world.facts("landed")) == 2
    assert len(world.sink.rows) == 5
    assert not {event.id for event in first} & world.sink.rows.keys()
    assert world.outcomes() == {"lost": 5, LINK_DB: 5, "pending": 5}


def test_an_answer_of_another_version_than_was_asked_for_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.store(world.events())
    get = world.bucket.get_object
    monkeypatch.setattr(world.bucket, "get_object", lambda **request: {**get(**request), "ETag": '"other"'})
    world.import_all()
    assert {fact["reason"] for fact in world.facts("failed")} == {"OverwrittenFile"}
    assert not world.sink.rows


def test_a_file_that_is_a_hundred_times_larger_is_imported_whole(world: World) -> None:
    world.inject("enlarge:100:1")
    world.store.store(world.events())
    world.import_all()
    assert len(world.sink.rows) == 500


def test_a_late_file_belongs_to_the_time_of_its_events(world: World) -> None:
    world.inject("late:10m:1")
    events = world.events()
    world.store.store(events)
    [landed] = world.facts("landed")
    assert landed["file_ms"] == events[0].event_ms - 600_000
    assert {event_ms for fact in world.facts("landing") for event_ms in fact["times"]} == {landed["file_ms"]}


def test_a_bad_record_is_dead_and_the_rest_of_its_file_is_imported(world: World) -> None:
    world.inject("bad:0.3")
    world.store.store(world.events(100))
    world.import_all()
    [written] = world.facts("writing")
    bad = len(written["rejected"])
    assert 10 < bad < 60
    assert len(world.sink.rows) == 100 - bad
    beacons = world.beacons()
    assert (beacons["scores db-import.dead"], beacons["scores db-import.out"]) == (bad, 100 - bad)


def test_a_file_that_the_sink_refuses_for_a_while_is_dead_and_comes_back_by_a_redrive(world: World) -> None:
    world.inject(f"fail:{DB_IMPORT}:1")
    world.store.store(world.events())
    world.import_all()
    assert world.outcomes() == {"pending": 5}  # dead here, and the index has not said anything
    assert world.beacons()["scores db-import.dead"] == 5
    world.inject()
    world.importers[0].redrive()
    assert len(world.sink.rows) == 5
    assert world.truth().windows.popitem()[1].at.keys() == set()  # nothing is dead or lost any more


def test_a_write_that_fails_is_no_write(world: World) -> None:
    world.sink.failing = True
    world.store.store(world.events())
    world.importer.step()
    world.sink.failing = False
    world.queue.now_ms += 61_000
    world.import_all()
    assert len(world.facts("writing")) == 2
    windows = world.truth().windows.values()
    assert {count for window in windows for count in window.written["db-import.out"].values()} == {1}

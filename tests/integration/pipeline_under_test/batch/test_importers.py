"""Landing and importers as processes on LocalStack, PostgreSQL and Kafka: rows, beacons and ledger say the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lagloss.wire.format import hash_id
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from pipeline_under_test.batch.aws import create
from pipeline_under_test.batch.operator import dead_files
from pipeline_under_test.batch.topology import DB_IMPORT, DONE_NODES, IMPORTERS, INDEX_IMPORT, files_pipeline
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import SchemaTopic, packaged
from pipeline_under_test.stream.topology import CONN_GA, topic_of
from tests.support.batch_pipeline import BatchPipeline, batch_pipeline
from tests.support.closers import wait_until
from tests.support.event_topics import idle_pipeline, put
from tests.support.pipeline_beacons import Beacons, read_beacons

FILES = 12
"""Files that a test waits for."""


@pytest.fixture
def batch(
    kafka: EmbeddedKafka, localstack: EmbeddedLocalStack, postgres: EmbeddedPostgres, tmp_path: Path
) -> Iterator[BatchPipeline]:
    with batch_pipeline(kafka.bootstrap, localstack, postgres, tmp_path, {DB_IMPORT: 2}) as made:
        yield made


def landed_ids(batch: BatchPipeline) -> set[str]:
    stored = {fact["attempt"] for fact in batch.facts("landed")}
    return {name for fact in batch.facts("landing") if fact["attempt"] in stored for name in fact["ids"]}


def run(batch: BatchPipeline, *faults: str, files: int = FILES, until: Callable[[], bool] | None = None) -> None:
    """Land so many files under these faults, and more until the condition holds; lift the faults once nothing is in the
    queues any more."""
    batch.inject(*faults)
    batch.start_landing()
    batch.await_facts(len(batch.facts("landed")) + files, "landed")
    if until is not None:
        wait_until(until, 90, "for the faults")
    batch.stop_landing()
    batch.await_drained()
    batch.inject()


def beacons_of(batch: BatchPipeline) -> tuple[Beacons, Beacons]:
    """What the emitters have sent by now, of records and of files; importers flush each second."""
    name, bootstrap = batch.settings.pipeline, batch.env["LAGLOSS_KAFKA_BOOTSTRAP"]
    files = files_pipeline(name)
    done = {hash_id(fact["file"]) for fact in batch.facts("writing")}

    def is_whole() -> bool:
        found = read_beacons(bootstrap, files).ids
        return all(done <= found[f"{node}.out"] for node in DONE_NODES.values())

    wait_until(is_whole, 30, "for the beacons of files")
    return read_beacons(bootstrap, name), read_beacons(bootstrap, files)


def test_every_event_that_landed_is_in_both_sinks_and_out_at_both_importers(batch: BatchPipeline) -> None:
    run(batch)
    ids = landed_ids(batch)
    assert len(ids) >= 100
    assert batch.rows("event") == batch.rows("search_entry") == len(ids)
    records, files = beacons_of(batch)
    hashes = {hash_id(name) for name in ids}
    for importer in IMPORTERS:
        assert records.ids[f"landing.out:{importer}"] == records.ids[f"{importer}.in"] == hashes
        assert records.ids[f"{importer}.out"] == hashes
    stored = {hash_id(fact["file"]) for fact in batch.facts("landed")}
    places = ("landing.in", "db-queue.in", "db-import.in", "db-import.out", "db-done.out", "index-done.out")
    assert {place: files.ids[place] for place in places} == dict.fromkeys(places, stored)


@pytest.mark.slow
def test_events_of_the_streams_last_topic_land_under_their_ids_and_once(
    kafka: EmbeddedKafka, localstack: EmbeddedLocalStack, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    stream = idle_pipeline(kafka.bootstrap, tmp_path / "stream")
    SchemaTopic(stream.bootstrap, stream.pipeline).publish(packaged())
    body = packaged().encode({"url": "https://shop.example/cart", "kind": "Click"})
    now_ms = time.time_ns() // 1_000_000
    events = [Event(f"{stream.pipeline}-{number}", now_ms, body) for number in range(200)]
    taken = {"stream_node": CONN_GA, "stream_pipeline": stream.pipeline}
    with batch_pipeline(kafka.bootstrap, localstack, postgres, tmp_path / "batch", **taken) as batch:
        for half in (events[:120], events[120:]):  # landing goes on where it stopped
            put(stream, topic_of(stream.pipeline, CONN_GA), half)
            before = batch.rows("event")
            batch.start_landing()
            wait_until(lambda: batch.rows("event") == before + len(half), 60, "for the rows")  # noqa: B023 (called here)
            batch.stop_landing()
        ids = [name for fact in batch.facts("landing") for name in fact["ids"]]
        assert sorted(ids) == sorted(event.id for event in events)
        records, _ = beacons_of(batch)
        assert records.ids["landing.in"] == records.ids["db-import.out"] == {hash_id(event.id) for event in events}


@pytest.mark.slow
def test_importers_that_are_killed_before_or_after_a_write_lose_nothing(batch: BatchPipeline) -> None:
    def kinds() -> set[str]:
        return {fact["fault"].split(":")[2] for fact in batch.facts("fault")}

    faults = ("kill:db-import:before:0.2", "kill:db-import:after:0.2")
    run(batch, *faults, until=lambda: kinds() == {"before", "after"})
    ids = landed_ids(batch)
    assert batch.rows("event") == batch.rows("search_entry") == len(ids)
    assert batch.groups[DB_IMPORT].restarts > 0
    assert not dead_files(batch.aws, batch.infrastructure.dead[DB_IMPORT])


@pytest.mark.slow
def test_an_importer_that_stands_still_for_too_long_writes_twice_and_the_rows_are_single(batch: BatchPipeline) -> None:
    # few: with each that is in its hands a process stands still, longer in all than it is given to end
    run(batch, "double-write:db-import:1", files=3)
    hit = {fact["file"] for fact in batch.facts("fault")}
    writes = [fact["file"] for fact in batch.facts("writing") if fact["node"] == DB_IMPORT]
    assert any(writes.count(name) > 1 for name in hit)
    assert batch.rows("event") == len(landed_ids(batch))


@pytest.mark.slow
def test_a_queue_that_is_away_makes_its_importer_late_and_not_the_other(batch: BatchPipeline) -> None:
    batch.inject("away:db-import")
    batch.start_landing()
    batch.await_facts(FILES, "landed")
    batch.stop_landing()
    number = len(landed_ids(batch))
    wait_until(lambda: batch.rows("search_entry") == number, 60, "for the index")
    assert batch.rows("event") < number
    batch.inject()
    batch.await_drained()
    assert batch.rows("event") == number


@pytest.mark.slow
def test_dead_files_come_back_by_the_move_task_once_the_sink_takes_them(batch: BatchPipeline) -> None:
    run(batch, "fail:db-import:0.5")
    dead = dead_files(batch.aws, batch.infrastructure.dead[DB_IMPORT])
    assert set(dead) == {fact["file"] for fact in batch.facts("failed") if fact["last"]}
    assert dead
    assert batch.rows("event") < batch.rows("search_entry")
    batch.inject()
    batch.command("redrive", DB_IMPORT)
    wait_until(lambda: batch.rows("event") == len(landed_ids(batch)), 60, "for the redrive")


def test_infrastructure_that_is_there_is_created_no_second_time(batch: BatchPipeline) -> None:
    assert create(batch.aws, batch.settings) == batch.infrastructure
    run(batch, files=3)
    assert batch.rows("event") == len(landed_ids(batch))
    writes = [(fact["node"], fact["file"]) for fact in batch.facts("writing")]
    assert len(writes) == len(set(writes)), "one subscription for each queue"
    assert {node for node, _ in writes} == {DB_IMPORT, INDEX_IMPORT}

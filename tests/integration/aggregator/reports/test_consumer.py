"""Following reports: floods of names, records that no table could hold, bad records by the thousand, older backups."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from sqlalchemy import func, select

from aggregator import quarantine
from aggregator.outage import DatabaseRestored
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.undeclared import LIMITS
from lagloss.wire.format import MAX_NAME_BYTES, EmitterReport, Progress, Tally, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.conftest import Topics
from tests.support.closers import Driven, driven
from tests.support.databases import differences, dump, restore

NOW_MS = int(time.time() * 1000)
WINDOW_S = NOW_MS // 60_000 * 60
BROKEN, GOOD = bytes(15) + b"b", bytes(15) + b"g"


def report(
    emitter: bytes = GOOD,
    seq: int = 1,
    *,
    pipeline: str = "flooded",
    host: str = "here",
    checkpoints: Iterable[str] = (),
    lanes: Iterable[str] = (),
) -> bytes:
    """A report of node src with a tally of one beacon at each of these checkpoints."""
    tallies = tuple(Tally(name, WINDOW_S, 1, 0, Sketch()) for name in checkpoints)
    progress = tuple(Progress("src.in", lane, NOW_MS) for lane in lanes)
    return encode_report(
        EmitterReport(pipeline, "src", emitter, host, seq, NOW_MS, NOW_MS, False, 0, progress, tallies)
    )


def records(values: Iterable[bytes], first: int = 0) -> list[ReportRecord]:
    """These values as records of partition 0, appended now."""
    return [ReportRecord(0, offset, NOW_MS, value) for offset, value in enumerate(values, first)]


@pytest.fixture
def follower(store: Store) -> ReportConsumer:
    return ReportConsumer(store.engine, "reports", "topic-1")


def counts(store: Store) -> dict[str, int]:
    """Bad records by reason."""
    with store.engine.connect() as connection:
        return {reason: count for (_, reason), count in quarantine.counts(connection).items()}


def rows_of(store: Store, table: type[tables.Base]) -> int:
    with store.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(tables.table_of(table))).scalar_one()


def define(store: Store) -> None:
    nodes = "{name: src, to: [snk]}, {name: snk}"
    text = f"{{apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: flooded}}, spec: {{nodes: [{nodes}]}}}}"
    store.apply(parse_definition(text))


@pytest.fixture
def flooded(
    spark: SparkSession, kafka_bootstrap: str, store: Store, topics: Callable[..., Topics]
) -> Iterator[tuple[Driven, Callable[[Iterable[bytes]], None]]]:
    """An aggregator's parts on topics of their own, and how to put reports there and have them followed."""
    define(store)
    own = topics()
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    with driven(spark, kafka_bootstrap, store, own.beacons, own.reports) as parts:

        def send(values: Iterable[bytes]) -> None:
            for value in values:
                producer.produce(own.reports, value, partition=0)
            assert producer.flush(30) == 0
            parts.follow_all()

        yield parts, send


def test_20_000_names_of_a_broken_emitter_are_cut_off_and_spoil_nobody_else(
    flooded: tuple[Driven, Callable[[Iterable[bytes]], None]], store: Store
) -> None:
    _, send = flooded
    thousand = range(1_000)
    send(
        [
            *(report(BROKEN, seq, checkpoints=(f"src.{seq}-{at}" for at in thousand)) for seq in range(20)),
            *(report(BROKEN, 20 + seq, lanes=(f"topic/{seq}-{at}" for at in thousand)) for seq in range(20)),
            *(report(BROKEN, 1, pipeline=f"nobody-{at}") for at in range(200)),
            report(GOOD, 1, checkpoints=["src.in", "src.out", "src.not-applied-yet"], lanes=["topic/1"]),
        ]
    )
    limits = {kind: limit.an_emitter for kind, limit in LIMITS.items()}
    assert rows_of(store, tables.TallyRow) == limits["checkpoint"] + 3
    assert rows_of(store, tables.LaneRow) == limits["lane"] + 1
    assert rows_of(store, tables.EmitterRow) == limits["pipeline"] + 2
    # a report is counted once: 20 with checkpoints, 18 with lanes beyond the limit, 100 of the pipelines beyond it
    assert counts(store) == {"too_many_names": 20 + 18 + 100, "unknown_pipeline": 100, "unknown_checkpoint": 1}
    with store.engine.connect() as connection:
        tally = tables.TallyRow
        good = connection.execute(select(tally.checkpoint).where(tally.emitter == GOOD)).scalars()
        assert set(good) == {"src.in", "src.out", "src.not-applied-yet"}


def test_the_limit_of_names_holds_over_batches_and_restarts(store: Store, follower: ReportConsumer) -> None:
    limit = LIMITS["checkpoint"].an_emitter
    known = {"flooded": frozenset(["src.in", "src.out"])}
    names = [f"src.{at}" for at in range(limit + 5)]
    follower.follow(records([report(checkpoints=names[:limit])]), known)
    follower.follow(records([report(seq=2, checkpoints=names)], first=1), known)
    again = ReportConsumer(store.engine, "reports", "topic-1")
    again.follow(records([report(seq=3, checkpoints=names)], first=2), known)
    assert rows_of(store, tables.TallyRow) == limit
    assert counts(store) == {"unknown_checkpoint": 1, "too_many_names": 2}
    # what is known by now needs no room, and what was kept goes on being followed
    applied = {"flooded": frozenset(["src.in", "src.out", names[-1]])}
    again.follow(records([report(seq=4, checkpoints=[names[0], names[-1]])], first=3), applied)
    with store.engine.connect() as connection:
        found = connection.execute(select(tables.TallyRow.checkpoint, tables.TallyRow.seq))
        seqs = {row.checkpoint: row.seq for row in found}
    assert (seqs[names[0]], seqs[names[-1]], seqs[names[1]]) == (4, 4, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"pipeline": "with\0nul"},
        {"host": "with\0nul"},
        {"checkpoints": ["src." + "x" * MAX_NAME_BYTES]},
        {"lanes": ["lane\0"]},
        {"lanes": ["l" * (MAX_NAME_BYTES + 1)]},
    ],
    ids=["nul-in-pipeline", "nul-in-host", "long-checkpoint", "nul-in-lane", "long-lane"],
)
def test_a_report_that_no_table_could_hold_is_set_aside_and_the_next_is_followed(
    fields: dict[str, Any], store: Store, follower: ReportConsumer
) -> None:
    assert follower.follow(records([report(**fields), report(BROKEN)]), {}) == 2
    assert rows_of(store, tables.EmitterRow) == 1
    assert counts(store) == {"header_invalid": 1, "unknown_pipeline": 1}


def test_1_500_bad_records_in_an_hour_are_counted_in_full_and_1_000_of_them_kept(
    store: Store, follower: ReportConsumer
) -> None:
    bad = records(b"garbage %d" % at for at in range(1_500))
    follower.follow(bad[:700], {})
    follower.follow(bad, {})
    follower.follow(bad, {})
    assert counts(store) == {"not_avro": 1_500}
    assert rows_of(store, tables.QuarantinedRow) == quarantine.KEPT_AN_HOUR


def test_bad_records_are_counted_in_the_hour_in_which_they_were_appended(
    store: Store, follower: ReportConsumer
) -> None:
    hours = [0, 0, 3_600_000, 7_199_999]
    follower.follow([ReportRecord(0, at, ms, b"garbage") for at, ms in enumerate(hours)], {})
    count = tables.QuarantineCountRow
    with store.engine.connect() as connection:
        found = connection.execute(select(count.hour, count.count.label("number"))).all()
    assert {row.hour: row.number for row in found} == {0: 2, 3600: 2}


def test_a_follower_notices_that_an_older_backup_was_restored(store: Store, follower: ReportConsumer) -> None:
    follower.follow(records([report(seq=1)]), {})
    backup = dump(store.engine)
    follower.follow(records([report(seq=2)], first=1), {})
    restore(store.engine, backup)
    with pytest.raises(DatabaseRestored):
        follower.positions()
    with pytest.raises(DatabaseRestored):  # its stream goes on after the record that is missing now
        follower.follow(records([report(seq=3)], first=2), {})
    assert dump(store.engine) == backup
    again = ReportConsumer(store.engine, "reports", "topic-1")
    assert again.positions() == {0: 1}
    again.follow(records([report(seq=2), report(seq=3)], first=1), {})
    assert again.positions() == {0: 3}


def test_after_an_older_backup_the_stream_begins_there_and_tables_end_as_undisturbed(
    spark: SparkSession, kafka_bootstrap: str, store: Store, topics: Callable[..., Topics]
) -> None:
    define(store)
    own = topics()
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})

    def send(seq: int) -> None:
        for emitter in (GOOD, BROKEN):
            names = ["src.in"] + [f"src.{seq}"] * (emitter == BROKEN)
            producer.produce(own.reports, report(emitter, seq, checkpoints=names, lanes=[f"t/{seq}"]), emitter)
        producer.produce(own.reports, uuid.uuid4().bytes)
        assert producer.flush(30) == 0

    with driven(spark, kafka_bootstrap, store, own.beacons, own.reports) as parts:
        send(1)
        parts.follow_all()
        backup = dump(store.engine)
        send(2)
        parts.follow_all()
        undisturbed = dump(store.engine)
    restore(store.engine, backup)
    with driven(spark, kafka_bootstrap, store, own.beacons, own.reports) as parts:
        parts.follow_all()
        # Spark may read what was sent at once in two
        assert differences(dump(store.engine), undisturbed, but={"changed_basis"}) == []

"""Reports of a pipeline that crowd those of the others are followed later: it alone is late, and nothing is different
afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from sqlalchemy import select

from aggregator.clock import JudgementClock
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.metrics import AggregatorMetrics
from aggregator.reports import deferral
from aggregator.reports.batch import Checkpoints, ReportRecord
from aggregator.reports.consumer import ReportConsumer
from lagloss.wire.format import EmitterReport, OffsetRange, Progress, Tally, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.model.definition import parse_definition
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store, read_basis
from tests.support.databases import differences, dump, restore
from tests.support.worlds_in_kafka import make_topics

PIPELINES = ("crowd", "quiet", "z-quiet")
KNOWN: Checkpoints = {name: frozenset(["src.in", "src.out"]) for name in PIPELINES}
WINDOW_S = int(time.time()) // 60 * 60 - 300
APPENDED_MS = (WINDOW_S + 120) * 1000
"""Minutes ago: whoever follows now is behind."""
BATCH = 40
FOLLOWED = (tables.EmitterRow, tables.LaneRow, tables.TallyRow)


def report(pipeline: str, emitter: int, seq: int) -> bytes:
    """The report of an emitter that has grown by a beacon since its last."""
    tally = Tally("src.in", WINDOW_S, seq, seq, Sketch(), (OffsetRange(0, emitter, emitter + seq),))
    progress = (Progress("src.in", f"orders/{emitter}", APPENDED_MS + seq),)
    name = pipeline.encode().ljust(15, b"-") + bytes([emitter])
    return encode_report(
        EmitterReport(pipeline, "src", name, "here", seq, APPENDED_MS, APPENDED_MS, False, 0, progress, (tally,))
    )


@pytest.fixture
def log(kafka_bootstrap: str, store: Store) -> Iterator[BeaconLog]:
    """A log in which `crowd` has ten reports of 13, and one that is none; the pipelines are defined."""
    for name in PIPELINES:
        head = f"apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {name}}}"
        store.apply(parse_definition(f"{{{head}, spec: {{nodes: [{{name: src}}]}}}}"))
    (topic,) = make_topics(kafka_bootstrap, "reports", partitions=2)
    # the first request to a new topic can be repeated: idempotent, what follows stays behind it
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "enable.idempotence": True, "log_level": 0})
    for seq in range(1, 31):
        values = [report("crowd", emitter, seq) for emitter in range(10)]
        values += [report(name, 0, seq) for name in PIPELINES[1:]] + [b"no report"]
        for at, value in enumerate(values):
            producer.produce(topic, value, partition=at % 2, timestamp=APPENDED_MS + seq)
    assert producer.flush(30) == 0
    with closing(BeaconLog(kafka_bootstrap, topic)) as found:
        yield found


def batches(log: BeaconLog) -> Iterator[list[ReportRecord]]:
    """All records in the order of the stream: each batch has some of each partition."""
    ends = log.ends()
    for first in range(0, max(ends.values()), BATCH // 2):
        places = [OffsetRange(at, first, min(first + BATCH // 2, end) - 1) for at, end in ends.items() if first < end]
        yield [ReportRecord(each.partition, each.offset, each.appended_ms, each.value) for each in log.records(places)]


def consumer(store: Store, log: BeaconLog) -> ReportConsumer:
    return ReportConsumer(store.engine, log.topic, log.topic_id(), JudgementClock())


def quiet_seq(store: Store) -> set[int]:
    table = tables.EmitterRow
    with store.engine.connect() as connection:
        return set(connection.execute(select(table.seq).where(table.pipeline != "crowd")).scalars())


@pytest.mark.parametrize("restarts", [False, True])
def test_the_others_are_followed_first_and_afterwards_all_is_as_if_in_order(
    store: Store, log: BeaconLog, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    empty, follower = dump(store.engine), consumer(store, log)
    for batch in batches(log):
        follower.follow(batch, KNOWN)
    in_order = dump(store.engine)
    restore(store.engine, empty)
    for name, value in {"SMALL_BATCH": 10, "REPORTS_A_TURN": 37, "RECORDS_A_TURN": 90}.items():
        monkeypatch.setattr(deferral, name, value)
    follower, watch = consumer(store, log), DefinitionRegistry(store.engine, store, AggregatorMetrics())
    for batch in batches(log):
        follower.follow(batch, KNOWN)
        watch.refresh()
        assert watch.schedules.keys() == {"quiet", "z-quiet"}
    assert quiet_seq(store) == {30}
    assert follower.positions() == log.ends()
    bases, turns = [basis(store)], 0
    while follower.follow_deferred(log, lambda: KNOWN):
        turns += 1
        bases.append(basis(store))
        if restarts:
            follower = consumer(store, log)
        watch.refresh()
    assert turns >= 300 // 37
    assert bases == sorted(set(bases))  # each turn's changes are newer than what was judged before
    assert watch.schedules.keys() == set(PIPELINES)
    assert watch.deferred == set()
    names = {table.__tablename__ for table in FOLLOWED} | {"quarantine_count"}
    compared = [table for table in tables.Base.metadata.sorted_tables if table.name in names]
    assert not differences(in_order, dump(store.engine), but={"changed_basis"}, tables=compared)


def test_what_comes_while_a_pipeline_is_deferred_waits_behind_and_a_flood_has_no_other_wait(
    store: Store, log: BeaconLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pipelines are deferred: each has its turn. A small batch or one that is in time is followed as ever."""
    monkeypatch.setattr(deferral, "SMALL_BATCH", 10)
    monkeypatch.setattr(deferral, "SHARE", 0.07)
    monkeypatch.setattr(deferral, "REPORTS_A_TURN", 5)
    follower = consumer(store, log)
    first, *rest = batches(log)
    follower.follow(first, KNOWN)
    with store.engine.connect() as connection:
        deferred = deferral.read_deferred(connection)
    assert deferred.keys() == set(PIPELINES)
    monkeypatch.setattr(deferral, "LATE_MS", 3_600_000)
    for batch in rest:
        follower.follow(batch, KNOWN)
    assert quiet_seq(store) == set()
    for _ in PIPELINES:
        follower.follow_deferred(log, lambda: KNOWN)
    assert len(quiet_seq(store)) == 1
    while follower.follow_deferred(log, lambda: KNOWN):
        pass
    assert quiet_seq(store) == {30}


def basis(store: Store) -> int:
    with store.engine.connect() as connection:
        return read_basis(connection)


def test_a_follower_that_keeps_up_or_has_one_pipeline_only_defers_nothing(
    store: Store, log: BeaconLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "SMALL_BATCH", 10)
    batch = next(batches(log))
    assert deferral.crowding(batch, APPENDED_MS + deferral.LATE_MS) == set()
    assert deferral.crowding(batch, APPENDED_MS + deferral.LATE_MS + 1_000) == {"crowd"}
    assert deferral.crowding(batch[:10], APPENDED_MS + 3_600_000) == set()
    consumer(store, log).follow(batch, {"crowd": KNOWN["crowd"]})
    with store.engine.connect() as connection:
        assert deferral.read_deferred(connection) == {}

"""Late: windows restated once what came late stands still, at a bounded price; and those that are sealed, not."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.kernel.plan import ReadPlan
from aggregator.kernel.spark_reader import Reading
from aggregator.maintenance.tasks import MaintenanceLoop
from aggregator.metrics import AggregatorMetrics
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.report_tables import notice_recreated_topics
from aggregator.set_aside import SetAside
from lagloss.broker.topics import BEACONS
from lagloss.wire.format import (
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    block_key,
    encode_block,
    encode_report,
    hash_id,
    signed64,
)
from lagloss.wire.sketch import Sketch
from lagloss_server.cli import main as cli
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import LogRecord
from lagloss_server.queries.offset_ranges import Watermarks
from lagloss_server.store.store import Store
from tests.oracle.evidence import Record
from tests.support.in_memory import count
from tests.support.stages import BLOCK_PARTITIONS, PIPELINE, Sink, Stage, pipeline, staged
from tests.support.window_documents import documents

DUE = 181


@pytest.fixture
def stage(spark: SparkSession, kafka_bootstrap: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with staged(spark, kafka_bootstrap, store, monkeypatch) as found:
        yield found


def close_with_a_late_partition(stage: Stage) -> Sink:
    """All orders are sent, one partition of them is not taken in when the windows are due."""
    sink = Sink(stage)
    stage.at(0)
    sink.pause(0)
    sent = stage.send(0, 0, 100)
    stage.at(120)
    sink.work(sent - 13)
    stage.at(DUE)
    stage.judge()
    assert [stage.window(0)[name] for name in ("revision", "verdict", "pending")] == [1, "unknown", 13]
    return sink


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON document of `lagloss ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["lagloss", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.fixture
def settings(store: Store, kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line uses this test's servers."""
    monkeypatch.setenv("LAGLOSS_DATA_DIR", str(tmp_path))
    url = store.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", url)
    monkeypatch.setenv("LAGLOSS_KAFKA_BOOTSTRAP", kafka_bootstrap)


@pytest.mark.usefixtures("settings")
def test_a_window_is_closed_again_once_what_came_late_stands_still(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = close_with_a_late_partition(stage)
    stage.at(300)
    sink.resume(0)
    sink.work(13)
    for emitter in stage.emitters:
        assert emitter.flush(10)
    stage.parts.follow_all()
    changed_ms = stage.clock.now_ms
    stage.parts.closer.tick(changed_ms + 4_999, changed_ms + 4_999)
    pending = stage.window(0)
    assert (pending["revision"], pending["pending"]) == (1, 13)
    stage.parts.closer.tick(changed_ms + 5_000, changed_ms + 5_000)
    stage.at(400)
    stage.judge()  # nothing came since: nothing changes
    code, (window,) = printed(
        monkeypatch,
        capsys,
        *("windows", PIPELINE, "--json", "--from", rfc3339(stage.start_s), "--to", rfc3339(stage.start_s + 60)),
    )
    assert code == 0
    assert [window[name] for name in ("revision", "state", "verdict", "pending", "messages", "delivered")] == [
        *(2, "closed", "ok", 0, 100, 100)
    ]
    assert [{**told, "state": "closed", "history": False} for told in stage.told(0)[:-1]] == [pending]


def seal_by_retention(stage: Stage, sink: Sink) -> MaintenanceLoop:
    """The log loses the windows' blocks, and only then the late ones come."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap, "log_level": 0})
    places = [TopicPartition(stage.topics[BEACONS], at, -1) for at in range(BLOCK_PARTITIONS)]  # to the end
    for deleted in admin.delete_records(places).values():
        deleted.result(10)
    stage.at(300)
    sink.resume(0)
    sink.work(13)
    stage.judge()
    return stage.parts.upkeep()


def seal_by_new_topics(stage: Stage, sink: Sink) -> MaintenanceLoop:
    """The beacons topic is another one when the aggregator starts again."""
    assert notice_recreated_topics(stage.store.engine, "another", stage.parts.reports.topic_id(), stage.clock.now_ms)
    restarted = stage.parts.another()
    restarted.watch.refresh()
    return restarted.upkeep()


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("seal", [seal_by_retention, seal_by_new_topics])
def test_a_sealed_window_stays_as_it_is_and_recompute_says_so(
    seal: Any, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = close_with_a_late_partition(stage)
    before = stage.window(0)
    upkeep = seal(stage, sink)
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.wait(0.02):
            upkeep.answer_recompute(stage.clock.now_ms)

    server = threading.Thread(target=serve)
    server.start()
    try:
        code, answer = printed(
            monkeypatch,
            capsys,
            *("recompute", PIPELINE, "--json", "--from", rfc3339(stage.start_s), "--to", rfc3339(stage.start_s + 60)),
        )
    finally:
        stopped.set()
        server.join()
    assert code == 4
    assert (answer["windows"], answer["beacons"]) == (0, 0)
    assert stage.window(0) == {**before, "state": "sealed"}


class Recording:
    """Whatever reads blocks, with the ranges that it was asked for."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.partitions = reader.partitions
        self.asked: list[list[OffsetRange]] = []

    def read(self, ranges: Sequence[OffsetRange], plan: ReadPlan, kept: Sequence[LogRecord] = ()) -> Reading:
        self.asked.append(list(ranges))
        reading: Reading = self._reader.read(ranges, plan, kept)
        return reading

    def records(self) -> int:
        return sum(place.last - place.first + 1 for ranges in self.asked for place in ranges)


FILLER = 6_000
"""Other records of each partition in between: too many for the ranges before and after them to be read as one."""


@pytest.mark.slow
def test_a_sink_six_hours_late_reads_two_short_ranges_a_partition_and_not_six_hours(stage: Stage) -> None:
    sink = close_with_a_late_partition(stage)
    producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 20, "log_level": 0})
    key = block_key(PIPELINE, stage.start_s + 3600)
    for partition in range(BLOCK_PARTITIONS):
        for _ in range(FILLER):
            producer.produce(stage.topics[BEACONS], b"x", key, partition, timestamp=(stage.start_s + 3700) * 1000)
        producer.poll(0)
    assert producer.flush(20) == 0
    closer = stage.parts.closer
    closer.reads.audit()  # as the audit does every 30 s
    stage.at(6 * 3600)
    sink.resume(0)
    sink.work(13)
    for emitter in stage.emitters:
        assert emitter.flush(10)
    stage.parts.follow_all()
    reader = Recording(closer.reads.reader)
    closer.reads.reader = reader  # type: ignore[assignment]
    closer.close_windows([(PIPELINE, stage.start_s)], stage.clock.now_ms, "requested")
    assert stage.window(0)["verdict"] == "ok"
    (ranges,) = reader.asked
    assert max(sum(place.partition == at for place in ranges) for at in range(BLOCK_PARTITIONS)) == 2
    held = sum(marks.high - marks.low for marks in stage.parts.beacons.watermarks().values())
    print(f"{reader.records()} records read in {len(ranges)} ranges, of {held} in the log")
    assert reader.records() < 500 < FILLER * BLOCK_PARTITIONS < held


@dataclass
class LogInMemory:
    """A beacons topic of one partition: what the closer asks of Kafka, and what it reads with Spark, without either.

    An hour has some 200 reads, and here it is only counted what they span.
    """

    topic: str = "beacons"
    partitions: int = 1
    log: list[Record] = field(default_factory=list)

    def append(self, block: BeaconBlock, now_ms: int) -> int:
        key = block_key(block.pipeline, block.window_start)
        self.log.append(Record(0, len(self.log), now_ms, key, encode_block(block)))
        return len(self.log) - 1

    def topic_id(self) -> str:
        return "one"

    def watermarks(self) -> dict[int, Watermarks]:
        return {0: Watermarks(0, len(self.log))}

    def offsets_at(self, moment_ms: int) -> dict[int, int]:
        return {0: sum(record.timestamp_ms < moment_ms for record in self.log)}

    def read(self, ranges: Sequence[OffsetRange], plan: ReadPlan, kept: Sequence[LogRecord] = ()) -> Reading:
        assert not kept
        records = [record for place in ranges for record in self.log[place.first : place.last + 1]]
        return Reading(
            count([record for record in records if record.key in plan.windows], plan, 1000), (), Counter(), 0
        )


@dataclass
class Node:
    """An emitter of one node of the pipeline: one block a checkpoint, window and step, and a report."""

    name: str
    log: LogInMemory
    reports: list[ReportRecord]
    started_at: int
    seq: int = 0
    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)

    def step(self, event_ms: int, now_ms: int) -> None:
        """Ten messages of this event time are taken in and sent out now."""
        start_s = event_ms // 60_000 * 60
        ids = np.array([hash_id(f"{event_ms}-{at}") for at in range(10)], np.uint64)
        lags = np.full(10, now_ms - event_ms, np.float32)
        for side in ("in", "out"):
            self.seq += 1
            checkpoint = f"{self.name}.{side}"
            block = BeaconBlock(PIPELINE, checkpoint, self.name.encode() * 4, self.seq, start_s, 1, ids, lags)
            if checkpoint == "srcs.in":
                block.event_offset_ms = np.full(10, event_ms % 60_000, np.uint16)
            offset = self.log.append(block, now_ms)
            old = self.tallies.get((side, start_s), Tally(checkpoint, start_s, 0, 0, Sketch()))
            first = old.ranges[0].first if old.ranges else offset
            place = OffsetRange(0, first, offset)
            id_sum = signed64(old.id_sum + int(ids.sum(dtype=np.uint64)))
            self.tallies[side, start_s] = dataclasses.replace(
                old, beacons=old.beacons + 10, id_sum=id_sum, ranges=(place,)
            )
        self.report(now_ms, [self.tallies[side, start_s] for side in ("in", "out")], until=event_ms)

    def report(self, now_ms: int, tallies: Sequence[Tally], until: int) -> None:
        self.seq += 1
        progress = (Progress(f"{self.name}.in", "orders/0", until),) if self.name == "sink" else ()
        report = EmitterReport(
            PIPELINE, self.name, self.name.encode() * 4, "here", self.seq, self.started_at, now_ms, False,
            now_ms // 1000, progress, tuple(tallies),
        )  # fmt: skip
        self.reports.append(ReportRecord(0, len(self.reports), now_ms, encode_report(report)))


STEP_MS, LATE_MS, HOUR = 20_000, 120_000, 60


@pytest.mark.slow
def test_a_sink_that_is_steadily_two_minutes_late_for_an_hour_costs_few_revisions_and_reads(store: Store) -> None:
    store.apply(pipeline("[{name: srcs, to: [sink]}, {name: sink}]"), 0)
    log, reports = LogInMemory(), list[ReportRecord]()
    reader, metrics = Recording(log), AggregatorMetrics()
    watch = DefinitionRegistry(store.engine, store, metrics)
    closer = Closer(store.engine, watch, reader, log, metrics, SetAside(store.engine))  # type: ignore[arg-type]
    follower = ReportConsumer(store.engine, "reports", "one")
    start_s = 1_780_000_020
    start_ms, end_ms = start_s * 1000, (start_s + HOUR * 60) * 1000
    source, sink = (Node(name, log, reports, start_ms - 1_000) for name in ("srcs", "sink"))
    for now_ms in range(start_ms, end_ms + LATE_MS + 180_000, STEP_MS):
        if now_ms < end_ms:
            source.step(now_ms, now_ms)
        else:
            source.report(now_ms, (), now_ms)
        if start_ms + LATE_MS <= now_ms < end_ms + LATE_MS:
            sink.step(now_ms - LATE_MS, now_ms)
        else:
            sink.report(now_ms, (), now_ms if now_ms >= end_ms + LATE_MS else 0)
        follower.follow(reports[-2:], {})
        while closer.tick(now_ms, now_ms):
            pass
    windows = documents(store.windows(PIPELINE, start_s, start_s + HOUR * 60))
    told = [found for at in range(HOUR) for found in documents(store.revisions(PIPELINE, start_s + 60 * at))]
    assert [(w["window_start"], w["verdict"], w["reasons"]) for w in windows if w["verdict"] != "ok"] == []
    assert "loss" not in {found["verdict"] for found in told}
    revisions = [window["revision"] for window in windows]
    needed = len(log.log)
    print(f"revisions {sum(revisions) / HOUR:.1f} a window, at most {max(revisions)}; {len(reader.asked)} reads of")
    print(f"{reader.records()} records for {needed} blocks: {reader.records() / needed:.1f} times")
    assert len(windows) == HOUR
    assert max(revisions) <= 3
    assert len(reader.asked) <= 3 * HOUR + 10  # and some windows after the hour
    assert reader.records() <= 8 * needed
    assert metrics.registry.get_sample_value("lagloss_block_records_read_total") == reader.records()

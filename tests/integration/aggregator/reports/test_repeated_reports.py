"""Reports that arrive again, late or out of order, in the tables: whoever follows them, and after whatever batch.

LAGLOSS_REPORT_HISTORIES is how many random histories are lived through (15 by default).
"""

from __future__ import annotations

import os
from random import Random

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from sqlalchemy import select

from aggregator.reports.consumer import ReportConsumer
from lagloss_server.judging.clock_skew import Skew
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.databases import dump, restore
from tests.support.kafka_log import read_all
from tests.support.report_histories import KNOWN, Known, batches, delayed, expected, in_order, log_of, repeated
from tests.support.stages import REPORTS, Sink, staged

HISTORIES = int(os.environ.get("LAGLOSS_REPORT_HISTORIES", "15"))
LOST = (7, 57)


def stored(store: Store) -> Known:
    """What the tables hold of emitters, lanes and tallies."""
    emitter, lane, tally = tables.EmitterRow, tables.LaneRow, tables.TallyRow
    with store.engine.connect() as connection:
        emitters = connection.execute(select(tables.table_of(emitter))).all()
        lanes = connection.execute(select(tables.table_of(lane))).all()
        tallies = connection.execute(
            select(tally.emitter, tally.checkpoint, tally.window_start, tally.seq, tally.beacons)
        )
        return Known(
            {
                row.emitter: (
                    *(row.seq, row.host, row.started_at, row.sent_at, row.closed, row.final_through, row.resumes),
                    *(row.unfinished, row.labels, row.appended_at, Skew.stored(row.skew), row.inputs),
                )
                for row in emitters
            },
            {(row.checkpoint, row.lane, row.holder): (row.until, row.reporter) for row in lanes},
            {tuple(row[:3]): tuple(row[3:]) for row in tallies},
        )


@pytest.mark.timeout(120 + 4 * HISTORIES)
def test_any_history_leaves_what_the_highest_seq_of_each_emitter_says(store: Store) -> None:
    """Two followers take turns, and each partition is read at its own pace."""
    empty = dump(store.engine)
    for seed in range(HISTORIES):
        rng = Random(seed)
        reports = delayed(rng, in_order(rng))
        log = log_of([*reports, *repeated(rng, reports)])
        followers = [ReportConsumer(store.engine, "reports", "topic-1") for _ in range(2)]
        for batch in batches(rng, log):
            rng.choice(followers).follow(batch, KNOWN)
        assert stored(store) == expected(log), f"seed {seed}"
        restore(store.engine, empty)


def test_an_old_report_that_arrives_again_after_the_closing_one_leaves_no_window_pending(
    spark: SparkSession, kafka_bootstrap: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(spark, kafka_bootstrap, store, monkeypatch) as stage:
        stage.at(10)
        sink = Sink(stage)
        sink.work(stage.send(0, 0, 17))
        assert sink.emitter.flush(10)
        rest = stage.send(0, 17, 100) + stage.send(1, 0, 100, LOST)
        stage.at(120)
        sink.work(rest)
        sink.end()
        reports = stage.topics[REPORTS]
        partition, *_, key, value = next(
            each for each in read_all(kafka_bootstrap, reports) if each[2] == sink.emitter.id
        )
        stage.at(181)
        producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
        producer.produce(reports, value, key, partition, timestamp=stage.clock.now_ms)
        assert producer.flush(10) == 0
        stage.judge()
        assert [stage.window(at)["verdict"] for at in (0, 1)] == ["ok", "loss"]
        assert [stage.window(at)["pending"] for at in (0, 1)] == [0, 0]
        assert stage.window(1)["lost"] == {"min": len(LOST), "max": len(LOST)}

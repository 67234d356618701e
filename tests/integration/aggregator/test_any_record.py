"""Records that anybody may write, before a healthy pipeline: its windows close exactly, and bad records count once.

LAGLOSS_ODD_RECORDS is how many of each of four kinds are drawn (300 by default).
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, Phase, given, settings

from aggregator import quarantine
from aggregator.reports.batch import ReportBatch, ReportRecord
from lagloss import MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss.wire.checks import check_block
from lagloss.wire.format import BadRecord, EmitterReport, OffsetRange, Tally, block_key, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import aggregator, health
from tests.support.closers import wait_until
from tests.support.odd_records import Keyed, blocks, damaged, reports
from tests.support.window_documents import documents

ODD_RECORDS = int(os.environ.get("LAGLOSS_ODD_RECORDS", "300"))
MESSAGES, MINUTES = 200, 3
ODD = "odd"
CHECKPOINTS = ["src.in", "src.out", "snk.in", "snk.out"]


def drawn(strategy: Any, number: int) -> list[Keyed]:
    """So many records of a strategy."""
    found: list[Keyed] = []

    @settings(max_examples=number, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def take(record: Keyed) -> None:
        found.append(record)

    take()
    return found


def define(store: Store, name: str) -> None:
    nodes = "{name: src, to: [snk]}, {name: snk}"
    text = f"{{apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {name}}}, spec: {{nodes: [{nodes}]}}}}"
    store.apply(parse_definition(text), 0)


class Healthy:
    """A pipeline whose windows of some minutes ago are filled, one after the other; of each, 2 % are lost."""

    def __init__(self, bootstrap: str, start_s: int) -> None:
        self.name, self.start_s = f"healthy-{uuid.uuid4().hex[:8]}", start_s
        self._emitters = [Emitter(self.name, node, bootstrap, first=node == "src") for node in ("src", "snk")]

    def send(self, minute: int) -> None:
        for at in range(MESSAGES):
            event_ms = (self.start_s + 60 * minute) * 1000 + at * 100
            for node, emitter in enumerate(self._emitters):
                if node == 0 or at % 50:
                    emitter.received(f"{minute}-{at}", event_ms, observed_at=event_ms + 5 + 10 * node)
                    emitter.sent(f"{minute}-{at}", event_ms, observed_at=event_ms + 9 + 10 * node)
        for emitter in self._emitters:
            assert emitter.flush(60)

    def close(self) -> None:
        for emitter in self._emitters:
            emitter.close()

    def lost(self, store: Store) -> list[tuple[str, list[str], int, dict[str, int]]]:
        """Verdict, reasons, messages and losses of the closed windows."""
        found = documents(store.windows(self.name, self.start_s, self.start_s + 60 * MINUTES))
        return [
            (one["verdict"], one["reasons"], one["messages"], one["lost"]) for one in found if one["state"] == "closed"
        ]


@pytest.fixture
def own_kafka(jars: None, own_dir: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(own_dir / "kafka") as server:
        create_topics(server.bootstrap, 4, 2)
        yield server


def good_block(start_s: int) -> Keyed:
    """A block of the odd pipeline's window, as it stands at both ends of a range that is read."""
    log = MemoryOutlet()
    with Emitter(ODD, "src", outlet=lambda: log, first=True) as emitter:
        emitter.received("good", start_s * 1000)
    return block_key(ODD, start_s), log.values(BEACONS)[0]


def tally_of_all(count: int, last: int, start_s: int) -> Keyed:
    """A report whose tally says that all of partition 0 is of the odd pipeline's window: it is read to be judged."""
    tally = Tally("src.in", start_s, count, 0, Sketch(), (OffsetRange(0, 0, last),))
    now_ms = int(time.time() * 1000)
    emitter = uuid.uuid4().bytes
    return emitter, encode_report(
        EmitterReport(ODD, "src", emitter, "here", 1, now_ms, now_ms, True, start_s + 60, (), (tally,))
    )


def expected(producer_records: dict[str, list[tuple[Keyed, int]]], names: set[str]) -> dict[str, int]:
    """How many of these records (with when they were appended) are bad, by topic, one by one."""
    bad: Counter[str] = Counter()
    for (key, value), appended_ms in producer_records[BEACONS]:
        try:
            check_block(key, value, appended_ms, names, CHECKPOINTS)
        except BadRecord:
            bad[BEACONS] += 1
    batch = ReportBatch()
    for offset, ((_, value), appended_ms) in enumerate(producer_records[REPORTS]):
        batch.take([ReportRecord(0, offset, appended_ms, value)], {name: frozenset(CHECKPOINTS) for name in names})
    bad[REPORTS] = len(batch.bad)
    return dict(bad)


@pytest.mark.timeout(400 + ODD_RECORDS // 5)
def test_no_record_harms_anybody_but_itself(own_kafka: EmbeddedKafka, database_url: str, tmp_path: Path) -> None:
    start_s = int(time.time()) // 60 * 60 - 60 * (MINUTES + 4)
    blocks_of = blocks(ODD, CHECKPOINTS, start_s)
    reports_of = reports(ODD, "src", ["src.in", "src.out"], start_s)
    odd = {
        BEACONS: [*drawn(blocks_of, ODD_RECORDS), *drawn(damaged(blocks_of), ODD_RECORDS)],
        REPORTS: [*drawn(reports_of, ODD_RECORDS), *drawn(damaged(reports_of), ODD_RECORDS)],
    }
    for records in odd.values():
        random.Random(ODD_RECORDS).shuffle(records)
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap, "log_level": 0})
    written: dict[str, list[tuple[Keyed, int]]] = {BEACONS: [], REPORTS: []}
    last: dict[str, int] = {}

    def write(topic: str, records: list[Keyed]) -> None:
        for record in records:

            def delivered(error: object, message: Any, record: Keyed = record) -> None:
                assert error is None
                written[topic].append((record, message.timestamp()[1]))
                last[topic] = message.offset()

            producer.produce(topic, record[1], record[0], partition=0, on_delivery=delivered)
        assert producer.flush(60) == 0

    with closing(Store(database_url)) as store, aggregator(own_kafka.bootstrap, database_url, tmp_path) as process:
        healthy = Healthy(own_kafka.bootstrap, start_s)
        for name in (ODD, healthy.name):
            define(store, name)
        write(BEACONS, [good_block(start_s)])
        for minute in range(MINUTES):  # odd ones first, each time
            for topic, records in odd.items():
                write(topic, records[minute::MINUTES])
            healthy.send(minute)
        healthy.send(MINUTES)  # what is lost in a window is certain once a later one has arrived
        write(BEACONS, [good_block(start_s)])
        write(REPORTS, [tally_of_all(len(written[BEACONS]), last[BEACONS], start_s)])
        wanted = [("loss", list[str](), MESSAGES, {"min": MESSAGES // 50, "max": MESSAGES // 50})] * MINUTES
        with suppress(AssertionError):  # Spark starts meanwhile, beside other tests' Sparks
            wait_until(lambda: healthy.lost(store) == wanted, 240)
        log = tmp_path / "aggregator.log"
        assert healthy.lost(store) == wanted, log.read_text()

        def counted() -> dict[str, int]:
            found: Counter[str] = Counter()
            with store.engine.connect() as connection:
                for (topic, _), count in quarantine.counts(connection).items():
                    found[topic] += count
            return dict(found)

        want = expected(written, {ODD, healthy.name})
        with suppress(AssertionError):
            wait_until(lambda: counted() == want, 60)
        assert counted() == want
        assert process.poll() is None
        assert health(process) == (200, "ok")
        assert [line for line in log.read_text().splitlines() if "waiting" in line or "work failed" in line] == []
        healthy.close()

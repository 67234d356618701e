"""Two tenants on one log: what one's tallies forge costs the other's closing next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from aggregator import quarantine
from aggregator.closing import due, wide_reads, window_store
from aggregator.closing.schedule import SETTLE_MS
from aggregator.closing.window_store import Closing
from lagloss.wire.format import (
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Tally,
    block_key,
    encode_block,
    encode_report,
    hash_id,
    partition_of,
)
from lagloss.wire.sketch import Sketch
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.store import Store
from tests.support.closers import Driven, driven, wait_until
from tests.support.kafka_log import PATIENCE
from tests.support.window_documents import documents

PARTITIONS = 8
FILLER = 200_000
"""Records of others in the log."""
BUDGET = 20_000
HONEST, FORGER = "honest", "forger"


@dataclass
class Tenants:
    """Two pipelines of one node, and what they put into the topics."""

    bootstrap: str
    beacons: str
    reports: str
    parts: Driven
    start_s: int
    seq: int = 0
    ends: list[OffsetRange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 20, "log_level": 0})

    def send(self, pipeline: str, window: int, ids: Sequence[str]) -> list[OffsetRange]:
        """A block of one beacon for each id; where they lie."""
        start_s, placed = self.start_s + 60 * window, list[OffsetRange]()

        def note(error: Any, message: Message) -> None:
            assert error is None
            placed.append(OffsetRange(message.partition() or 0, message.offset() or 0, message.offset() or 0))

        for name in ids:
            self.seq += 1
            one = np.array([hash_id(name)], np.uint64)
            block = BeaconBlock(
                pipeline, "src.in", pipeline.encode().ljust(16), self.seq, start_s, PARTITIONS, one,
                np.zeros(1, np.float32), event_offset_ms=np.zeros(1, np.uint16),
            )  # fmt: skip
            at = partition_of(hash_id(name), PARTITIONS)
            self._producer.produce(
                self.beacons, encode_block(block), block_key(pipeline, start_s), at, on_delivery=note
            )
        assert self._producer.flush(30) == 0
        return placed

    def fill(self) -> None:
        key = block_key(HONEST, self.start_s - 3_600)
        for at in range(FILLER):
            self._producer.produce(self.beacons, b"x" * 100, key, at % PARTITIONS)
            if at % 10_000 == 0:
                self._producer.flush(60)
        assert self._producer.flush(60) == 0

    def report(
        self, pipeline: str, window: int, beacons: int, ranges: Sequence[OffsetRange], emitter: str = ""
    ) -> None:
        self.seq += 1
        start_s, now_ms = self.start_s + 60 * window, int(time.time() * 1000)
        ordered = sorted(ranges, key=lambda place: (place.partition, place.first))
        tally = Tally("src.in", start_s, beacons, 0, Sketch(), tuple(ordered))
        report = EmitterReport(
            pipeline, "src", (emitter or pipeline).encode().ljust(16), "", self.seq, self.start_s * 1000, now_ms, False,
            now_ms // 1000, (), (tally,),
        )  # fmt: skip
        self._producer.produce(self.reports, encode_report(report), pipeline.encode())
        assert self._producer.flush(30) == 0

    def close(self, window: int, *pipelines: str) -> tuple[float, list[dict[str, Any]]]:
        """Close this window of them; how long the first took, and their results."""
        self.parts.follow_all()
        begun, took, found = time.monotonic(), 0.0, list[dict[str, Any]]()
        for pipeline in pipelines:
            found.append(wait_until(lambda pipeline=pipeline: self._closed(pipeline, window), what=pipeline))
            took = took or time.monotonic() - begun
        return took, found

    def _closed(self, pipeline: str, window: int) -> dict[str, Any] | None:
        now_ms = int(time.time() * 1000) + SETTLE_MS
        self.parts.closer.tick(now_ms, now_ms)
        start_s = self.start_s + 60 * window
        found = documents(self.parts.store.windows(pipeline, start_s, start_s + 60))
        return next((window for window in found if window["state"] == "closed"), None)

    @property
    def records_read(self) -> float:
        return self.parts.metrics.registry.get_sample_value("lagloss_block_records_read_total") or 0.0


@pytest.fixture
def tenants(
    spark: SparkSession,
    kafka_bootstrap: str,
    topics: Callable[..., Any],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Tenants]:
    monkeypatch.setattr(wide_reads, "MANY_RECORDS", BUDGET)
    monkeypatch.setattr(wide_reads, "RECENT_MS", 0)  # the whole log is of the last minutes
    own = topics(beacons_partitions=PARTITIONS)
    for name in (HONEST, FORGER):
        spec = "{nodes: [{name: src}], order: key}"  # with an order: never proven by tallies
        store.apply(
            parse_definition(f"{{apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {name}}}, spec: {spec}}}")
        )
    with driven(spark, kafka_bootstrap, store, own.beacons, own.reports) as parts:
        yield Tenants(kafka_bootstrap, own.beacons, own.reports, parts, int(time.time()) // 60 * 60 - 900)


def test_who_forges_ranges_delays_nobody_else_and_has_next_to_nothing_read(tenants: Tenants) -> None:
    early = tenants.send(FORGER, 3, [f"early-{at}" for at in range(40)])
    tenants.fill()
    ends = tenants.parts.beacons.ends()
    took = []
    for window in (12, 11, 10, 9, 8):  # each before those that were closed; the first read what nobody has looked at
        tenants.report(HONEST, window, 3, tenants.send(HONEST, window, ["a", "b", "c"]))
        seconds, _ = tenants.close(window, HONEST)
        took.append(seconds)
    undisturbed = min(took)
    tenants.parts.closer.reads.audit()

    everything = [OffsetRange(at, 0, 2**62) for at in range(PARTITIONS)]
    to_the_end = [OffsetRange(at, 0, end - 1) for at, end in ends.items()]
    quarters = [
        OffsetRange(at, end * part // 4, end * (part + 1) // 4 - 2) for at, end in ends.items() for part in range(4)
    ]
    scattered = [OffsetRange(at, offset, offset) for at, end in ends.items() for offset in range(0, end, 2_500)]
    before = tenants.records_read
    kinds = [(everything, 5), (to_the_end, 2**53 - 1), (quarters, 2**53 - 1), (scattered, 2**53 - 1)]
    for window, (forged, beacons) in zip((7, 6, 5, 4), kinds, strict=True):
        tenants.report(FORGER, window, beacons, forged)
        tenants.report(HONEST, window, 3, tenants.send(HONEST, window, ["a", "b", "c"]))
        seconds, (honest, other) = tenants.close(window, HONEST, FORGER)
        print(
            f"{beacons} beacons in {len(forged)} ranges: closed after {seconds:.2f} s, undisturbed {undisturbed:.2f} s"
        )
        assert seconds <= undisturbed + 2 * PATIENCE
        assert (honest["messages"], "evidence:src" in honest["reasons"]) == (3, False)
        assert (other["messages"], "evidence:src" in other["reasons"]) == (0, True)
    print(f"{tenants.records_read - before:.0f} of {FILLER} records read")
    assert tenants.records_read - before < FILLER / 20
    with tenants.parts.store.engine.connect() as connection:
        counted = quarantine.counts(connection)
    assert counted[tenants.beacons, "range_invalid"] == 2 * PARTITIONS + 4 * PARTITIONS

    # What is as wide, but between blocks of its own, as late beacons make it, is read: a little in each turn.
    late = tenants.send(FORGER, 3, [f"late-{at}" for at in range(40)])
    wide = [
        OffsetRange(at, min(found.first for found in of_it), max(found.last for found in of_it))
        for at in range(PARTITIONS)
        if (of_it := [found for found in early + late if found.partition == at])
    ]
    tenants.report(FORGER, 3, 80, wide)
    tenants.report(HONEST, 3, 3, tenants.send(HONEST, 3, ["a", "b", "c"]))
    seconds, (_, other) = tenants.close(3, HONEST, FORGER)
    print(f"wide: closed after {seconds:.2f} s, undisturbed {undisturbed:.2f} s")
    assert seconds <= undisturbed + 2
    assert (other["messages"], "evidence:src" in other["reasons"]) == (80, False)


def test_a_pipeline_with_many_emitters_is_closed_after_the_others(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "MANY_EMITTERS", 3)
    closed = list[str]()
    commit = window_store.commit

    def committing(connection: Connection, closings: Sequence[Closing]) -> list[tuple[Closing, int]]:
        closed.extend(closing.window[0] for closing in closings)
        return commit(connection, closings)

    monkeypatch.setattr(window_store, "commit", committing)
    for at in range(4):
        tenants.report(FORGER, 3, 1, [], f"emitter-{at}")
    tenants.report(HONEST, 3, 3, tenants.send(HONEST, 3, ["a", "b", "c"]))
    tenants.close(3, FORGER, HONEST)
    assert list(dict.fromkeys(closed)) == [HONEST, FORGER]

"""Measured = injected, without a server: what landing and importers send is judged by the code that runs in production,
and the verdict compares that with their ledger."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.files.progress import steady_ms
from lagloss.sdk.outlets.kafka import Outgoing
from lagloss.wire.format import SAMPLE_ALL, BeaconBlock, decode_block
from lagloss_server.model.definition import Definition, as_document
from lagloss_server.model.window import ListedWindow
from lagloss_server.queries.window_blocks import WindowBlocks
from lagloss_server.store.store import MissingMessage
from pipeline_under_test.batch.ledger import read_ledger
from pipeline_under_test.batch.topology import AGGREGATE, IMPORTERS, definitions
from pipeline_under_test.batch.truth import BatchTruth, FileFlow
from pipeline_under_test.harness.measured import Measured, as_measured
from pipeline_under_test.harness.verdict import Verdict, compared
from tests.oracle.evidence import Record
from tests.oracle.evidence import World as Evidence
from tests.support.in_memory import close_in_memory
from tests.unit.pipeline_under_test.batch.conftest import World

FAULTS = (
    "lose:notification:0.1",
    "duplicate:notification:0.2",
    "truncate:0.06",
    "corrupt:0.06",
    "schema:0.06",
    "empty:0.06",
    "enlarge:20:0.05",
    "overwrite:0.06",
    "late:3m:0.06",
    "bad:0.03",
    "fail:db-import:0.1",
)
FILES = 50
RECORDS = 10
LATER_MS = 60_000
"""How much later the queues are found empty: past every allowance."""


@dataclass
class TimedOutlet(MemoryOutlet):
    """A log that knows when each record was appended."""

    appended_ms: list[int] = field(default_factory=list)

    def send(self, record: Outgoing) -> None:
        self.appended_ms.append(time.time_ns() // 1_000_000)
        super().send(record)

    def topic(self, name: str) -> tuple[Record, ...]:
        ends: Counter[int] = Counter()
        found = []
        for (topic, partition, key, value), at_ms in zip(self.records, self.appended_ms, strict=True):
            if topic == name:
                found.append(Record(partition, ends[partition], at_ms, key, value))
                ends[partition] += 1
        return tuple(found)


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Both importers."""
    monkeypatch.setattr("pipeline_under_test.harness.faults.LOOK_EVERY_S", 0.0)
    made = World(tmp_path, IMPORTERS, TimedOutlet(), notified_within_s=1, visibility_s=1)
    yield made
    made.close()


def aggregate(world: World) -> None:
    """What the hourly job does, over all rows."""
    ids, times = list(world.sink.rows), [event.event_ms for event in world.sink.rows.values()]
    world.ledger.write("aggregated", hour=0, ids=ids)
    with Emitter(world.settings.pipeline, AGGREGATE, outlet=lambda: world.log) as emitter:
        emitter.observe_all("received", ids, times)
        emitter.observe_all("sent", ids, times)


def judged(world: World, definition: Definition, truth: BatchTruth) -> Verdict:
    """The verdict on one pipeline, by its windows as the aggregator would close them."""
    assert isinstance(world.log, TimedOutlet)
    beacons, now_ms = world.log.topic(BEACONS), time.time_ns() // 1_000_000 + 10 * LATER_MS
    evidence = Evidence(((0, as_document(definition)),), beacons, world.log.topic(REPORTS), now_ms)
    measured: dict[str, Measured] = {}
    for start_s in sorted(truth.windows):
        closing = close_in_memory(evidence, start_s)
        window = ListedWindow.of(closing.result, "closed", 1, None)
        missing = [
            MissingMessage(start_s, each.id.id_hash, each.id.name, each.kind, list(each.places), "", 0.0)
            for each in closing.missing
        ]
        blocks: dict[str, list[BeaconBlock]] = {}
        for block in (decode_block(record.value) for record in beacons):
            if (block.pipeline, block.window_start) == (definition.name, start_s):
                blocks.setdefault(block.checkpoint, []).append(block)
        found = WindowBlocks(definition.graph, start_s, blocks, SAMPLE_ALL)
        measured[window.window_start] = as_measured(window, found, missing)
    windows = [each.window for each in measured.values()]
    return compared(definition, truth, windows, lambda window: measured[window.window_start], now_ms / 1000)


def test_what_becomes_of_spoiled_lost_late_and_refused_files_is_measured_as_it_was_injected(both: World) -> None:
    both.inject(*FAULTS)
    for _ in range(FILES):
        both.store.store(both.events(RECORDS))
    both.import_all()
    both.inject()
    both.importers[0].redrive()
    aggregate(both)
    for importer in both.importers:
        importer.importer.queue.progress.emptied(steady_ms() + LATER_MS)
    both.close()
    flow = FileFlow.of(read_ledger(both.settings.ledger_dir))
    records, files = definitions(60)
    for definition, truth in ((records, BatchTruth.of_records(flow)), (files, BatchTruth.of_files(flow))):
        verdict = judged(both, definition, truth)
        assert verdict.differences == ()
        injected, measured = verdict.document()["injected"], verdict.document()["measured"]
        assert measured["lost"] == {"min": injected["lost"], "max": injected["lost"]}
        assert measured["pending"] == injected["pending"] == 0
        assert min(injected["lost"], injected["delivered"], injected["dead"], injected["duplicates"]) > 0
        assert measured["duplicates"] == injected["duplicates"]

"""The verdict on the batch pipeline: its ledger beside lagloss's windows, record by record and file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lagloss.broker.topics import BEACONS
from lagloss.wire.format import hash_id
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.settings import Settings as LaglossSettings
from lagloss_server.cli.options import open_store
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import ListedWindow
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.store import Store
from pipeline_under_test.batch.expected import BatchTruth, FileFlow
from pipeline_under_test.batch.ledger import read_ledger
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import AGGREGATE, files_pipeline
from pipeline_under_test.truth.lagloss_results import Measured, read_measured
from pipeline_under_test.truth.verdict import NAMED, Read, Verdict, VerdictDifference, compared

RERUN: frozenset[str] = frozenset({f"{AGGREGATE}.out"})
"""Checkpoints at which the hourly job reports a record once for each run over its hour."""


def verdicts_of(settings: BatchSettings, lagloss: LaglossSettings) -> list[Verdict]:
    """Compare the ledger with lagloss: the verdict on records, and that on files.

    Raises:
        NotEnoughData: the ledger is empty.
        LaglossError, KafkaException: a server cannot be reached, or lagloss has no such pipeline.
    """
    flow = FileFlow.of(read_ledger(settings.ledger_dir))
    if not flow.files:
        raise NotEnoughData(detail=f"The ledger in {settings.ledger_dir} is empty. Start the process `landing`.")
    truths = {
        settings.pipeline: BatchTruth.of_records(flow),
        files_pipeline(settings.pipeline): BatchTruth.of_files(flow),
    }
    with open_store(lagloss) as store:
        log = BeaconLog(lagloss.require_kafka(), BEACONS)
        try:
            return [_verdict_on(pipeline, truth, store, log) for pipeline, truth in truths.items()]
        finally:
            log.close()


def _verdict_on(pipeline: str, truth: BatchTruth, store: Store, log: BeaconLog) -> Verdict:
    definition = store.pipeline(pipeline).definition
    windows = store.windows(pipeline, min(truth.windows), max(truth.windows) + 1)
    return verdict_on(definition, truth, windows, lambda window: read_measured(store, log, pipeline, window))


def verdict_on(
    definition: Definition,
    truth: BatchTruth,
    windows: Iterable[ListedWindow],
    read: Read,
    now_s: float | None = None,
) -> Verdict:
    """Compare all windows of one pipeline; see `pipeline_under_test.truth.verdict.compared`."""
    found: dict[int, Measured] = {}

    def keeping(window: ListedWindow) -> Measured:
        return found.setdefault(window.start_s, read(window))

    verdict = compared(definition, truth, windows, keeping, now_s)
    return replace(verdict, differences=(*verdict.differences, *_duplicate_differences(truth, found)))


def _duplicate_differences(truth: BatchTruth, found: Mapping[int, Measured]) -> Iterator[VerdictDifference]:
    """Return deliveries that lagloss has counted more often than an importer has written them.

    Not the other way round: an importer that is killed after it has written a file may not have sent the beacons.
    """
    written = {(start_s, checkpoint): counts for start_s, checkpoint, counts in truth.written()}
    for start_s, measured in found.items():
        for checkpoint, duplicates in measured.duplicates.items():
            if checkpoint in RERUN:
                continue
            counts = written.get((start_s, checkpoint), Counter())
            times = {hash_id(name): count for name, count in counts.items()}
            more = [id_hash for id_hash, count in duplicates.items() if count > times.get(id_hash, 0) - 1]
            if more:
                names = tuple(measured.name(id_hash) for id_hash in sorted(more)[:NAMED])
                expected = sum(count > 1 for count in times.values())
                yield VerdictDifference(start_s, f"duplicates at {checkpoint}", expected, len(duplicates), names)

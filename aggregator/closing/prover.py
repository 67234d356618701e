"""Prover: selects the windows to close from their tallies alone, and raises an alarm if beacons contradict a proof."""

from __future__ import annotations

import random
from collections.abc import Iterable

import structlog
from confluent_kafka import KafkaException
from sqlalchemy import Engine, select

from aggregator.closing.judge import JudgementContext, close
from aggregator.metrics import AggregatorMetrics
from lagloss.wire.format import BadRecord, OffsetRange, decode_block, unpack_ranges
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import clamp
from lagloss_server.rules.facts import WindowFacts
from lagloss_server.rules.tally_proof import proves, sized_links
from lagloss_server.store.schema import core as tables

log = structlog.get_logger()

CHECKSUMS_KNOWN_MS = 600_000
"""How long it is taken for known whether a pipeline's blocks carry checksums."""


class Prover:
    """Decides which windows are proven. `verify_share`: which share of these is read all the same, to see that the
    beacons agree."""

    def __init__(self, engine: Engine, beacons: BeaconLog, metrics: AggregatorMetrics, verify_share: float) -> None:
        self._checksums = ChecksumWatch(engine, beacons)
        self._metrics = metrics
        self._verify_share = verify_share

    def is_proven(self, known: JudgementContext, window: tuple[str, int]) -> bool:
        """Return whether the tallies prove that nothing is missing, and no block has to be read for anything else."""
        graph, evidence = known.graph(*window), known.evidence(*window)
        if graph.definition.spec.order is not None or not proves(graph, evidence):
            return False
        links = sized_links(graph, evidence.tallies)
        return not links or not self._checksums.are_used(*window, links, known.now_ms)

    def to_verify(self, proven: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        """Choose the windows that are read although they are proven."""
        return {window for window in proven if random.random() < self._verify_share}

    def verify(self, known: JudgementContext, window: tuple[str, int], facts: WindowFacts) -> None:
        """Raise the alarm where the beacons of a proven window say that a message is missing, or hold fewer than the
        tallies."""
        result = close(known, *window, facts).result
        fewer = any(tally.beacons > facts.read.get(tally.account, 0) for tally in known.evidence(*window).tallies)
        missing = result.pending or result.unexplained or (result.lost is not None and result.lost.max)
        self._metrics.proofs_checked.inc()
        if fewer or missing:
            self._metrics.proofs_refuted.inc()
            log.error(
                "proof refuted", pipeline=window[0], window_start=window[1], fewer=fewer, result=result.document()
            )


class ChecksumWatch:
    """Whether a pipeline's blocks carry checksums, which tallies do not say: looks at a block of each side of the links
    in question, once in a while for each pipeline."""

    def __init__(self, engine: Engine, beacons: BeaconLog) -> None:
        self._engine = engine
        self._beacons = beacons
        self._answers: dict[str, tuple[int, bool]] = {}

    def are_used(self, pipeline: str, window_start_s: int, links: Iterable[tuple[str, str]], now_ms: int) -> bool:
        """Return whether both sides of one of these links (out, in) carry checksums in this window, judged by a block
        of each; true where no block could be read."""
        asked_ms, used = self._answers.get(pipeline, (0, False))
        if now_ms - asked_ms >= CHECKSUMS_KNOWN_MS:
            used = any(
                all(self._carries(pipeline, window_start_s, checkpoint) for checkpoint in link) for link in links
            )
            self._answers[pipeline] = now_ms, used
        return used

    def _carries(self, pipeline: str, window_start_s: int, checkpoint: str) -> bool:
        tally = tables.TallyRow
        with self._engine.connect() as connection:
            ranges = connection.execute(
                select(tally.ranges)
                .where(tally.pipeline == pipeline, tally.window_start == window_start_s, tally.checkpoint == checkpoint)
                .limit(1)
            ).scalar_one_or_none()
        try:
            first = [OffsetRange(at.partition, at.first, at.first) for at in unpack_ranges(ranges or b"")[:1]]
            records = self._beacons.records(clamp(first, self._beacons.watermarks()))
            blocks = [decode_block(record.value) for record in records]
        except (BadRecord, KafkaException):
            return True
        return not blocks or blocks[0].payload_crc is not None

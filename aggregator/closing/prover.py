"""Proof of windows by their tallies: which windows, with what facts, and an alarm if beacons contradict a proof."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping

import structlog
from confluent_kafka import KafkaException
from sqlalchemy import Engine, select

from aggregator.closing.context import JudgementContext
from aggregator.closing.judge import close
from aggregator.closing.report_state import WindowKey, Windows, read_sketches
from aggregator.kernel.plan import WindowPlan
from aggregator.metrics import AggregatorMetrics
from lagloss.wire.format import BadRecord, OffsetRange, decode_block, unpack_ranges
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.judging.tally_proof import proven_facts, proves, sized_links
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import clamp
from lagloss_server.store.schema import core as tables

log = structlog.get_logger()

CHECKSUMS_KNOWN_MS = 600_000
"""How long it is taken for known whether a pipeline's blocks carry checksums."""


class Prover:
    """Decides which windows are proven. `verify_share`: which share of these is read all the same, to see that the
    beacons agree."""

    def __init__(self, engine: Engine, beacons: BeaconLog, metrics: AggregatorMetrics, verify_share: float) -> None:
        self._engine = engine
        self._checksums = ChecksumWatch(engine, beacons)
        self._metrics = metrics
        self._verify_share = verify_share

    def prove(self, context: JudgementContext, windows: Windows, ends_at: float) -> dict[WindowKey, bool]:
        """Return whether each window is proven, of as many as there is time for until `ends_at` (monotonic s), of one
        at least: a look for checksums takes a read."""
        proven: dict[WindowKey, bool] = {}
        for window in windows:
            if proven and time.monotonic() >= ends_at:
                break
            proven[window] = self.is_proven(context, window)
        return proven

    def is_proven(self, context: JudgementContext, window: WindowKey) -> bool:
        """Return whether the tallies prove that nothing is missing, and no block has to be read for anything else."""
        graph, evidence = context.graph(*window), context.evidence(*window)
        if graph.definition.spec.order is not None or not proves(graph, evidence):
            return False
        links = sized_links(graph, evidence.tallies)
        return not links or not self._checksums.are_used(*window, links, context.now_ms)

    def facts(self, context: JudgementContext, windows: Windows) -> dict[WindowKey, WindowFacts]:
        """Return the facts of proven windows, from their tallies: they cost the same whatever a window's size.

        A window of which a tally has changed since the context was loaded is left out: it may not be proven any more.
        """
        if not windows:
            return {}
        with self._engine.connect() as connection:
            sketches = read_sketches(connection, windows)
        return {
            window: proven_facts(context.graph(*window), sketches[window])
            for window in windows
            if {tally for tally, _ in sketches[window]} == set(context.reports.tallies[window])
        }

    def to_verify(self, proven: Iterable[WindowKey]) -> set[WindowKey]:
        """Choose the windows that are read although they are proven."""
        return {window for window in proven if random.random() < self._verify_share}

    def verify(self, context: JudgementContext, window: WindowKey, facts: WindowFacts) -> None:
        """Raise the alarm where the beacons of a proven window say that a message is missing, or hold fewer than the
        tallies."""
        result = close(context, *window, facts).result
        fewer = any(tally.beacons > facts.read.get(tally.account, 0) for tally in context.evidence(*window).tallies)
        missing = result.pending or result.unexplained or (result.lost is not None and result.lost.max)
        self._metrics.proofs_checked.inc()
        if fewer or missing:
            self._metrics.proofs_refuted.inc()
            log.error(
                "proof refuted", pipeline=window[0], window_start=window[1], fewer=fewer, result=result.document()
            )


def to_name(context: JudgementContext, facts: Mapping[WindowKey, WindowFacts]) -> set[WindowKey]:
    """Return the proven windows with so many late or dead messages that these are to be named, as only blocks do."""
    return {
        window
        for window, proven in facts.items()
        if WindowPlan(context.graph(*window), window[1]).has_names_to_keep(proven)
    }


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
            first = [
                OffsetRange(offset_range.partition, offset_range.first, offset_range.first)
                for offset_range in unpack_ranges(ranges or b"")[:1]
            ]
            records = self._beacons.records(clamp(first, self._beacons.watermarks()))
            blocks = [decode_block(record.value) for record in records]
        except (BadRecord, KafkaException):
            return True
        return not blocks or blocks[0].payload_crc is not None

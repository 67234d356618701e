"""Reads of blocks: how much of each window a turn reads, in Spark reads of bounded size, each record audited once."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from sqlalchemy import Connection, Engine, select
from sqlalchemy.dialects.postgresql import insert

from aggregator import quarantine
from aggregator.closing.context import JudgementContext
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.report_state import WindowKey, Windows
from aggregator.closing.wide_reads import Share, WideReads, in_few_ranges
from aggregator.kernel.kernel import BadBlock
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import BlockReader, Reading
from aggregator.metrics import AggregatorMetrics
from aggregator.outage import TopicRecreated
from lagloss.wire.format import BadReason, OffsetRange, block_key
from lagloss_server.judging.arithmetic import horizon
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.emitters import last_words
from lagloss_server.queries.offset_ranges import Watermarks, clamp, merge_ranges, records_in
from lagloss_server.store.schema import core as tables

BEACONS_PER_PARTITION = 6_250_000
"""Beacons per Spark read of each partition of their topic, of one window at least: a task's memory stays the same
however many partitions there are, and a crash repeats no more than one read."""
RECORDS_PER_PARTITION = 1_000_000
"""Records per Spark read of each partition, whosever they are, of one window at least."""
AUDITED_AT_ONCE = 200_000
"""Records of a partition that no read has met, read along with a closing."""


class WindowReading(NamedTuple):
    """What one read found, by window, and up to where all records of each partition have been read by now."""

    facts: Mapping[WindowKey, WindowFacts]
    reading: Reading
    audited: Mapping[int, int]


class WindowReads:
    """Reads of the beacons topic for windows of all pipelines."""

    def __init__(
        self,
        engine: Engine,
        watch: DefinitionRegistry,
        reader: BlockReader,
        beacons: BeaconLog,
        metrics: AggregatorMetrics,
    ) -> None:
        self.reader = reader
        self._engine = engine
        self._watch = watch
        self._beacons = beacons
        self._topic_id = beacons.topic_id()
        self._metrics = metrics
        self._wide = WideReads(beacons)

    def waits(self, window: WindowKey) -> bool:
        """Return whether a window is wide and cannot be closed yet, since it is still read."""
        return self._wide.waits(window)

    def read_on(self) -> None:
        """Read a little more of the wide windows."""
        self._metrics.read(self._wide.go_on(), 0)

    def done(self, windows: Iterable[WindowKey]) -> None:
        """Forget what was read of these windows: they are closed."""
        self._wide.done(windows)

    def demand_same_topic(self) -> None:
        """Check that the beacons topic is still that whose offsets the tallies name.

        Raises:
            TopicRecreated: it is another one, and what was read of it is not what was asked for.
        """
        if self._beacons.topic_id() != self._topic_id:
            raise TopicRecreated(f"{self._beacons.topic} was recreated")

    def shares(self, context: JudgementContext, windows: Windows, ends_at: float = math.inf) -> dict[WindowKey, Share]:
        """Return what to read of each window, as far as there is time until `ends_at` (monotonic s): no more of one
        pipeline than it may have in one turn, and nothing of wide windows that are still read. It is at least one if
        none is wide."""
        shares: dict[WindowKey, Share] = {}
        spanned: dict[str, list[OffsetRange]] = {}
        if not windows:
            return shares
        watermarks = self._beacons.watermarks()
        offsets_at = cache(self._beacons.offsets_at)  # emitters that died together share an answer of the broker
        most = self._wide.most_records(watermarks, context.now_ms)
        for window in windows:
            pipeline, reports = window[0], context.reports
            silent = last_words(offsets_at, context.evidence(*window).silent(), watermarks)
            share = self._wide.share(
                window, reports.ranges[window], silent, watermarks, most, is_doubtful=window in reports.doubtful
            )
            if share is not None:
                together = in_few_ranges([*spanned.get(pipeline, ()), *share.ranges])
                if pipeline not in spanned or records_in(together) <= most:
                    shares[window], spanned[pipeline] = share, together
            if shares and time.monotonic() >= ends_at:
                break
        return shares

    def batches(
        self, context: JudgementContext, shares: Mapping[WindowKey, Share]
    ) -> Iterator[Mapping[WindowKey, Share]]:
        """Split the windows into reads of bounded size, by the beacons in their tallies and the records they span."""
        batch: dict[WindowKey, Share] = {}
        beacons, most_beacons = 0, BEACONS_PER_PARTITION * self.reader.partitions
        size, most_records = 0, RECORDS_PER_PARTITION * self.reader.partitions
        spanned: list[OffsetRange] = []
        for window, share in shares.items():
            of_window = sum(tally.beacons for tally in context.reports.tallies[window])
            size += records_in(share.ranges)
            if size > most_records:  # where windows share ranges, the sum counts them twice: now count exactly
                spanned = merge_ranges([*spanned, *(item for part in batch.values() for item in part.ranges)])
                size = records_in(merge_ranges([*spanned, *share.ranges]))
            if batch and (beacons + of_window > most_beacons or size > most_records):
                yield batch
                batch, beacons, spanned, size = {}, 0, [], records_in(share.ranges)
            batch[window] = share
            beacons += of_window
        if batch:
            yield batch

    def read(self, context: JudgementContext, shares: Mapping[WindowKey, Share]) -> WindowReading:
        """Read these windows in one go, and the next records that no read has met."""
        watermarks = self._beacons.watermarks()
        audited = self._audited(watermarks)
        # A look at the definitions after the log's ends: no record before these can name a newer one. It brings the
        # checkpoints up to date that the plans know.
        pipelines = frozenset({*self._watch.look(), *context.versions})
        plans = [self._plan(context, window) for window in shares]
        plan = ReadPlan({item.key: item for item in plans}, pipelines, audited)
        ranges = clamp(merge_ranges([*_joined(shares), *_unread(audited, watermarks)]), watermarks)
        records = [record for share in shares.values() for record in share.kept]
        reading = self.reader.read(ranges, plan, records)
        self.demand_same_topic()  # or what was just read has nothing to do with the tallies
        self._metrics.read(records_in(ranges), reading.value_bytes)
        reading = _with_refused(reading, shares)
        facts = {window: reading.facts[block_key(*window)] for window in shares}
        return WindowReading(facts, reading, _advanced(audited, ranges))

    def audit(self) -> None:
        """Read what no closing has read, only for records with a key that no good block has."""
        watermarks = self._beacons.watermarks()
        audited = self._audited(watermarks)
        ranges = clamp(_unread(audited, watermarks), watermarks)
        if ranges:
            reading = self.reader.read(ranges, ReadPlan({}, frozenset(self._watch.look()), audited))
            with self._engine.begin() as connection:
                self.record(connection, WindowReading({}, reading, _advanced(audited, ranges)))

    def record(self, connection: Connection, read: WindowReading) -> None:
        """Set bad records aside and store how far the audit came, in the transaction that commits the read: each bad
        record is counted once, however often its window is read."""
        topic, now_ms = self._beacons.topic, int(time.time() * 1000)
        bad = [(block.partition, block.offset, block.reason, block.first_bytes) for block in read.reading.bad]
        quarantine.record(connection, topic, bad)
        quarantine.count(connection, topic, {(why, now_ms): count for why, count in read.reading.strays.items()})
        if read.facts:
            quarantine.count_windows(connection, topic, {window: facts.bad for window, facts in read.facts.items()})
        rows = [
            {"topic_partition": partition, "next_offset": offset, "topic_id": self._topic_id}
            for partition, offset in read.audited.items()
        ]
        if rows:
            upsert = insert(tables.AuditedRow)
            columns = {name: upsert.excluded[name] for name in ("next_offset", "topic_id")}
            connection.execute(upsert.on_conflict_do_update(index_elements=["topic_partition"], set_=columns), rows)

    def _audited(self, watermarks: Mapping[int, Watermarks]) -> dict[int, int]:
        """Return the first offset of each partition that is still in the log and that no read has met."""
        table = tables.AuditedRow
        with self._engine.connect() as connection:
            rows = connection.execute(select(table.topic_partition, table.next_offset))
            stored = {row.topic_partition: row.next_offset for row in rows}
        return {partition: max(stored.get(partition, 0), marks.low) for partition, marks in watermarks.items()}

    def _plan(self, context: JudgementContext, window: WindowKey) -> WindowPlan:
        graph, evidence = context.graph(*window), context.evidence(*window)
        others = self._watch.checkpoints.get(window[0], frozenset())
        return WindowPlan(graph, window[1], horizon(graph, evidence).cuts, evidence.sample, others)


def _joined(shares: Mapping[WindowKey, Share]) -> list[OffsetRange]:
    """Return the ranges of these windows, few of each pipeline and partition: each costs a read of its own."""
    by_pipeline: defaultdict[str, list[OffsetRange]] = defaultdict(list)
    for (pipeline, _), share in shares.items():
        by_pipeline[pipeline] += share.ranges
    return merge_ranges(item for ranges in by_pipeline.values() for item in in_few_ranges(ranges))


def _unread(audited: Mapping[int, int], watermarks: Mapping[int, Watermarks]) -> list[OffsetRange]:
    """Return the next ranges to audit. They are read along with windows, which mostly lie in them: most records are
    read once only."""
    return [
        OffsetRange(partition, first, min(first + AUDITED_AT_ONCE, watermarks[partition].high) - 1)
        for partition, first in audited.items()
        if first < watermarks[partition].high
    ]


def _advanced(audited: Mapping[int, int], ranges: Iterable[OffsetRange]) -> dict[int, int]:
    """Return how far the audit has come after these ranges (ascending in each partition) were read."""
    reached = dict(audited)
    for item in ranges:
        if item.first <= reached[item.partition]:  # a range behind a gap does not count: the gap is not audited
            reached[item.partition] = max(reached[item.partition], item.last + 1)
    return reached


def _with_refused(reading: Reading, shares: Mapping[WindowKey, Share]) -> Reading:
    """Count the ranges that were refused of these windows among their bad records, and show them."""
    facts, bad = dict(reading.facts), list(reading.bad)
    for window, share in shares.items():
        if share.refused:
            key = block_key(*window)
            refused: dict[BadReason, int] = {"range_invalid": len(share.refused)}
            facts[key] = replace(facts[key], bad={**facts[key].bad, **refused})
            bad += [
                BadBlock(item.partition, item.last, "range_invalid", b"%s %d..%d" % (key, item.first, item.last))
                for item in share.refused
            ]
    return replace(reading, facts=facts, bad=tuple(bad))

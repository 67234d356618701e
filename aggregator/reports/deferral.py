"""Deferral: reports of a pipeline that crowd those of the others are followed later, so that it alone is late.

Such a pipeline is passed over in the stream, which thus reaches the end of the log, and followed from the log, a turn
at a time. Until that is done none of its windows is judged. What is known afterwards depends neither on the order in
which the reports of several emitters were followed nor on how often one was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert

from aggregator.outage import ReportsLost
from aggregator.reports.batch import ReportRecord
from lagloss.wire.format import OffsetRange, pipeline_of_report
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import clamp
from lagloss_server.store.schema import core as tables

LATE_MS: Final = 20_000
"""Age of the newest report in a batch from which on the follower is behind."""
SHARE: Final = 0.25
"""Largest share of a late batch that one pipeline may have without being deferred."""
SMALL_BATCH: Final = 1_000
"""A batch of so few reports is followed whole, within a second or so."""
RECORDS_A_TURN: Final = 20_000
"""Records that a turn reads from the log at most, whosever they are."""
REPORTS_A_TURN: Final = 1_000
"""Reports that a turn follows at most."""

TURNS: Final = -1
"""Stands for a partition among the positions: it counts the turns, so that what they change has a basis of its own."""

Markers = Mapping[int, int]
"""By partition, the offset of the first record that may be one of a pipeline's deferred reports."""


def crowding(records: Sequence[ReportRecord], now_ms: int) -> set[str]:
    """Return the pipelines to be deferred from these records on: none while the follower keeps up, or if there is no
    other's report to make room for."""
    if len(records) <= SMALL_BATCH or now_ms - max(record.appended_ms for record in records) < LATE_MS:
        return set()
    counts = Counter(pipeline_of_report(record.value) for record in records)
    return {name for name, count in counts.items() if name is not None and count > SHARE * len(records)}


def read_deferred(connection: Connection) -> dict[str, dict[int, int]]:
    """Return the deferred pipelines with their markers."""
    table = tables.table_of(tables.DeferredReportsRow)
    offsets: dict[str, dict[int, int]] = {}
    for row in connection.execute(select(table)):
        offsets.setdefault(row.pipeline, {})[row.topic_partition] = row.next_offset
    return offsets


def defer(connection: Connection, passed_over: Iterable[tuple[str, ReportRecord]]) -> None:
    """Note records of pipelines that are followed later; the first of each partition counts."""
    first: dict[tuple[str, int], int] = {}
    for pipeline, record in passed_over:
        place = pipeline, record.partition
        first[place] = min(record.offset, first.get(place, record.offset))
    if first:
        _insert(connection, first)


def read_turn(
    log: BeaconLog, pipeline: str, markers: Markers, ends: Markers
) -> tuple[list[ReportRecord], Mapping[int, int]]:
    """Read the next deferred reports of a pipeline, before these ends; return them, and the markers after them.

    Raises:
        ReportsLost: retention has deleted some of them.
    """
    held = log.watermarks()
    if any(offset < held[partition].low for partition, offset in markers.items()):
        raise ReportsLost(f"the log has lost deferred reports of {pipeline}")
    ranges = [OffsetRange(partition, offset, ends[partition] - 1) for partition, offset in sorted(markers.items())]
    records: list[ReportRecord] = []
    reached = dict(markers)
    for read, record in enumerate(log.records(clamp(ranges, held))):
        if read == RECORDS_A_TURN or len(records) == REPORTS_A_TURN:
            return records, reached
        reached[record.partition] = record.offset + 1
        if pipeline_of_report(record.value) == pipeline:
            records.append(ReportRecord(record.partition, record.offset, record.appended_ms, record.value))
    return records, ends


def settle(connection: Connection, pipeline: str, reached: Markers, ends: Markers) -> bool:
    """Move a pipeline's markers; return whether all its reports before these ends are followed, so that it is deferred
    no more."""
    table = tables.table_of(tables.DeferredReportsRow)
    connection.execute(delete(table).where(table.c.pipeline == pipeline))
    unfinished = {partition: offset for partition, offset in reached.items() if offset < ends[partition]}
    if unfinished:
        _insert(connection, {(pipeline, partition): offset for partition, offset in unfinished.items()})
    return not unfinished


def _insert(connection: Connection, offsets: Mapping[tuple[str, int], int]) -> None:
    rows = [
        {"pipeline": pipeline, "topic_partition": partition, "next_offset": offset}
        for (pipeline, partition), offset in offsets.items()
    ]
    connection.execute(insert(tables.table_of(tables.DeferredReportsRow)).on_conflict_do_nothing(), rows)

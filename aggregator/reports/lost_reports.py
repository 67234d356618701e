"""Reports that the log lost before they were followed: retention was faster, an older backup of PostgreSQL was
restored, or an election cut off the log's tail.

Their emitters take them for followed, and repeat only tallies that change. So more may have been counted than is known,
though later reports say that accounts are whole: windows that began before are incomplete (rule 7).
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from sqlalchemy import Connection, func, update
from sqlalchemy.dialects.postgresql import insert

from aggregator.reports import report_tables
from aggregator.reports.report_tables import ReportsPlace
from lagloss.wire.format import OffsetRange
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import Watermarks
from lagloss_server.store.schema import core as tables

CLOCKS_APART_MS: Final = 600_000
"""How far the clock of a leader may be behind that of the one before."""


class LostReports(NamedTuple):
    """What a partition has lost. `resume_at`: offset at which to go on; `whole_from`: none that was appended since then
    is missing (epoch ms); `is_cut`: at its end, so that other records may have got offsets that were followed."""

    partition: int
    resume_at: int
    whole_from: int
    is_cut: bool = False


def find_lost(log: BeaconLog, partition: int, place: ReportsPlace, now_ms: int) -> LostReports:
    """Return what a partition has lost of which the brokers do not have the record at this place.

    Raises:
        KafkaException: the brokers do not answer.
    """
    held = log.watermarks()[partition]
    if place.offset < held.low:
        return LostReports(partition, held.low, _first_append_ms(log, partition, held, now_ms))
    # Up to where the log is what it was, the client does not say. What is followed again changes nothing.
    since = log.offsets_at(max(0, place.appended_at - CLOCKS_APART_MS))[partition]
    return LostReports(partition, max(held.low, min(since, place.offset, held.high)), now_ms, is_cut=True)


def _first_append_ms(log: BeaconLog, partition: int, held: Watermarks, now_ms: int) -> int:
    """Return when the first record that is left was appended; now if there is none."""
    if held.low >= held.high:
        return now_ms
    with closing(log.records([OffsetRange(partition, held.low, held.high - 1)])) as left:
        return next((record.appended_ms for record in left), now_ms)


def pass_over(connection: Connection, lost: LostReports, topic_id: str) -> None:
    """Go on behind what is lost, in the stream and with deferred reports, and note from when on reports are whole."""
    nearer = func.least if lost.is_cut else func.greatest
    row, deferred = tables.ReportsPositionRow, tables.DeferredReportsRow
    before = report_tables.read_positions(connection).get(lost.partition, 0)
    upsert = insert(row).values(
        topic_partition=lost.partition, next_offset=lost.resume_at, topic_id=topic_id, whole_from=lost.whole_from
    )
    new = upsert.excluded
    replaced = {
        "next_offset": nearer(new.next_offset, row.next_offset),
        "leader_epoch": new.leader_epoch,
        "whole_from": func.greatest(new.whole_from, row.whole_from),
    }
    connection.execute(upsert.on_conflict_do_update(index_elements=["topic_partition"], set_=replaced))
    moved = update(deferred).where(deferred.topic_partition == lost.partition)
    connection.execute(moved.values(next_offset=nearer(deferred.next_offset, lost.resume_at)))
    # The basis has to grow, though a position may go back.
    report_tables.add_turns(connection, max(0, before - lost.resume_at) + 1, topic_id)

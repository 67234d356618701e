"""Reports that the log lost before they were followed: retention was faster, an older backup of PostgreSQL was
restored, or an election cut off the log's tail.

Their emitters take them for followed, and repeat only tallies that change. So more may have been counted than is known,
though later reports say that accounts are whole: windows that began before are incomplete (rule 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final, NamedTuple

from sqlalchemy import Connection, func, update
from sqlalchemy.dialects.postgresql import insert

from aggregator.clock import DOUBT_MS, WRONG_MS
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


def find_lost(
    log: BeaconLog, places: Mapping[int, ReportsPlace], now_ms: int, cut: int | None = None
) -> list[LostReports]:
    """Return what partitions have lost whose log begins behind these places; `cut`: the one of which the brokers do not
    have what comes at its place for another reason.

    Raises:
        KafkaException: the brokers do not answer.
    """
    held, lost = log.watermarks(), []
    noticed_ms = by_brokers(log, now_ms)
    for partition, place in places.items():
        marks = held[partition]
        if place.offset < marks.low:
            lost.append(LostReports(partition, marks.low, _first_append_ms(log, partition, marks) or noticed_ms))
        elif partition == cut:
            # Up to where the log is what it was, the client does not say. What is followed again changes nothing.
            since = log.offsets_at(max(0, place.appended_at - CLOCKS_APART_MS))[partition]
            resume_at = max(marks.low, min(since, place.offset, marks.high))
            lost.append(LostReports(partition, resume_at, noticed_ms, is_cut=True))
    return lost


def by_brokers(log: BeaconLog, now_ms: int) -> int:
    """Return the time that the brokers' clocks say it is, if this one is far from what they stamped last."""
    newest_ms = log.newest_ms()
    return now_ms if newest_ms < 0 or abs(now_ms - newest_ms) <= WRONG_MS else newest_ms + DOUBT_MS


def _first_append_ms(log: BeaconLog, partition: int, held: Watermarks) -> int | None:
    """Return when the first record that is left was appended; None if there is none."""
    if held.low >= held.high:
        return None
    with closing(log.records([OffsetRange(partition, held.low, held.high - 1)])) as left:
        return next((record.appended_ms for record in left), None)


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

"""The tables that following writes: emitters, lanes, tallies, and names that no definition has."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog
from sqlalchemy import Column, Connection, Engine, case, delete, func, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from aggregator.reports import deferral
from aggregator.reports.batch import Account, EmitterHistory, ReportBatch
from aggregator.reports.undeclared import Name, UndeclaredNames
from lagloss.wire.format import RETENTION_MS
from lagloss_server.judging.clock_skew import Skew
from lagloss_server.model.graph import node_of
from lagloss_server.queries.emitters import read_whole_from
from lagloss_server.store.bulk import as_json, stage
from lagloss_server.store.schema import core as tables

log = structlog.get_logger()

FRESH_FOR_S: Final = 3_600
"""How long names and emitters are held in memory before they are read again: names without those of a week ago, and the
number of emitters of the last hour only."""
ACCOUNTS_AT_ONCE: Final = 1_000


@dataclass
class FollowingMemory:
    """What a batch needs of those before it, held as long as every batch is committed."""

    strangers: UndeclaredNames
    accounts: dict[Account, EmitterHistory] = field(default_factory=dict)
    basis: int = -1
    """Basis that the last batch left; if the database has another one, reports have been followed elsewhere since."""
    _read_at: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, connection: Connection, declared: AbstractSet[str]) -> FollowingMemory:
        """Read the kept names, without those first reported so long ago that the log has dropped the report, too;
        `declared`: the pipelines that have a definition.

        Accounts are read as their emitters report.
        """
        table = tables.table_of(tables.StrangerRow)
        connection.execute(delete(table).where(table.c.since < time.time() * 1000 - RETENTION_MS))
        rows = connection.execute(select(table)).all()
        emitter, lately_ms = tables.EmitterRow, (time.time() - FRESH_FOR_S) * 1000
        counted = select(emitter.pipeline, func.count()).where(emitter.appended_at >= lately_ms)
        emitters: dict[str, int] = dict(connection.execute(counted.group_by(emitter.pipeline)).all())
        owners = {Name(row.kind, row.pipeline, row.checkpoint, row.name): row.emitter for row in rows}
        return cls(UndeclaredNames(owners, emitters=emitters, declared=declared))

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self._read_at > FRESH_FOR_S


class ReportsPlace(NamedTuple):
    """Place in a partition: the next offset to follow, and of the report before it the leader's epoch (-1: unknown) and
    when it was appended (epoch ms)."""

    offset: int = 0
    epoch: int = -1
    appended_at: int = 0


def read_places(connection: Connection) -> dict[int, ReportsPlace]:
    """Return up to where each partition is followed."""
    row = tables.ReportsPositionRow
    places = select(row.topic_partition, row.next_offset, row.leader_epoch, row.appended_at)
    rows = connection.execute(places.where(row.topic_partition >= 0))
    return {partition: ReportsPlace(*place) for partition, *place in rows}


def read_positions(connection: Connection) -> dict[int, int]:
    """Return the next offset to follow of each partition."""
    return {partition: place.offset for partition, place in read_places(connection).items()}


def add_turns(connection: Connection, turns: int, topic_id: str) -> None:
    """Count so many more turns of deferred reports, or as if: what changes from now on has a later basis."""
    row = tables.ReportsPositionRow
    upsert = insert(row).values(topic_partition=deferral.TURNS, next_offset=turns, topic_id=topic_id)
    more = row.next_offset + upsert.excluded.next_offset
    connection.execute(upsert.on_conflict_do_update(index_elements=["topic_partition"], set_={"next_offset": more}))


def insert_strangers(connection: Connection, strangers: UndeclaredNames) -> None:
    """Store the names that are kept since the last batch."""
    rows = [
        {**name._asdict(), "emitter": emitter, "since": since}
        for name, (emitter, since) in sorted(strangers.fresh.items())
    ]
    if rows:
        connection.execute(insert(tables.table_of(tables.StrangerRow)).on_conflict_do_nothing(), rows)
    strangers.fresh.clear()


def read_histories(connection: Connection, accounts: AbstractSet[Account]) -> dict[Account, EmitterHistory]:
    """Return what is stored of these emitters; those of which nothing is are left out."""
    table = tables.table_of(tables.EmitterRow)
    histories: dict[Account, EmitterHistory] = {}
    unread = list(accounts)
    for index in range(0, len(unread), ACCOUNTS_AT_ONCE):
        rows = connection.execute(
            select(table.c.pipeline, table.c.emitter, table.c.seq, table.c.skew, table.c.inputs, table.c.sent_at).where(
                tuple_(table.c.pipeline, table.c.emitter).in_(unread[index : index + ACCOUNTS_AT_ONCE])
            )
        )
        for row in rows:
            histories[row.pipeline, row.emitter] = EmitterHistory(
                row.seq, Skew.stored(row.skew), frozenset(row.inputs), row.sent_at
            )
    return histories


def merge_emitters(connection: Connection, followed: ReportBatch) -> None:
    """Write the newest report of each emitter; its clock skew and input lanes are of earlier reports, too."""
    rows = (
        (
            pipeline,
            emitter,
            report.node,
            report.host,
            report.seq,
            report.started_at,
            report.sent_at,
            report.closed,
            report.final_through,
            report.resumes,
            report.unfinished,
            as_json(report.labels),
            appended_at,
            (history := followed.accounts[pipeline, emitter]).skew.ms,
            as_json(history.skew.to_store()),
            as_json(sorted(history.inputs)),
        )
        for (pipeline, emitter), (report, appended_at) in followed.emitters.items()
    )
    table = tables.table_of(tables.EmitterRow)
    head = ("host", "seq", "started_at", "sent_at", "closed", "final_through", "resumes", "unfinished", "labels")
    names = ("pipeline", "emitter", "node", *head, "appended_at", "skew_ms", "skew", "inputs")
    upsert = stage(connection, table, names, rows)
    new = upsert.excluded
    replaced: dict[str, Any] = {name: new[name] for name in (*head, "skew_ms", "skew", "inputs")}
    replaced["appended_at"] = func.greatest(new.appended_at, table.c.appended_at)
    newest = upsert.on_conflict_do_update(
        index_elements=["pipeline", "emitter"], set_=replaced, where=new.seq > table.c.seq
    )
    connection.execute(newest)


def merge_lanes(connection: Connection, followed: ReportBatch) -> None:
    """Write the newest progress of each lane.

    The position decides between emitters only: what the batch has of an emitter is newer than its rows.
    """
    rows = (
        (
            pipeline,
            checkpoint,
            lane,
            holder,
            progress.until,
            reporter,
            record.appended_ms,
            record.partition,
            record.offset,
        )
        for (pipeline, checkpoint, lane, holder), (progress, record, reporter) in followed.lanes.items()
    )
    table = tables.table_of(tables.LaneRow)
    keys = ("pipeline", "checkpoint", "lane", "holder")
    position = ("appended_at", "topic_partition", "topic_offset")
    upsert = stage(connection, table, (*keys, "until", "reporter", *position), rows)
    new = upsert.excluded
    newest = upsert.on_conflict_do_update(
        index_elements=keys,
        set_={name: new[name] for name in ("until", "reporter", *position)},
        where=or_(
            new.reporter == table.c.reporter,
            func.row(*(new[name] for name in position)) > func.row(*(table.c[name] for name in position)),
        ),
    )
    connection.execute(newest)


def merge_tallies(connection: Connection, followed: ReportBatch, basis: int) -> None:
    """Write the newest tallies; `basis`: of the changes that they bring."""
    rows = (
        (
            pipeline,
            start,
            emitter,
            checkpoint,
            replay,
            node_of(checkpoint),
            sketch.seq,
            sketch.tally.sample,
            sketch.tally.beacons,
            sketch.tally.payload_bytes,
            sketch.tally.id_sum,
            sketch.tally.dropped,
            sketch.tally.lag_sketch,
            sketch.tally.ranges,
            sketch.tally.lowest_bin,
            sketch.changed_at,
            basis,
        )
        for (pipeline, start, emitter, checkpoint, replay), sketch in followed.tallies.items()
    )
    table = tables.table_of(tables.TallyRow)
    keys = ("pipeline", "window_start", "emitter", "checkpoint", "replay")
    content = ("sample", "beacons", "payload_bytes", "id_sum", "dropped", "sketch", "ranges", "lowest_bin")
    upsert = stage(connection, table, (*keys, "node", "seq", *content, "changed_at", "changed_basis"), rows)
    new = upsert.excluded

    def content_of(columns: Any) -> list[Column[Any]]:
        return [columns[name] for name in content]

    changed = func.row(*content_of(new)).is_distinct_from(func.row(*content_of(table.c)))
    replaced: dict[str, Any] = {name: new[name] for name in ("seq", *content)}
    for name in ("changed_at", "changed_basis"):
        replaced[name] = case((changed, new[name]), else_=table.c[name])
    connection.execute(upsert.on_conflict_do_update(index_elements=keys, set_=replaced, where=new.seq > table.c.seq))


def known_partitions(engine: Engine) -> tuple[int, int]:
    """Return how many partitions the topics of beacons and reports have at least, by the positions that are kept."""
    tables_ = (tables.AuditedRow, tables.ReportsPositionRow)
    with engine.connect() as connection:
        beacons, reports = (connection.execute(select(func.max(table.topic_partition))).scalar() for table in tables_)
    return (-1 if beacons is None else beacons) + 1, (-1 if reports is None else reports) + 1


def notice_recreated_topics(engine: Engine, beacons_id: str, reports_id: str, now_ms: int) -> bool:
    """Return whether a topic was deleted and created again, by the ids for which positions were kept; if so, begin to
    follow anew: such a topic begins at offset 0, so no known position holds.

    Windows so far stay as they are (sealed); positions, tallies and lanes of the old log are dropped. Emitters that
    live on send what changes from then on: windows that began before now are incomplete. The next report of each
    counts, whatever its seq: if only the beacons have a new topic, all reports are followed again.
    """
    reports, audited = tables.ReportsPositionRow, tables.AuditedRow
    with engine.begin() as connection:
        known_reports = set(connection.execute(select(reports.topic_id)).scalars())
        known_beacons = set(connection.execute(select(audited.topic_id)).scalars())
        if known_reports <= {reports_id} and known_beacons <= {beacons_id}:
            return False
        window = tables.WindowRow
        connection.execute(update(window).where(window.state == "closed").values(state="sealed", deadline=None))
        whole_from = max(read_whole_from(connection), 0 if known_reports <= {reports_id} else now_ms)
        for table in (reports, tables.DeferredReportsRow, audited, tables.TallyRow, tables.LaneRow):
            connection.execute(delete(table))
        connection.execute(update(tables.EmitterRow).values(seq=-1))
        kept = {"topic_partition": deferral.TURNS, "next_offset": 0, "topic_id": reports_id, "whole_from": whole_from}
        connection.execute(insert(reports).values(kept))
    log.warning("topic recreated", note="existing windows are sealed; reports are consumed from the beginning")
    return True

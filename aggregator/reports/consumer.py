"""Following reports: a stream from `lagloss.reports` that keeps the newest state of emitters, lanes and tallies.

The position lives in PostgreSQL, in the same transaction as what was followed, so the stream's own checkpoint need not
survive: at start it begins where the database says.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Connection, Engine, case, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import Insert, insert

from aggregator import quarantine
from aggregator.clock import JudgementClock
from aggregator.outage import DatabaseRestored
from aggregator.reports import deferral
from aggregator.reports.batch import Checkpoints, ReportBatch, ReportRecord, position
from aggregator.reports.undeclared import Name, UndeclaredNames
from aggregator.set_aside import isolate
from lagloss.broker.connection import KafkaConnection
from lagloss.wire.format import RETENTION_MS, pipeline_of_report
from lagloss_server.model.graph import node_of
from lagloss_server.net.kafka_clients import java_options
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.rules.clock_skew import Skew
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import read_basis

log = structlog.get_logger()

TRIGGER = "1 second"
REPORTS_PER_BATCH = 5_000
"""A batch is held in memory: 25 MB of usual reports, 2.5 GB of the longest that an SDK sends."""


STRANGERS_FOR_S = 3_600
"""How long the names that no definition has are held in memory before they are read again: without those of a week ago,
and with the emitters of the last hour only."""

PATIENCE = {"kafka.request.timeout.ms": "10000", "kafka.default.api.timeout.ms": "15000"}
"""Time that the stream waits for a broker, during which it cannot be stopped; Kafka's default is a minute."""


def hold_follower(connection: Connection) -> None:
    """Lock out other consumers of reports, and retention of the rows that they write, until this transaction ends.

    A lock of the table, since there may be no row to lock yet; a follower that lost its lease may work still.
    """
    connection.execute(text("LOCK TABLE reports_position IN SHARE ROW EXCLUSIVE MODE"))


class ReportConsumer:
    """Consumer of reports: writes each batch and its position to PostgreSQL in one transaction."""

    def __init__(self, engine: Engine, topic: str, topic_id: str, clock: JudgementClock | None = None) -> None:
        """Consume the topic with this id; `clock`: learns the broker's time from the reports."""
        self.engine = engine
        self.topic = topic
        self.topic_id = topic_id
        self._clock = clock
        self._reached: Mapping[int, int] = {}
        """Positions that the database has had already."""
        self._strangers: UndeclaredNames | None = None
        self._strangers_read_at = 0.0
        self._had_its_turn = ""
        """The pipeline whose deferred reports were followed last."""

    def positions(self) -> dict[int, int]:
        """Next offset to follow of each partition known so far.

        Raises:
            DatabaseRestored: the database does not know any more what it knew.
        """
        reached = self._reached  # before the database is asked: a batch may be committed meanwhile
        with self.engine.connect() as connection:
            found = _read_positions(connection)
        self._note(found, reached)
        return found

    def follow(self, records: Iterable[ReportRecord], known: Checkpoints) -> int:
        """Take a batch of records in; those already followed are passed over. How many were new.

        A record that cannot be followed, for whatever reason but an outage, is quarantined as `failed`.

        Raises:
            DatabaseRestored: the records between the database's position and these would never be followed.
        """
        ordered = sorted(records, key=lambda record: (record.partition, record.offset))
        return isolate(ordered, lambda some: self._follow(some, known), self._quarantine)

    def _follow(self, records: Sequence[ReportRecord], known: Checkpoints) -> int:
        """Follow records in one transaction, which come in order in each partition."""
        with self.engine.begin() as connection:
            hold_follower(connection)
            followed_to = _read_positions(connection)
            self._note(followed_to, self._reached)
            fresh = [record for record in records if record.offset >= followed_to.get(record.partition, 0)]
            deferred = deferral.read_deferred(connection)
            crowding = self._crowding(fresh, known)
            later = deferred.keys() | crowding
            followed, passed_over = ReportBatch(strangers=self._known_strangers(connection)), []
            for record in sorted(fresh, key=position):
                pipeline = pipeline_of_report(record.value) if later else None
                if pipeline is not None and pipeline in later:
                    followed.pass_over(record)
                    passed_over.append((pipeline, record))
                else:
                    followed.take(record, known)
            deferral.defer(connection, passed_over)
            positions = {**followed_to, **followed.positions}
            self._write(connection, followed)
        self._reached, self._strangers = positions, followed.strangers
        for name in sorted(crowding - deferred.keys()):
            log.warning("deferred", pipeline=name, reports=sum(pipeline == name for pipeline, _ in passed_over))
        if fresh and self._clock is not None:
            self._clock.heard(max(record.appended_ms for record in fresh))
        return len(fresh)

    def _crowding(self, records: Sequence[ReportRecord], known: Checkpoints) -> set[str]:
        """Return the pipelines whose reports are followed later, if there are others to make room for."""
        if self._clock is None or len(known) < 2:
            return set()
        return deferral.crowding(records, self._clock.now_ms())

    def _quarantine(self, record: ReportRecord, error: Exception) -> None:
        """Pass over a record that cannot be followed."""
        with self.engine.begin() as connection:
            hold_follower(connection)
            failed = self._failed(connection, record, error)
            positions = {**_read_positions(connection), **failed.positions}
            self._write(connection, failed)
        self._reached, self._strangers = positions, failed.strangers

    def _failed(self, connection: Connection, record: ReportRecord, error: Exception) -> ReportBatch:
        log.error("report failed", partition=record.partition, offset=record.offset, exc_info=error)
        failed = ReportBatch(strangers=self._known_strangers(connection))
        failed.quarantine(record, "failed")
        return failed

    def follow_deferred(self, reports: BeaconLog, known: Checkpoints) -> bool:
        """Follow the next deferred reports of one pipeline, of each in turn; return whether there were any."""
        with self.engine.connect() as connection:
            if not deferral.read_deferred(connection):
                return False
        with self.engine.begin() as connection:
            hold_follower(connection)
            deferred = deferral.read_deferred(connection)
            pipeline = min(deferred, key=lambda name: (name <= self._had_its_turn, name))
            ends = _read_positions(connection)
            records, reached = deferral.read_turn(reports, pipeline, deferred[pipeline], ends)

            def follow(some: Sequence[ReportRecord]) -> int:
                batch = ReportBatch(strangers=self._known_strangers(connection))
                for record in sorted(some, key=position):
                    batch.take(record, known)
                with connection.begin_nested():
                    self._write_again(connection, batch)
                return len(some)

            isolate(
                records,
                follow,
                lambda record, error: self._write_again(connection, self._failed(connection, record, error)),
            )
            is_done = deferral.settle(connection, pipeline, reached, ends)
        self._had_its_turn = pipeline
        log.info("followed deferred reports", pipeline=pipeline, reports=len(records), caught_up=is_done)
        return True

    def _write_again(self, connection: Connection, followed: ReportBatch) -> None:
        """Write reports that the stream has passed over: its positions stay, and the turn is counted instead."""
        followed.positions = {deferral.TURNS: _read_turns(connection) + 1}
        self._write(connection, followed)

    def _note(self, found: Mapping[int, int], reached: Mapping[int, int]) -> None:
        if any(found.get(partition, 0) < offset for partition, offset in reached.items()):
            raise DatabaseRestored(f"expected PostgreSQL to hold reports up to {dict(reached)}, found {dict(found)}")
        if reached is self._reached:
            self._reached = found

    def _known_strangers(self, connection: Connection) -> UndeclaredNames:
        """Return the names of the last batch; read them again after a batch that failed, and once an hour."""
        strangers, self._strangers = self._strangers, None
        if strangers is None or time.monotonic() - self._strangers_read_at > STRANGERS_FOR_S:
            strangers, self._strangers_read_at = _read_strangers(connection), time.monotonic()
        return strangers

    def _write(self, connection: Connection, followed: ReportBatch) -> None:
        """Write a batch. The basis of what it changes is the position after it, as one number: see `read_basis`."""
        self._move(connection, followed.positions)
        basis = read_basis(connection)
        ensure_days(connection, {key[1] for key in followed.tallies})
        _upsert_emitters(connection, followed)
        _upsert_lanes(connection, followed)
        _upsert_tallies(connection, followed, basis)
        _insert_strangers(connection, followed.strangers)
        bad = followed.bad.values()
        rows = [(record.partition, record.offset, reason, record.value) for record, reason in bad]
        quarantine.record(connection, self.topic, rows)
        quarantine.count(connection, self.topic, Counter((reason, record.appended_ms) for record, reason in bad))

    def _move(self, connection: Connection, positions: Mapping[int, int]) -> None:
        places = [
            {"topic_partition": partition, "next_offset": offset, "topic_id": self.topic_id}
            for partition, offset in positions.items()
        ]
        if places:
            upsert = insert(tables.ReportsPositionRow).values(places)
            connection.execute(
                upsert.on_conflict_do_update(
                    index_elements=["topic_partition"],
                    set_={"next_offset": upsert.excluded.next_offset, "topic_id": upsert.excluded.topic_id},
                )
            )


def _read_positions(connection: Connection) -> dict[int, int]:
    table = tables.ReportsPositionRow
    rows = connection.execute(select(table.topic_partition, table.next_offset).where(table.topic_partition >= 0))
    return {row.topic_partition: row.next_offset for row in rows}


def _read_turns(connection: Connection) -> int:
    """Return how often deferred reports were followed."""
    table = tables.ReportsPositionRow
    turns = connection.execute(select(table.next_offset).where(table.topic_partition == deferral.TURNS)).scalar()
    return turns or 0


def _read_strangers(connection: Connection) -> UndeclaredNames:
    """Read the kept names, without those first reported so long ago that the log has dropped the report, too."""
    table = tables.table_of(tables.StrangerRow)
    connection.execute(delete(table).where(table.c.since < time.time() * 1000 - RETENTION_MS))
    rows = connection.execute(select(table)).all()
    emitter, lately_ms = tables.EmitterRow, (time.time() - STRANGERS_FOR_S) * 1000
    emitters: dict[str, set[bytes]] = {}
    for row in connection.execute(select(emitter.pipeline, emitter.emitter).where(emitter.appended_at >= lately_ms)):
        emitters.setdefault(row.pipeline, set()).add(row.emitter)
    kept = {Name(row.kind, row.pipeline, row.checkpoint, row.name): row.emitter for row in rows}
    return UndeclaredNames(kept, emitters=emitters)


def _insert_strangers(connection: Connection, strangers: UndeclaredNames) -> None:
    rows = [
        {**name._asdict(), "emitter": emitter, "since": since}
        for name, (emitter, since) in sorted(strangers.fresh.items())
    ]
    _execute(connection, insert(tables.table_of(tables.StrangerRow)).on_conflict_do_nothing(), rows)
    strangers.fresh.clear()


def _execute(connection: Connection, statement: Insert, rows: Sequence[dict[str, Any]]) -> None:
    """Run a statement for each row: compiled once for all batches, and sent to the server in one go (psycopg pipelines
    them). All rows as values of one statement would be compiled anew each second, which took longer than to run it."""
    if rows:
        connection.execute(statement, rows)


def _with_earlier(
    connection: Connection, followed: ReportBatch
) -> tuple[dict[tuple[str, bytes], Skew], dict[tuple[str, bytes], set[str]]]:
    """Return the clock skews and input lanes of the emitters, from these reports and those before them."""
    table = tables.table_of(tables.EmitterRow)
    skews, inputs = dict(followed.skews), {account: set(lanes) for account, lanes in followed.inputs.items()}
    accounts = list(followed.skews)
    for at in range(0, len(accounts), 1_000):
        rows = connection.execute(
            select(table.c.pipeline, table.c.emitter, table.c.skew, table.c.inputs).where(
                tuple_(table.c.pipeline, table.c.emitter).in_(accounts[at : at + 1_000])
            )
        )
        for row in rows:
            account = (row.pipeline, row.emitter)
            skews[account] = skews[account].merged(Skew.stored(row.skew))
            inputs[account].update(row.inputs)
    return skews, inputs


def _upsert_emitters(connection: Connection, followed: ReportBatch) -> None:
    skews, inputs = _with_earlier(connection, followed)
    rows = [
        {
            "emitter": emitter,
            "pipeline": pipeline,
            "node": report.node,
            "host": report.host,
            "seq": report.seq,
            "started_at": report.started_at,
            "sent_at": report.sent_at,
            "closed": report.closed,
            "final_through": report.final_through,
            "resumes": report.resumes,
            "labels": dict(report.labels),
            "appended_at": appended_at,
            "skew_ms": skews[pipeline, emitter].ms,
            "skew": skews[pipeline, emitter].smallest,
            "inputs": sorted(inputs[pipeline, emitter]),
        }
        for (pipeline, emitter), (report, appended_at) in followed.emitters.items()
    ]
    table = tables.table_of(tables.EmitterRow)
    upsert = insert(table)
    newer = upsert.excluded.seq > table.c.seq
    replaced: dict[str, Any] = {
        name: case((newer, upsert.excluded[name]), else_=table.c[name])
        for name in ("seq", "started_at", "sent_at", "closed", "final_through", "resumes", "labels", "host")
    }
    replaced |= {name: upsert.excluded[name] for name in ("skew_ms", "skew", "inputs")}
    replaced["appended_at"] = func.greatest(upsert.excluded.appended_at, table.c.appended_at)
    _execute(connection, upsert.on_conflict_do_update(index_elements=["pipeline", "emitter"], set_=replaced), rows)


def _upsert_lanes(connection: Connection, followed: ReportBatch) -> None:
    rows = [
        {
            "pipeline": pipeline,
            "checkpoint": checkpoint,
            "lane": lane,
            "holder": holder,
            "until": progress.until,
            "reporter": reporter,
            "appended_at": record.appended_ms,
            "topic_partition": record.partition,
            "topic_offset": record.offset,
        }
        for (pipeline, checkpoint, lane, holder), (progress, record, reporter) in followed.lanes.items()
    ]
    table = tables.table_of(tables.LaneRow)
    upsert = insert(table)
    found = upsert.excluded
    names = ("until", "reporter", "appended_at", "topic_partition", "topic_offset")
    newest = upsert.on_conflict_do_update(
        index_elements=["pipeline", "checkpoint", "lane", "holder"],
        set_={name: found[name] for name in names},
        where=func.row(found.appended_at, found.topic_partition, found.topic_offset)
        > func.row(table.c.appended_at, table.c.topic_partition, table.c.topic_offset),
    )
    _execute(connection, newest, rows)


_TALLY_CONTENT = ("sample", "beacons", "payload_bytes", "id_sum", "dropped", "sketch", "ranges")


def _upsert_tallies(connection: Connection, followed: ReportBatch, basis: int) -> None:
    rows = [
        {
            "pipeline": pipeline,
            "window_start": start,
            "emitter": emitter,
            "checkpoint": checkpoint,
            "replay": replay,
            "node": node_of(checkpoint),
            "seq": found.seq,
            "sample": found.tally.sample,
            "beacons": found.tally.beacons,
            "payload_bytes": found.tally.payload_bytes,
            "id_sum": found.tally.id_sum,
            "dropped": found.tally.dropped,
            "sketch": found.tally.lag_sketch.pack(),
            "ranges": [[place.partition, place.first, place.last] for place in found.tally.ranges],
            "changed_at": found.changed_at,
            "changed_basis": basis,
        }
        for (pipeline, start, emitter, checkpoint, replay), found in followed.tallies.items()
    ]
    table = tables.table_of(tables.TallyRow)
    upsert = insert(table)
    found = upsert.excluded
    changed = func.row(*(found[name] for name in _TALLY_CONTENT)).is_distinct_from(
        func.row(*(table.c[name] for name in _TALLY_CONTENT))
    )
    replaced: dict[str, Any] = {name: found[name] for name in ("seq", *_TALLY_CONTENT)}
    for name in ("changed_at", "changed_basis"):
        replaced[name] = case((changed, found[name]), else_=table.c[name])
    newest = upsert.on_conflict_do_update(
        index_elements=["pipeline", "window_start", "emitter", "checkpoint", "replay"],
        set_=replaced,
        where=found.seq > table.c.seq,
    )
    _execute(connection, newest, rows)


@contextmanager
def following(
    spark: SparkSession,
    bootstrap: str,
    follower: ReportConsumer,
    partitions: Iterable[int],
    checkpoints: Callable[[], Checkpoints],
) -> Iterator[StreamingQuery]:
    """Consume the reports topic from the database's position, while the block lasts; `checkpoints()` returns those of
    the current pipelines."""
    known = follower.positions()
    starts = {str(partition): known.get(partition, -2) for partition in partitions}
    reports = (
        spark.readStream.format("kafka")
        .options(**java_options(KafkaConnection.of(bootstrap)))
        .option("subscribe", follower.topic)
        .option("startingOffsets", json.dumps({follower.topic: starts}))
        .option("failOnDataLoss", "false")
        .options(**PATIENCE)
        .option("maxOffsetsPerTrigger", str(REPORTS_PER_BATCH))
        .load()
        .select("partition", "offset", F.unix_millis("timestamp").alias("appended_ms"), "value")
    )

    def take(batch: DataFrame, _number: int) -> None:
        rows = batch.collect()
        follower.follow((ReportRecord(*row) for row in rows), checkpoints())

    with tempfile.TemporaryDirectory(prefix="lagloss-stream-", ignore_cleanup_errors=True) as scratch:
        stream = (
            reports.writeStream.queryName("follow reports")
            .foreachBatch(take)
            .option("checkpointLocation", scratch)
            .trigger(processingTime=TRIGGER)
            .start()
        )
        try:
            yield stream
        finally:
            stream.stop()

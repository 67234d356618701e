"""Following reports: a stream from `lagloss.reports` that keeps the newest state of emitters, lanes and tallies.

The position lives in PostgreSQL, in the same transaction as what was followed, so the stream's own checkpoint need not
survive: at start it begins where the database says.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Connection, Engine, case, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from aggregator import quarantine
from aggregator.followed import Checkpoints, Followed, ReportRecord, position
from lagloss import tables
from lagloss.graph import node_of
from lagloss.skew import Skew
from lagloss.store import ensure_days

log = structlog.get_logger()

TRIGGER = "1 second"
Row = TypeVar("Row")


class ReportFollower:
    """Writes what is followed to PostgreSQL, each batch and its position in one transaction."""

    def __init__(self, engine: Engine, topic: str, topic_id: str) -> None:
        self.engine = engine
        self.topic = topic
        self.topic_id = topic_id

    def positions(self) -> dict[int, int]:
        """Next offset to follow of each partition known so far."""
        table = tables.ReportsPosition
        with self.engine.connect() as connection:
            rows = connection.execute(select(table.topic_partition, table.next_offset))
            return {row.topic_partition: row.next_offset for row in rows}

    def follow(self, records: Iterable[ReportRecord], known: Checkpoints) -> int:
        """Take a batch of records in, in log order; those already followed are passed over. How many were new."""
        with self.engine.begin() as connection:
            table = tables.ReportsPosition
            rows = connection.execute(select(table.topic_partition, table.next_offset).with_for_update())
            followed_to = {row.topic_partition: row.next_offset for row in rows}
            fresh = [record for record in records if record.offset >= followed_to.get(record.partition, 0)]
            followed = Followed()
            for record in sorted(fresh, key=position):
                followed.take(record, known)
            positions = {**followed_to, **followed.positions}
            self._write(connection, followed, basis=sum(positions.values()))
        return len(fresh)

    def _write(self, connection: Connection, followed: Followed, basis: int) -> None:
        ensure_days(connection, {key[1] for key in followed.tallies})
        _upsert_emitters(connection, followed)
        _upsert_lanes(connection, followed)
        _upsert_tallies(connection, followed, basis)
        quarantine.record(
            connection,
            self.topic,
            [(record.partition, record.offset, reason, record.value) for record, reason in followed.bad],
        )
        if followed.positions:
            rows = [
                {"topic_partition": partition, "next_offset": offset, "topic_id": self.topic_id}
                for partition, offset in followed.positions.items()
            ]
            upsert = insert(tables.ReportsPosition).values(rows)
            connection.execute(
                upsert.on_conflict_do_update(
                    index_elements=["topic_partition"],
                    set_={"next_offset": upsert.excluded.next_offset, "topic_id": upsert.excluded.topic_id},
                )
            )


def _chunks(rows: Sequence[Row], size: int = 500) -> Iterable[Sequence[Row]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _skews(connection: Connection, followed: Followed) -> dict[tuple[str, bytes], Skew]:
    """What these reports and those before them tell of the clocks of their emitters."""
    table = tables.table_of(tables.Emitter)
    skews = dict(followed.skews)
    for accounts in _chunks(list(followed.skews)):
        rows = connection.execute(
            select(table.c.pipeline, table.c.emitter, table.c.skew).where(
                tuple_(table.c.pipeline, table.c.emitter).in_(accounts)
            )
        )
        for row in rows:
            account = (row.pipeline, row.emitter)
            skews[account] = skews[account].merged(Skew.stored(row.skew))
    return skews


def _upsert_emitters(connection: Connection, followed: Followed) -> None:
    skews = _skews(connection, followed)
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
            "appended_at": appended_at,
            "skew_ms": skews[pipeline, emitter].ms,
            "skew": skews[pipeline, emitter].smallest,
        }
        for (pipeline, emitter), (report, appended_at) in followed.emitters.items()
    ]
    table = tables.table_of(tables.Emitter)
    for chunk in _chunks(rows):
        upsert = insert(table).values(chunk)
        newer = upsert.excluded.seq > table.c.seq
        replaced: dict[str, Any] = {
            name: case((newer, upsert.excluded[name]), else_=table.c[name])
            for name in ("seq", "started_at", "sent_at", "closed", "final_through", "host")
        }
        replaced["appended_at"] = func.greatest(upsert.excluded.appended_at, table.c.appended_at)
        replaced |= {name: upsert.excluded[name] for name in ("skew_ms", "skew")}
        connection.execute(upsert.on_conflict_do_update(index_elements=["pipeline", "emitter"], set_=replaced))


def _upsert_lanes(connection: Connection, followed: Followed) -> None:
    rows = [
        {
            "pipeline": pipeline,
            "checkpoint": checkpoint,
            "lane": lane,
            "holder": holder,
            "until": progress.until,
            "appended_at": record.appended_ms,
            "topic_partition": record.partition,
            "topic_offset": record.offset,
        }
        for (pipeline, checkpoint, lane, holder), (progress, record) in followed.lanes.items()
    ]
    table = tables.table_of(tables.Lane)
    for chunk in _chunks(rows):
        upsert = insert(table).values(chunk)
        found = upsert.excluded
        names = ("until", "appended_at", "topic_partition", "topic_offset")
        connection.execute(
            upsert.on_conflict_do_update(
                index_elements=["pipeline", "checkpoint", "lane", "holder"],
                set_={name: found[name] for name in names},
                where=func.row(found.appended_at, found.topic_partition, found.topic_offset)
                > func.row(table.c.appended_at, table.c.topic_partition, table.c.topic_offset),
            )
        )


_TALLY_CONTENT = ("sample", "beacons", "payload_bytes", "id_sum", "dropped", "sketch", "ranges")


def _upsert_tallies(connection: Connection, followed: Followed, basis: int) -> None:
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
            "sketch": [found.tally.lag_sketch.keys.tolist(), found.tally.lag_sketch.counts.tolist()],
            "ranges": [[place.partition, place.first, place.last] for place in found.tally.ranges],
            "changed_at": found.changed_at,
            "changed_basis": basis,
        }
        for (pipeline, start, emitter, checkpoint, replay), found in followed.tallies.items()
    ]
    table = tables.table_of(tables.Tally)
    for chunk in _chunks(rows, 200):
        upsert = insert(table).values(chunk)
        found = upsert.excluded
        changed = func.row(*(found[name] for name in _TALLY_CONTENT)).is_distinct_from(
            func.row(*(table.c[name] for name in _TALLY_CONTENT))
        )
        replaced: dict[str, Any] = {name: found[name] for name in ("seq", *_TALLY_CONTENT)}
        for name in ("changed_at", "changed_basis"):
            replaced[name] = case((changed, found[name]), else_=table.c[name])
        connection.execute(
            upsert.on_conflict_do_update(
                index_elements=["pipeline", "window_start", "emitter", "checkpoint", "replay"],
                set_=replaced,
                where=found.seq > table.c.seq,
            )
        )


def start_stream(
    spark: SparkSession,
    bootstrap: str,
    follower: ReportFollower,
    partitions: Iterable[int],
    checkpoints: Callable[[], Checkpoints],
) -> StreamingQuery:
    """Follow the reports topic from where the database stands; `checkpoints()` tells what pipelines there are now."""
    known = follower.positions()
    starts = {str(partition): known.get(partition, -2) for partition in partitions}
    reports = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", follower.topic)
        .option("startingOffsets", json.dumps({follower.topic: starts}))
        .option("failOnDataLoss", "false")
        .option("maxOffsetsPerTrigger", "20000")
        .load()
        .select("partition", "offset", F.unix_millis("timestamp").alias("appended_ms"), "value")
    )

    def take(batch: DataFrame, _number: int) -> None:
        rows = batch.collect()
        follower.follow((ReportRecord(*row) for row in rows), checkpoints())

    return (
        reports.writeStream.queryName("follow reports")
        .foreachBatch(take)
        .option("checkpointLocation", tempfile.mkdtemp(prefix="lagloss-stream-"))
        .trigger(processingTime=TRIGGER)
        .start()
    )

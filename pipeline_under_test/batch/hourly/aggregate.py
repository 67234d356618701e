"""Aggregate the events of an hour by campaign, in Spark, and report each of them at the node `aggregate`.

One transaction reads the hour (Spark's tasks read its snapshot), replaces the hour's draft, and notes which events it
is made of. So a rerun replaces its output exactly, and knows which events an earlier run has reported.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)
from pyspark.sql.window import Window
from sqlalchemy import BigInteger, Connection, delete, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from lagloss import Emitter
from lagloss.wire.format import Progress
from lagloss_server.ops.spark_session import name_programs
from pipeline_under_test.batch.hourly.rows import BeaconsMissing, HourSnapshot, report
from pipeline_under_test.batch.schema import COUNTED, EVENT, SCORE_DRAFT, create_tables, open_database
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import AGGREGATE

MASTER: Final = "local[2]"
DRIVER_MEMORY: Final = "512m"
EXACT: Final = "decimal(30,6)"
"""Values are summed so: sums of floats depend on the order, and a rerun is to give the same."""
LANE: Final = "event"
"""Named, so that it stands still between runs: what has been imported since waits for the next one, and is not lost."""


def waiting_since_ms(connection: Connection) -> int:
    """Return when the oldest event was imported that is not aggregated (epoch ms); if all are, when the transaction
    began. What is imported and not visible to the transaction was seen last after that."""
    oldest = select(func.min(EVENT.c.imported_at)).where(
        ~select(COUNTED.c.id).where(COUNTED.c.id == EVENT.c.id).exists()
    )
    since = connection.execute(select(func.coalesce(oldest.scalar_subquery(), func.now()))).scalar_one()
    return int(since.timestamp() * 1000)


@dataclass(slots=True)
class ImportedLane:
    """The lane of table `event`, for `Emitter.follow`: all that was imported before `until_ms` has been taken in."""

    checkpoint: str
    until_ms: int

    def snapshot(self) -> Sequence[Progress]:
        return [Progress(self.checkpoint, LANE, self.until_ms)]


FLUSH_S: Final = 10.0


def aggregate(settings: BatchSettings, hour: int) -> int:
    """Replace the draft of an hour (epoch s); return the number of its events.

    Raises:
        BeaconsMissing: the broker does not answer; to be tried again, as after any other failure.
    """
    engine = open_database(settings.database_url)
    create_tables(engine)
    emitter = Emitter(settings.pipeline, AGGREGATE, resumes=True)
    is_finished = False
    try:
        with _session() as spark, engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            events = _aggregate(settings, hour, spark, connection, emitter)
        is_finished = True
        return events
    finally:
        emitter.close(FLUSH_S, finished=is_finished)
        engine.dispose()


def scored(rows: DataFrame) -> DataFrame:
    """Return events, exact value, and share of all value, by campaign."""
    by_campaign = rows.groupBy("campaign").agg(
        F.count("*").alias("events"), F.sum(F.col("value").cast(EXACT)).alias("value")
    )
    total = F.sum("value").over(Window.partitionBy(F.lit(1)))
    share = F.when(total != 0, F.col("value").cast("double") / total.cast("double")).otherwise(0.0)
    return by_campaign.withColumn("score", share).withColumn("value", F.col("value").cast("double")).orderBy("campaign")


def _aggregate(
    settings: BatchSettings, hour: int, spark: SparkSession, connection: Connection, emitter: Emitter
) -> int:
    """Report what comes in, commit the draft, report what went out. Nothing is overtaken while it is under way."""
    snapshot = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
    replay = f"rerun of {datetime.fromtimestamp(hour, UTC):%Y-%m-%dT%H:%MZ} at {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    lane = ImportedLane(f"{AGGREGATE}.in", waiting_since_ms(connection))
    emitter.follow(lane)
    work = emitter.processing()
    if not emitter.flush(FLUSH_S):
        raise BeaconsMissing
    rows = HourSnapshot(settings.database_url, snapshot, hour, spark.sparkContext.defaultParallelism).read(spark)
    rows = rows.persist()
    with settings.ledger_of(AGGREGATE) as ledger:
        ledger.write("aggregated", hour=hour, ids=_ids(connection, hour))
    events = report(rows, settings.pipeline, AGGREGATE, "received", replay)
    _replace(connection, hour, [row.asDict() for row in scored(rows).collect()])
    lane.until_ms = waiting_since_ms(connection)
    connection.commit()
    report(rows, settings.pipeline, AGGREGATE, "sent", replay)
    work.done()  # and not where it failed: what came in is late then, until it is tried again
    return events


def _ids(connection: Connection, hour: int) -> list[str]:
    return list(connection.execute(select(EVENT.c.id).where(EVENT.c.hour == hour)).scalars())


def _replace(connection: Connection, hour: int, scores: list[dict[str, Any]]) -> None:
    """Replace the hour's draft, and note the events that it is made of."""
    connection.execute(delete(SCORE_DRAFT).where(SCORE_DRAFT.c.hour == hour))
    if scores:
        connection.execute(insert(SCORE_DRAFT), [{"hour": hour, **score} for score in scores])
    counted = select(EVENT.c.id, literal(hour, BigInteger)).where(EVENT.c.hour == hour)
    connection.execute(upsert(COUNTED).from_select(["id", "hour"], counted).on_conflict_do_nothing())


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Yield a Spark in this process, its temporary files in a folder that is removed."""
    name_programs()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="scores-") as scratch:
        options = {
            "spark.app.name": "scores",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.local.dir": scratch,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        spark = SparkSession.builder.master(MASTER).config(map={**options}).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()

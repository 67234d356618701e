"""Events of an hour as a DataFrame, read from PostgreSQL in parallel, and their beacons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from lagloss import Emitter

BATCH_ROWS: Final = 10_000
CLOSE_S: Final = 10.0
"""Longest wait for the broker at the end of a task."""
ROWS: Final = pa.schema(
    [
        ("id", pa.string()),
        ("event_ms", pa.int64()),
        ("campaign", pa.string()),
        ("value", pa.float64()),
        ("is_repeated", pa.bool_()),  # an earlier run has aggregated it
        ("replay", pa.string()),  # the one that imported it
    ]
)
_SELECT: Final = """
    SELECT e.id, e.event_ms, e.campaign, e.value, c.id IS NOT NULL, e.replay
    FROM event e LEFT JOIN counted c USING (id)
    WHERE e.hour = %s AND mod(hashtext(e.id)::bigint + 2147483648, %s) = %s
"""


class BeaconsMissing(RuntimeError):
    """The broker did not acknowledge beacons or a report within 10 s; retry the task."""


@dataclass(frozen=True, slots=True)
class HourSnapshot:
    """The events of an hour as one transaction sees them, which exported `snapshot` and lasts as long."""

    database_url: str
    snapshot: str
    hour: int
    slices: int

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the events, in `slices` partitions; each reads its own by the hash of the id."""
        numbers = spark.range(0, self.slices, numPartitions=self.slices)
        return numbers.mapInArrow(
            partial(_read_slices, self),
            "id string, event_ms long, campaign string, value double, is_repeated boolean, replay string",
        )


def report(rows: DataFrame, pipeline: str, node: str, kind: Literal["received", "sent"], replay: str) -> int:
    """Report each row at a checkpoint of the node, from the tasks that have them; return how many there are.

    What an earlier run has reported is part of a replay of this name: no duplicate, and its lag counts nowhere. What a
    replay has imported is part of that one.
    """
    counts = rows.mapInArrow(partial(_report_batches, pipeline, node, kind, replay), "reported long")
    return sum(row.reported for row in counts.collect())


def _read_slices(snapshot: HourSnapshot, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    with psycopg.connect(snapshot.database_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot.snapshot))
        for number in numbers:
            with connection.cursor("events") as cursor:
                cursor.execute(_SELECT, (snapshot.hour, snapshot.slices, number))
                while rows := cursor.fetchmany(BATCH_ROWS):
                    columns = [
                        pa.array(column, field.type)
                        for column, field in zip(zip(*rows, strict=True), ROWS, strict=True)
                    ]
                    yield pa.record_batch(columns, schema=ROWS)


def _report_batches(
    pipeline: str, node: str, kind: Literal["received", "sent"], replay: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    emitter = Emitter(pipeline, node, resumes=True)  # a task that failed is tried again
    reported = 0
    try:
        for batch in batches:
            names = pc.if_else(batch.column("is_repeated"), pa.scalar(replay), batch.column("replay"))
            for name in pc.unique(names).to_pylist():
                part = batch.filter(pc.is_null(names) if name is None else pc.equal(names, name))
                reported += emitter.observe_all(kind, part.column("id"), part.column("event_ms"), replay=name)
            emitter.flush(CLOSE_S)
    finally:
        is_closed = emitter.close(CLOSE_S)
    if not is_closed:
        raise BeaconsMissing
    yield pa.record_batch([pa.array([reported], pa.int64())], names=["reported"])

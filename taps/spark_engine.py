"""The engine of many: Spark's tasks read a plan's spans, make their blocks, and send them.

The driver learns of each block what its tally needs, and where it is; records and ids stay where they are read.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Final

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss_server.model.taps import Tap
from lagloss_server.net.kafka_clients import java_options
from lagloss_server.ops.spark_session import FETCHING, SparkJob
from taps.kernel import BlockMaker, Blocks
from taps.local_engine import LocalEngine
from taps.order import REACH
from taps.plan import TapPlan
from taps.spark_task import TapTask, send_spans

log = structlog.get_logger()

LIMIT: Final = 2_000_000
"""Offsets of a plan: a task holds the ids and times of its spans, 100 bytes a record."""
BATCH_ROWS: Final = 50_000
TOO_LATE: Final = "overflow"
"""In the error of Spark's Kafka source about a timestamp beyond the year 294247: it counts microseconds in 64 bits."""
TAPS: Final = SparkJob("lagloss taps", "taps.worker_daemon", BATCH_ROWS)


class SparkEngine:
    """Carries out plans as Spark jobs. A plan that another engine began is left to `local`."""

    limit = LIMIT
    is_spread = True

    def __init__(
        self, spark: SparkSession, cluster: Cluster, beacons: Cluster, maker: BlockMaker, local: LocalEngine
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._beacons = KafkaConnection.of(beacons)
        assert isinstance(maker.tap, Tap)
        self._maker, self._topic = maker, maker.tap.topic
        self._local = local

    def blocks(self, plan: TapPlan) -> Blocks:
        """Return the blocks of a plan, which are sent already. Raises KafkaException."""
        if not plan.is_spread or not plan.spans:
            return self._local.blocks(plan)
        task = TapTask(self._maker, plan, self._beacons)
        try:
            rows = self.records(plan).mapInArrow(lambda batches: send_spans(batches, task), "made binary").collect()
        except Py4JJavaError as error:
            if TOO_LATE not in str(error):
                raise
            log.warning("timestamps unreadable by Spark", tap=self._maker.tap.source)
            return self._without_spark(plan)
        blocks_ = Blocks.merged(pickle.loads(row.made) for row in rows)
        # Spark passes over what retention deletes before it is read; this may count some that was read
        self._maker.drop_gone(plan, sum(plan.gone.values()) + self._local.deleted(plan.spans), blocks_)
        return blocks_ if blocks_.positions is not None else replace(blocks_, positions=[])

    def _without_spark(self, plan: TapPlan) -> Blocks:
        """Return the blocks of a plan, a span at a time, since it may hold more than one process should at once."""
        blocks_ = Blocks.merged(self._local.blocks(replace(plan, spans=(span,), gone={})) for span in plan.spans)
        self._maker.drop_gone(plan, sum(plan.gone.values()), blocks_)
        return blocks_

    def records(self, plan: TapPlan) -> DataFrame:
        """Read the records of a plan's spans, of a tap with an order those before them, too; columns as `span_records`
        takes them."""
        before = 0 if self._maker.tap.order is None else REACH
        topic, nothing = self._topic, F.lit(None).cast("binary")
        names = sorted(self._maker.headers)
        starts = {str(span.partition): max(span.start - before, 0) for span in plan.spans}
        return (
            self._spark.read.format("kafka")
            .options(**java_options(KafkaConnection.of(self._cluster)))
            .option("assign", json.dumps({topic: [span.partition for span in plan.spans]}))
            .option("startingOffsets", json.dumps({topic: starts}))
            .option("endingOffsets", json.dumps({topic: {str(span.partition): span.end for span in plan.spans}}))
            .option("failOnDataLoss", "false")
            .option("includeHeaders", "true")
            .option("kafka.isolation.level", "read_committed")
            .options(**FETCHING)
            .load()
            .select(
                "partition",
                "offset",
                F.unix_millis("timestamp").alias("timestamp_ms"),
                "timestampType",
                "key" if self._maker.wants_keys else nothing.alias("key"),
                "value",
                F.filter("headers", lambda header: header["key"].isin(names)).alias("headers"),
            )
        )

"""A Spark job as a node: beacons of a DataFrame's rows, in a batch job and in foreachBatch."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import make_topics, options
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lagloss import Emitter
from lagloss.spark import emit, emit_now


def main() -> None:
    chosen = options(__doc__)
    make_topics(chosen)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    now_s = time.time()
    orders = spark.range(chosen.messages, numPartitions=2).select(
        f.format_string("order-%s", "id").alias("order_id"), f.lit(now_s).cast("timestamp").alias("ordered_at")
    )
    columns: dict[str, Any] = {"id_column": "order_id", "time_column": "ordered_at"}

    with tempfile.TemporaryDirectory() as folder, Emitter(chosen.pipeline, "load") as emitter:
        # A batch job: in when the rows are read; the file is the next node's input.
        files = str(Path(folder, "orders"))
        emit(orders, chosen.pipeline, "extract", "received", first=True, **columns).write.parquet(files)
        emit_now(orders, chosen.pipeline, "extract", "sent", first=True, **columns)

        def load(batch: DataFrame, _number: int) -> None:
            with emitter.processing():  # late, and not lost, however long it takes
                rows = emit(batch, chosen.pipeline, "load", "received", **columns).persist()
                rows.write.format("noop").mode("append").save()  # the sink
                emit_now(rows, chosen.pipeline, "load", "sent", **columns)
                rows.unpersist()

        stream = spark.readStream.schema(orders.schema).parquet(files)
        checkpoint = str(Path(folder, "checkpoint"))
        stream.writeStream.foreachBatch(load).option("checkpointLocation", checkpoint).trigger(
            availableNow=True
        ).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()

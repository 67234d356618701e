"""The Spark session of the aggregator."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from lagloss_server.ops import spark_session
from lagloss_server.ops.spark_session import SparkJob

RECORDS_PER_BATCH: Final = 2_000
"""Blocks an Arrow batch: 250 to 8,192 beacons each, so 6 to 200 MB."""
AGGREGATOR: Final = SparkJob("lagloss aggregator", "aggregator.kernel.worker_daemon", RECORDS_PER_BATCH)


def start_session(master: str, driver_memory: str, scratch: Path, driver_host: str = "") -> SparkSession:
    """Start the aggregator's session, as `lagloss_server.ops.spark_session.start_session` does."""
    return spark_session.start_session(AGGREGATOR, master, driver_memory, scratch, driver_host)

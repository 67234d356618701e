"""The Spark session of the aggregator: the connector's jars, Arrow sizes, fair sharing between following and
closing."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lagloss import jars
from lagloss.errors import SparkEnded
from lagloss.java import find_java

RECORDS_A_BATCH = 2_000
"""Blocks an Arrow batch: 250 to 8,192 beacons each, so 6 to 200 MB."""
QUIET = ("org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution", "org.apache.spark.sql.kafka010")
"""What ends the stream of reports reaches us as its exception; here, as in py4j, it would fill the log with a hundred
lines each time."""


def start_session(master: str, driver_memory: str, scratch: Path) -> SparkSession:
    """A session whose temporary files lie in `scratch`, emptied first: nothing in it has to survive.

    Raises:
        JavaMissing, JarsMissing: with what to do.
    """
    os.environ.setdefault("JAVA_HOME", str(find_java().parent.parent))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    session = (
        SparkSession.builder.appName("lagloss aggregator")
        .master(master)
        .config("spark.jars", ",".join(str(jar) for jar in jars.spark_jars()))
        .config("spark.local.dir", str(scratch))
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.host", "127.0.0.1" if master.startswith("local") else "")
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(RECORDS_A_BATCH))
        .config("spark.sql.streaming.forceDeleteTempCheckpointLocation", "true")
        .config("spark.python.daemon.module", "aggregator.worker_daemon")
        .config("spark.ui.enabled", os.environ.get("LAGLOSS_SPARK_UI", "false"))
        .config("spark.ui.showConsoleProgress", "false")
    )
    spark = session.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    log4j = cast("Any", spark.sparkContext._jvm).org.apache.logging.log4j
    for name in QUIET:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    return spark


def check_session(spark: SparkSession) -> None:
    """Raises SparkEnded where Spark's own process is gone, or has stopped its context: neither comes back."""
    try:
        stopped = spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError) as error:
        raise SparkEnded(detail=str(error) or type(error).__name__) from error
    if stopped:
        raise SparkEnded(detail="its context was stopped")

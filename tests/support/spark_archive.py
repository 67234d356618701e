"""Spark's classes as Java keeps them in memory, in a file that later JVMs map: each of the dozens that tests start
takes 3 s of a core in place of 7.

`python -m tests.support.spark_archive` writes it (`make test-tools` does). Without it, or with one of other jars, Java
loads classes as ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark import SparkContext

from lagloss_server.ops import jars
from lagloss_server.ops.spark_session import start_session
from tests.programs import TOOLS

ARCHIVE = TOOLS / f"spark-{pyspark.__version__}.jsa"
QUIET = "-Xlog:cds*=off"
"""Java tells otherwise of each program that is not Spark that the archive is none of its classes."""


def archive_options() -> tuple[str, ...]:
    """Return the options by which Java takes the archive, if there is one."""
    return (f"-XX:SharedArchiveFile='{ARCHIVE}'", QUIET) if ARCHIVE.exists() else ()


def write_archive() -> None:
    """Start Spark as the aggregator does, and have Java write what it has loaded when it ends."""
    jars.ensure()
    TOOLS.mkdir(exist_ok=True)
    fresh = ARCHIVE.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    options = f"-XX:ArchiveClassesAtExit='{fresh}' {QUIET}"
    words = [sys.executable, "-P", "-m", __spec__.name, "start"]
    subprocess.run(words, env={**os.environ, "JAVA_TOOL_OPTIONS": options}, stderr=subprocess.DEVNULL, check=True)
    fresh.replace(ARCHIVE)


def start_and_end() -> None:
    """Run a task, and wait until Java has ended."""
    from aggregator.kernel.spark_reader import AGGREGATOR_JOB  # with the kernel, which conftest.py does not need

    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(AGGREGATOR_JOB, "local[2]", "1g", Path(scratch))
        spark.range(10).count()
        gateway = SparkContext._gateway
        spark.stop()
    assert gateway is not None
    java = gateway.proc
    java.stdin.close()
    java.wait(60)


if __name__ == "__main__":
    if sys.argv[1:] == ["start"]:
        start_and_end()
    elif not ARCHIVE.exists():
        write_archive()

"""Spark as a writer of Iceberg's tables, in a catalog in PostgreSQL: deletes that mark rows, merges and compactions.

Iceberg's runtime is not built for the Spark of lagloss: this one is in an environment of its own. `python -m
tests.support.iceberg_writer` fetches it and the jars (`make test-tools` does), with `--lock` it writes the jars' lock
anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

from psycopg.conninfo import conninfo_to_dict

from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.embedded.environment import LockedEnvironment
from lagloss_server.ops.jars import JarSet, present
from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import log_tail
from tests.support.fetched_jars import fetch
from tests.support.lakes import LAKE

ENVIRONMENT: Final = LockedEnvironment(
    "IcebergWriter", Path(__file__).with_name("iceberg_writer.lock"), "LAGLOSS_ICEBERG_WRITER_DIR"
)
JARS: Final = JarSet(
    "iceberg",
    ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.postgresql:postgresql:42.7.8"),
    transitive=False,
    lock=Path(__file__).with_name("iceberg_jars.lock"),
)
_SHELL: Final = """
import json, sys
from pyspark.sql import SparkSession
settings = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
answers = open(int(sys.argv[2]), "w", buffering=1)
print(json.dumps([]), file=answers)
for line in sys.stdin:
    try:
        answer = [list(row) for row in spark.sql(json.loads(line)).collect()]
    except Exception as error:
        answer = {"error": str(error)[:2000]}
    print(json.dumps(answer, default=str), file=answers)
"""
"""Reads statements, one a line, and answers with their rows."""


class IcebergWriter:
    """Runs SQL. The catalog is named as pyiceberg's, and so has the same tables.

    Args:
        url: of the catalog's database.
    """

    def __init__(self, url: str, warehouse: str, directory: Path) -> None:
        options = conninfo_to_dict(url)
        password = Path(str(options["passfile"])).read_text().strip().rpartition(":")[2]
        catalog = f"spark.sql.catalog.{LAKE}"
        self._settings = {
            "spark.jars": ",".join(map(str, present(JARS))),
            "spark.driver.memory": "700m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(directory / "spark"),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:postgresql://{options['host']}:{options['port']}/{options['dbname']}",
            f"{catalog}.jdbc.user": str(options["user"]),
            f"{catalog}.jdbc.password": password,
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.warehouse": warehouse,
        }
        self._log = directory / "spark.log"
        self._process: subprocess.Popen[str] | None = None
        self._answers: Any = None

    def __enter__(self) -> Self:
        read_end, write_end = os.pipe()
        command = [str(ENVIRONMENT.ensure()), "-c", _SHELL, json.dumps(self._settings), str(write_end)]
        environment = {**foreign_environment(), "JAVA_HOME": str(Path(find_java()).resolve().parents[1])}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, env=environment, pass_fds=[write_end]
            )
        os.close(write_end)
        self._answers = os.fdopen(read_end)
        self._answer()
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._answers.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def sql(self, statement: str) -> list[list[Any]]:
        """Run a statement; return its rows."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[list[Any]]:
        line = self._answers.readline()
        assert line, log_tail(self._log)
        answer = json.loads(line)
        assert isinstance(answer, list), answer
        return answer


if __name__ == "__main__":
    sys.exit(fetch(sys.argv[1:], (JARS,), "Spark with Iceberg: in place", ENVIRONMENT.ensure))

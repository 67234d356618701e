"""A metastore of Hive, by the jars that Spark brings, with a database in its memory."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Final, Self
from xml.sax.saxutils import escape

from hive_metastore.ttypes import DataOperationType  # pyiceberg brings it
from pyiceberg.catalog.hive import HiveCatalog

from lagloss_server.ops.jars import require_spark
from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import LOOPBACK, choose_port, log_tail, spawn, terminate
from tests.support.kafka_log import wait_for

_SETTINGS: Final = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "datanucleus.connectionPoolingType": "NONE",  # Spark does not bring the pool
    "hive.metastore.schema.verification": "false",
    "hive.async.log.enabled": "false",
    "hive.in.test": "true",  # creates the tables of locks
}
_OPENED: Final = ("java.base/java.net=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")


class WritingHiveCatalog(HiveCatalog):
    """A catalog that commits to a metastore under test, which refuses locks that do not say what they are for."""

    def _create_lock_request(self, database_name: str, table_name: str) -> Any:
        request = super()._create_lock_request(database_name, table_name)
        request.component[0].operationType, request.component[0].isTransactional = DataOperationType.NO_TXN, False
        return request


class HiveMetastore:
    """One metastore."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "metastore.log"
        self.port = choose_port("the metastore of Hive")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"thrift://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        settings = {**_SETTINGS, "hive.metastore.warehouse.dir": f"file://{self._directory}/hive"}
        properties = (
            f"<property><name>{name}</name><value>{escape(value)}</value></property>"
            for name, value in settings.items()
        )
        (self._directory / "hive-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")
        class_path = os.pathsep.join((str(self._directory), f"{require_spark()}/jars/*"))
        opened = [part for name in _OPENED for part in ("--add-opens", name)]
        options = ["-Xmx192m", f"-Djava.io.tmpdir={self._directory}", *opened, "-cp", class_path]
        main = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)]
        self._process = spawn([str(find_java()), *options, *main], self._log, cwd=self._directory)  # for derby.log
        wait_for(self._answers, timeout_s=90, what="the metastore of Hive")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            terminate(self._process)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log_tail(self._log)
        try:
            socket.create_connection((LOOPBACK, self.port), timeout=1).close()
        except OSError:
            return False
        return True

"""A fresh lagloss for scenarios: `lagloss up` as a process in a directory that is removed at the end."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lagloss_server.base.errors import ServerNotReady
from lagloss_server.base.instances import read_endpoints
from lagloss_server.base.settings import Settings
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import log_tail, python, spawn, terminate

READY_TIMEOUT_S: Final = 240.0
STOP_TIMEOUT_S: Final = 60.0
LOOK_EVERY_S: Final = 0.2
HEAP_MB: Final = 256
"""Heap of each of several brokers."""


class ScenarioStack:
    """lagloss on servers of its own; with several brokers, these are `kafka`, for faults that take them away.

    `settings` are those of the running lagloss, whatever the environment says.
    """

    def __init__(self, brokers: int = 1) -> None:
        self.directory: Final = Path(tempfile.mkdtemp(prefix="lagloss-scenarios-"))
        self.directory.chmod(0o711)  # PostgreSQL's own user has to pass where we are root
        self.kafka = (
            EmbeddedKafka(self.directory / "brokers", brokers=brokers, heap_mb=HEAP_MB) if brokers > 1 else None
        )
        self.settings = Settings()
        self._log_path = self.directory / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        bootstrap = self.kafka.start().bootstrap if self.kafka is not None else ""
        words = python("lagloss_server.cli.main", "up", "--json", "--data-dir", self.directory)
        env = {"LAGLOSS_KAFKA_BOOTSTRAP": bootstrap, "LAGLOSS_DATABASE_URL": ""}
        self._process = spawn(words, self._log_path, env=env)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (endpoints := read_endpoints(self.directory)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerNotReady(server="lagloss up", detail=log_tail(self._log_path), log=self._log_path)
            time.sleep(LOOK_EVERY_S)
        self.settings = Settings.load(
            data_dir=self.directory, kafka_bootstrap=endpoints["kafka"], database_url=endpoints["database"]
        )

    def _stop(self) -> None:
        if self._process is not None:
            terminate(self._process, STOP_TIMEOUT_S)
        if self.kafka is not None:
            self.kafka.stop()
        EmbeddedPostgres.remove(self.directory / "postgres")
        shutil.rmtree(self.directory, ignore_errors=True)

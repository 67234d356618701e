"""Apicurio's registry, which speaks Confluent's API: a real one, as a process, its schemas in memory."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx2

from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import choose_port, log_tail, spawn, terminate
from tests.support.kafka_log import wait_for

READY_S: Final = 60.0


class Apicurio:
    """The registry in `folder`, where it was unpacked; `url` is that of Confluent's API."""

    def __init__(self, folder: Path, log_path: Path) -> None:
        port = choose_port("schema registry")
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self._log_path = log_path
        (runner,) = folder.glob("apicurio-registry-app-*-runner.jar")
        options = ["-Xmx256m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
        self._command = [str(find_java()), *options, "-jar", str(runner)]
        self._process: subprocess.Popen[bytes] | None = None

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Register a schema; return its id."""
        document = {"schema": schema, "schemaType": kind, "references": [*references]}
        answer = httpx2.post(f"{self.url}/subjects/{subject}/versions", json=document)
        answer.raise_for_status()
        found: int = answer.json()["id"]
        return found

    def __enter__(self) -> Self:
        self._process = spawn(self._command, self._log_path)
        wait_for(self._answers, timeout_s=READY_S, what="the schema registry")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            terminate(self._process)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log_tail(self._log_path)
        try:
            return httpx2.get(f"{self.url}/subjects").status_code == 200
        except httpx2.HTTPError:
            return False

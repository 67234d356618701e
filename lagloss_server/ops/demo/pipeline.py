"""The reference pipeline seen from the demo: processes started by name, their progress read from their logs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lagloss.errors import EXIT_BREACHED, EXIT_NOT_ENOUGH_DATA, EXIT_OK
from lagloss_server.base.errors import ServerNotReady
from lagloss_server.ops.child_environment import PACKAGES
from lagloss_server.ops.processes import log_tail, python, run, spawn, terminate

MODULE: Final = "pipeline_under_test"
NAME: Final = "clicks"
DEFINITION: Final = PACKAGES / MODULE / "stream" / f"{NAME}.yaml"
"""Read where it lies, since lagloss never imports the reference pipeline."""
RATE: Final = 50.0
"""Events per second. Two cores run Kafka, PostgreSQL, Spark and ten Python processes besides."""
FAULTS: Final = (
    "lose:link:event-norm->event-router:0.02",
    "lose:node:conn-ga:0.01",
    "lose:node:warehouse:0.01",
    "filter:event-norm:0.01",
    "dead:conn-fb:0.005",
    "duplicate:event-norm:0.01",
    "delay:conn-fb:2s:0.3",
)
ACTS: Final = ((60.0, "retry-storm"), (240.0, "crash-loop"))
"""Scenarios that the demo plays by itself, each with its start in seconds after the load begins."""
LONGEST_ACT_S: Final = 150.0
"""A scenario that might last longer than the load is not played."""
STOP_TIMEOUT_S: Final = 45.0
BETWEEN_SIGNALS_S: Final = 0.3
"""Pause between equal signals, which would otherwise merge into one."""


class PipelineProcess:
    """A command of the reference pipeline as a child process, with the servers of the lagloss in a data directory: the
    database's URL can have a password, which no argument may show."""

    def __init__(self, command: str, data_dir: Path, lagloss_data_dir: Path, *options: str, nice: int = 0) -> None:
        self.log_path = data_dir / f"{command}.log"
        self._name = f"the reference pipeline's {command}"
        words = python(MODULE, command, "--data-dir", data_dir)
        prefix = ["nice", "-n", str(nice)] if nice else []
        env = {"LAGLOSS_DATA_DIR": str(lagloss_data_dir)}
        self.process: subprocess.Popen[bytes] = spawn([*prefix, *words, *options], self.log_path, env=env)
        self._read_to = 0

    def progress(self) -> Iterator[dict[str, Any]]:
        """Yield the progress documents written since the last call."""
        with self.log_path.open("rb") as log:
            log.seek(self._read_to)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read_to += len(whole) + len(newline)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                yield json.loads(line)

    @property
    def running(self) -> bool:
        """True while it runs. Raises ServerNotReady if it failed."""
        code = self.process.poll()
        if code:
            detail = f"it exited with code {code}: {log_tail(self.log_path)}"
            raise ServerNotReady(server=self._name, detail=detail, log=self.log_path)
        return code is None

    def stop(self) -> None:
        """Stop it without waiting for its events to get through: a second signal makes the runner hurry."""
        if self.process.poll() is None:
            self.process.terminate()
            time.sleep(BETWEEN_SIGNALS_S)
        terminate(self.process, STOP_TIMEOUT_S)


def play(data_dir: Path, scenario: str) -> str:
    """Ask the running pipeline for a scenario's faults; return the scenario's description."""
    return str(_answer(data_dir, "play", scenario)["description"])


def ledger(data_dir: Path) -> dict[int, dict[str, Any]]:
    """Return the ledger's account of each window, by its start (epoch seconds), with the names of lost messages."""
    return {document["window_start_s"]: document for document in _answer(data_dir, "ledger")["windows"]}


def _answer(data_dir: Path, *command: str) -> dict[str, Any]:
    """Run a command of the reference pipeline and return the document that it prints."""
    answer = run(python(MODULE, *command, "--data-dir", data_dir))
    answer.check_returncode()
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def verdict(data_dir: Path, lagloss_data_dir: Path) -> dict[str, Any] | None:
    """Return the reference pipeline's own comparison of its ledger with lagloss's windows; None if it is too early.

    Raises:
        ServerNotReady: if it cannot compare.
    """
    words = python(MODULE, "verdict", "--json", "--data-dir", data_dir)
    answer = run(words, {"LAGLOSS_DATA_DIR": str(lagloss_data_dir)})
    if answer.returncode == EXIT_NOT_ENOUGH_DATA:
        return None
    if answer.returncode not in (EXIT_OK, EXIT_BREACHED):
        raise ServerNotReady(server="the verdict", detail=answer.stderr.strip()[-400:], log="none")
    document: dict[str, Any] = json.loads(answer.stdout)
    return document

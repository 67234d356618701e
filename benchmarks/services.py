"""The real services of a benchmark, each as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from lagloss_server.ops.processes import choose_port, spawn, terminate

_PORT: Final = {"aggregator": "METRICS_PORT", "alerting": "ALERTING_PORT", "dashboard": "DASHBOARD_PORT"}
_GIVE_UP_S: Final = 30.0


@dataclass(slots=True)
class Service:
    """A running service that listens at `url`."""

    module: str
    url: str
    log: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return self.process.pid

    def await_answer(self, path: str, give_up_s: float = _GIVE_UP_S) -> None:
        """Wait until it answers well at this path. Raises SystemExit with its log if it does not."""
        await_answer(f"{self.url}{path}", self.log, give_up_s)

    def kill_and_start(self) -> None:
        """Kill its process and start another."""
        self.process.kill()
        self.process.wait()
        self.process = _spawn(self.module, self.log, self.env)


@contextmanager
def running(module: str, folder: Path, env: Mapping[str, str]) -> Iterator[Service]:
    """Run `python -m MODULE`; its log is `MODULE.log` in the folder."""
    port, log = choose_port(module), folder / f"{module}.log"
    given = {"LAGLOSS_DATA_DIR": str(folder), f"LAGLOSS_{_PORT[module]}": str(port), **env}
    service = Service(module, f"http://127.0.0.1:{port}", log, given, _spawn(module, log, given))
    try:
        yield service
    finally:
        terminate(service.process)


def _spawn(module: str, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return spawn([sys.executable, "-m", module], log, env=env)


def await_answer(url: str, log: Path, give_up_s: float = _GIVE_UP_S) -> None:
    """Wait until this URL answers well. Raises SystemExit with the log if it does not."""
    ends = time.monotonic() + give_up_s
    while time.monotonic() < ends:
        try:
            if httpx2.get(url).is_success:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} did not answer within {give_up_s:.0f} s:\n{log.read_text()}")

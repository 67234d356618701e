"""The real services of a benchmark, each as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from lagloss_server.ops.processes import choose_port, spawn, terminate

_PORT: Final = {
    "aggregator": "METRICS_PORT",
    "alerting": "ALERTING_PORT",
    "canary": "CANARY_PORT",
    "collector": "COLLECTOR_PORT",
    "dashboard": "DASHBOARD_PORT",
    "taps": "TAPS_PORT",
}
_GIVE_UP_S: Final = 30.0


@dataclass(slots=True)
class Service:
    """A running service that listens on `port`."""

    name: str
    port: int
    log: Path
    words: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Return where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return self.process.pid

    def await_answer(self, path: str, give_up_s: float = _GIVE_UP_S) -> None:
        """Wait until it answers well at this path. Raises SystemExit with its log if it does not."""
        ends = time.monotonic() + give_up_s
        while time.monotonic() < ends:
            try:
                if httpx2.get(f"{self.url}{path}").is_success:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"{self.url}{path} did not answer within {give_up_s:.0f} s:\n{self.log.read_text()}")

    def kill_and_start(self) -> None:
        """Kill its process and start another."""
        self.process.kill()
        self.process.wait()
        self.process = spawn(self.words, self.log, env=self.env)


@contextmanager
def running(module: str, folder: Path, env: Mapping[str, str]) -> Iterator[Service]:
    """Run `python -m MODULE`; its log is `MODULE.log` in the folder."""
    port = choose_port(module)
    settings = {"LAGLOSS_DATA_DIR": str(folder), f"LAGLOSS_{_PORT[module]}": str(port), **env}
    with _spawned(module, port, folder, [module], settings) as service:
        yield service


@contextmanager
def running_application(application: str, folder: Path, path: str = "/") -> Iterator[Service]:
    """Run an ASGI application of a benchmark, `MODULE:NAME`, in one process of uvicorn, and wait until it answers at
    this path."""
    port = choose_port(application)
    words = ["uvicorn", application, "--port", str(port), "--log-level", "warning", "--no-access-log"]
    with _spawned("application", port, folder, words, {}) as service:
        service.await_answer(path, 60)
        yield service


@contextmanager
def _spawned(name: str, port: int, folder: Path, words: Sequence[str], env: Mapping[str, str]) -> Iterator[Service]:
    log, whole = folder / f"{name}.log", [sys.executable, "-m", *words]
    service = Service(name, port, log, whole, env, spawn(whole, log, env=env))
    try:
        yield service
    finally:
        terminate(service.process)

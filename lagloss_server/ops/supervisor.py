"""Keeps the services of `lagloss up` running: one process each, started again with growing pauses when it dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from lagloss_server.errors import ServerNotReady
from lagloss_server.ops.processes import log_tail, spawn, terminate

Say = Callable[[str], None]
"""Takes messages for the operator, a line each."""

MAX_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""A service that ran this long starts with the shortest pause again when it dies."""
LIVED_S: Final = 1.5
"""A service without a health URL counts as ready once it has lived so long: past its imports and settings."""
GIVE_UP_STARTING: Final = 3
"""Deaths before first being ready after which `up` ends instead of trying on: a setting is wrong, not the weather."""


@dataclass
class Service:
    """A Python module run as a process; ready once `health_url` answers 200 (None: once it has lived LIVED_S)."""

    name: str
    module: str
    log_path: Path
    env: Mapping[str, str]
    health_url: str | None = None
    arguments: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    deaths: int = field(default=0, init=False)
    started_at: float = field(default=0.0, init=False)
    _start_again_at: float | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the process, its output appended to the log."""
        argv = [sys.executable, "-m", self.module, *self.arguments]
        self.process = spawn(argv, self.log_path, env={"PYTHONUNBUFFERED": "1", **self.env}, pass_fds=self.pass_fds)
        self.started_at = time.monotonic()
        self._start_again_at = None

    def is_ready(self) -> bool:
        """Return whether it serves now."""
        if self.process is None or self.process.poll() is not None:
            return False
        if self.health_url is None:
            return time.monotonic() - self.started_at > LIVED_S
        try:
            return httpx.get(self.health_url, timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def tend(self, say: Say) -> None:
        """Note a death, and start the process again once its pause is over."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is None:
            if now - self.started_at > STEADY_S:
                self.deaths = 0
            return
        if self._start_again_at is None:
            self.deaths += 1
            pause_s = min(MAX_PAUSE_S, 2.0 ** (self.deaths - 1))
            self._start_again_at = now + pause_s
            code = self.process.returncode if self.process else "?"
            say(f"{self.name} died ({_died_of(code)}), starting it again in {pause_s:.0f} s; log: {self.log_path}")
        elif now >= self._start_again_at:
            self.start()
            say(f"{self.name} started again")


def start_all(services: Iterable[Service], timeout_s: float, say: Say) -> None:
    """Start all at once and returns when all are ready. Raises ServerNotReady."""
    waiting = list(services)
    for service in waiting:
        service.start()
    deadline = time.monotonic() + timeout_s
    began = time.monotonic()
    while waiting:
        for service in list(waiting):
            service.tend(say)
            if service.deaths >= GIVE_UP_STARTING:
                detail = f"it died {service.deaths} times while starting: {log_tail(service.log_path)}"
                raise ServerNotReady(server=service.name, detail=detail, log=service.log_path)
            if service.is_ready():
                say(f"{service.name} ready after {time.monotonic() - began:.1f} s")
                waiting.remove(service)
        if waiting and time.monotonic() > deadline:
            detail = f"no good answer within {timeout_s:.0f} s: {log_tail(waiting[0].log_path)}"
            raise ServerNotReady(server=waiting[0].name, detail=detail, log=waiting[0].log_path)
        time.sleep(0.1)


def stop_all(services: Iterable[Service], timeout_s: float = 15) -> None:
    """Asks all to end, then waits for each; what does not end in time is killed."""
    running = [service.process for service in services if service.process and service.process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        terminate(process, timeout_s)


def _died_of(code: int | str) -> str:
    if isinstance(code, int) and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"

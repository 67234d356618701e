"""The supervisor of `lagloss up`: runs each service as a process, and restarts it with growing pauses when it dies."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import httpx2

from lagloss_server.errors import ServerNotReady
from lagloss_server.ops.processes import log_tail, python, spawn, terminate

Say = Callable[[str], None]
"""Callback that shows the operator a line."""

MAX_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""Uptime after which the pause before a restart is the shortest again."""
LIVED_S: Final = 1.5
"""Uptime from which a service without a health URL counts as ready: past its imports and settings."""
GIVE_UP_STARTING: Final = 3
"""Deaths before first being ready after which `up` gives up: a wrong setting, not a transient failure."""


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
    _restart_at: float | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the process, its output appended to the log."""
        argv, env = python(self.module, *self.arguments), {"PYTHONUNBUFFERED": "1", **self.env}
        self.process = spawn(argv, self.log_path, env=env, pass_fds=self.pass_fds)
        self.started_at = time.monotonic()
        self._restart_at = None

    def is_ready(self) -> bool:
        """Return True if the service works now."""
        if self.process is None or self.process.poll() is not None:
            return False
        if self.health_url is None:
            return time.monotonic() - self.started_at > LIVED_S
        try:
            return _client().get(self.health_url).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def tend(self, say: Say) -> None:
        """Check once: note a death, and restart the process once its pause is over."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is None:
            if now - self.started_at > STEADY_S:
                self.deaths = 0
            return
        if self._restart_at is None:
            self.deaths += 1
            pause_s = min(MAX_PAUSE_S, 2.0 ** (self.deaths - 1))
            self._restart_at = now + pause_s
            code = self.process.returncode if self.process else "?"
            say(f"{self.name} died ({_exit_cause(code)}), restarting it in {pause_s:.0f} s; log: {self.log_path}")
        elif now >= self._restart_at:
            try:
                self.start()
            except OSError as error:  # of a full disk, on which its log cannot be made
                self._restart_at = now + MAX_PAUSE_S
                say(f"{self.name} cannot be restarted ({error}), trying again in {MAX_PAUSE_S:.0f} s")
            else:
                say(f"{self.name} restarted")


@cache
def _client() -> httpx2.Client:
    """Return the client of all looks at health: one made for each look reads the machine's authorities anew, 40 ms of
    the processor several times a second."""
    return httpx2.Client(timeout=2, limits=httpx2.Limits(max_keepalive_connections=0))


def start_all(services: Iterable[Service], timeout_s: float, say: Say) -> None:
    """Start all at once and return when all are ready. Raises ServerNotReady."""
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
    """Ask all to stop, then wait for each; kill those that do not stop in time."""
    running = [service.process for service in services if service.process and service.process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        terminate(process, timeout_s)


def _exit_cause(code: int | str) -> str:
    if isinstance(code, int) and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"

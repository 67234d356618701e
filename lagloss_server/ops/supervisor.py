"""The supervisor of `lagloss up`: runs each service as a process, ends it when it hangs, and restarts it with growing
pauses when it has died."""

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

from lagloss_server.base.errors import ServerNotReady
from lagloss_server.net.http_answers import BOUNDED
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
LOOK_EVERY_S: Final = 60.0
"""Between two looks at whether a service is live."""
LOOK_AGAIN_S: Final = 20.0
"""After a miss; a second one in a row ends the service."""
LIVE_TIMEOUT_S: Final = 5.0
STARTING_S: Final = 180.0
"""How long a service may start without being live."""
END_S: Final = 5.0
"""How long a service that hangs has to end by itself."""
ASLEEP_S: Final = 30.0
"""A longer time between two looks at a process: the machine slept, or we were stopped, and so was perhaps the
service."""


@dataclass
class LiveWatch:
    """The looks at whether a service is live: when the next is due, and whether it is to be ended. Times in monotonic
    seconds that go on while the machine sleeps."""

    started_at: float
    look_at: float = field(init=False)
    _misses: int = field(default=0, init=False)
    _was_live: bool = field(default=False, init=False)
    _watched_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._watched_at = self.started_at
        self.look_at = self.started_at + LOOK_EVERY_S

    def is_due(self, now: float) -> bool:
        """Return whether to look now. Call it often: where it was not called for long, misses do not count."""
        asleep = now - self._watched_at > ASLEEP_S
        self._watched_at = now
        if asleep:
            self._misses, self.look_at = 0, now + LOOK_EVERY_S
        return now >= self.look_at

    def looked(self, now: float, is_live: bool) -> bool:
        """Note a look that began at `now`; return whether the service hangs."""
        self._was_live |= is_live
        counts = not is_live and (self._was_live or now - self.started_at > STARTING_S)
        self._misses = self._misses + 1 if counts else 0
        self.look_at = now + (LOOK_AGAIN_S if counts else LOOK_EVERY_S)
        return self._misses > 1


@dataclass
class Service:
    """A Python module run as a process; ready once `health_url` answers 200 (None: once it has lived LIVED_S).

    `live_url`: answers 200 for as long as no restart would help; None: it is not looked at.
    """

    name: str
    module: str
    log_path: Path
    env: Mapping[str, str]
    health_url: str | None = None
    live_url: str | None = field(default=None, kw_only=True)
    arguments: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    deaths: int = field(default=0, init=False)
    started_at: float = field(default=0.0, init=False)
    _restart_at: float | None = field(default=None, init=False)
    _live_watch: LiveWatch = field(default_factory=lambda: LiveWatch(_now()), init=False)

    def start(self) -> None:
        """Start the process, its output appended to the log."""
        argv, env = python(self.module, *self.arguments), {"PYTHONUNBUFFERED": "1", **self.env}
        self.process = spawn(argv, self.log_path, env=env, pass_fds=self.pass_fds)
        self.started_at = time.monotonic()
        self._restart_at = None
        self._live_watch = LiveWatch(_now())

    def is_ready(self) -> bool:
        """Return True if the service works now."""
        if self.process is None or self.process.poll() is not None:
            return False
        if self.health_url is None:
            return time.monotonic() - self.started_at > LIVED_S
        return _status(self.health_url, 2) == httpx2.codes.OK

    def tend(self, say: Say) -> None:
        """Check once: note a death, and restart the process once its pause is over; end one that hangs."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is None:
            if now - self.started_at > STEADY_S:
                self.deaths = 0
            self._end_if_hung(self.process, say)
            return
        if self._restart_at is None:
            self.deaths += 1
            pause_s = min(MAX_PAUSE_S, 2.0 ** (self.deaths - 1))
            self._restart_at = now + pause_s
            code = self.process.returncode if self.process else "?"
            say(f"{self.name} died ({_exit_cause(code)}); restarting it in {pause_s:.0f} s; log: {self.log_path}")
        elif now >= self._restart_at:
            try:
                self.start()
            except OSError as error:  # of a full disk, on which its log cannot be made
                self._restart_at = now + MAX_PAUSE_S
                say(f"cannot restart {self.name} ({error}); retrying in {MAX_PAUSE_S:.0f} s")
            else:
                say(f"{self.name} restarted")

    def _end_if_hung(self, process: subprocess.Popen[bytes], say: Say) -> None:
        now = _now()
        if self.live_url is None or not self._live_watch.is_due(now):
            return
        is_live = _status(self.live_url, LIVE_TIMEOUT_S) not in (None, httpx2.codes.SERVICE_UNAVAILABLE)
        if self._live_watch.looked(now, is_live):
            say(f"{self.name} hangs: {self.live_url} does not return 200; stopping it")
            terminate(process, END_S)


@cache
def _client() -> httpx2.Client:
    """Return the client of all looks at health: one made for each look reads the machine's authorities anew, 40 ms of
    the processor several times a second."""
    return httpx2.Client(limits=httpx2.Limits(max_keepalive_connections=0), event_hooks=BOUNDED)


def _status(url: str, timeout_s: float) -> int | None:
    """Return the status that a URL answers; None if it does not within this time."""
    try:
        return _client().get(url, timeout=timeout_s).status_code
    except httpx2.HTTPError:
        return None


def _now() -> float:
    """Return a clock that goes on while the machine sleeps, which `time.monotonic` does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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
            detail = f"not healthy within {timeout_s:.0f} s: {log_tail(waiting[0].log_path)}"
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

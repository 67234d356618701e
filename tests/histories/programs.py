"""A program on a host: started, killed, stopped and continued with all that it has started."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from lagloss_server.ops.child_environment import foreign_environment, own_environment
from lagloss_server.ops.processes import spawn, terminate
from tests.histories.net import Host

PAUSE_S: Final = 2.0
"""Before a program that died is started again, as a supervisor does."""
STOP_S: Final = 20.0


@dataclass
class Program:
    """`is_held`: a fault keeps it down. `before`: what to do before each start. `deaths`: when it was killed, or ended
    by itself (epoch s)."""

    name: str
    host: Host
    argv: Sequence[object]
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    is_foreign: bool = False
    clock: Path = Path()
    """The library that has the program see its host's clock."""
    before: Callable[[], None] | None = None
    is_held: bool = False
    deaths: list[float] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _start_at: float = 0.0

    def start(self) -> None:
        """Start it, unless it runs: another fault may have done so."""
        if self.runs:
            return
        if self.before is not None:
            self.before()
        self.is_held, self._start_at = False, 0.0
        environment = foreign_environment if self.is_foreign else own_environment
        env = {**self.env, "LD_PRELOAD": str(self.clock), "HOST_CLOCK": str(self.host.clock_path)}
        self._process = spawn(self.host.enter(self.argv), self.log_path, env=env, environment=environment)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tend(self) -> bool:
        """Start it again a moment after its death; return whether it died by itself since the last look."""
        if self._process is None or self.runs or self.is_held:
            return False
        now = time.monotonic()
        if not self._start_at:
            self._start_at = now + PAUSE_S
            self.deaths.append(time.time())
            return True
        if now >= self._start_at:
            self.start()
        return False

    def kill(self) -> None:
        """Kill it with -9, with all its children, and keep it down until it is started."""
        self.is_held = True
        self.deaths.append(time.time())
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End it in an orderly way, and keep it down until it is started."""
        self.is_held = True
        if self._process is not None and terminate(self._process, STOP_S, how) == -signal.SIGKILL:
            self.deaths.append(time.time())

    def _signal(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        root = psutil.Process(self._process.pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

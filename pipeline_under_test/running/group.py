"""A node as a group of processes: as many as are wanted, each started again when it dies or no longer shows a beat."""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lagloss.processes import terminate
from lagloss.supervisor import Service
from pipeline_under_test.nodes.beat import age_s

log = logging.getLogger(__name__)

HUNG_S: Final = 15.0
"""A process whose last beat is older than this is killed: its loop stands."""
STARTING_S: Final = 30.0
"""How long a process may take to its first beat."""


@dataclass(slots=True)
class Roll:
    """A rolling restart on its way: who is still to be replaced, and who takes the place of the first of them."""

    old: list[Service]
    fresh: Service | None = None


@dataclass(slots=True)
class Group:
    """The processes of one node. `tend` is called often and never waits, but for processes that are told to end.

    `least` and `most` bound `wanted`, which `scale` sets. `env` is laid over the environment of processes that are
    started from then on.
    """

    node: str
    arguments: tuple[str, ...]
    log_dir: Path
    beats_dir: Path
    least: int = 1
    most: int = 1
    stop_timeout_s: float = 30.0
    env: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    is_held: bool = False
    """Whether it has no processes at all, whatever is wanted."""
    wanted: int = 1
    members: list[Service] = field(default_factory=list)
    _number: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _roll: Roll | None = None

    def scale(self, wanted: int) -> None:
        """Wants so many processes, within the bounds; the next `tend` starts or ends some."""
        self.wanted = min(self.most, max(self.least, wanted))

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [member.process.pid for member in self.members if member.process and member.process.poll() is None]

    @property
    def is_ready(self) -> bool:
        """Whether all that are wanted show a beat."""
        wanted = 0 if self.is_held else self.wanted
        return len(self.members) >= wanted and all(self._beats(member) for member in self.members)

    def tend(self) -> None:
        """One look: ends what is too many, starts what is missing or dead, kills what hangs, rolls on."""
        wanted = 0 if self.is_held else self.wanted + (self._roll is not None)
        while len(self.members) > wanted:
            self._end(self.members.pop())
        while len(self.members) < wanted and self._roll is None:
            self.members.append(self._started())
        for member in self.members:
            before = member.process
            self._kill_if_hung(member)
            member.tend(lambda line: log.warning("%s", line))
            self.restarts += member.process is not before
        self._roll_on()

    def kill(self) -> None:
        """Kills all processes, as a crash would; `tend` starts them again."""
        self.signal(signal.SIGKILL)

    def signal(self, how: signal.Signals) -> None:
        """Sends a signal to all processes."""
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.process.send_signal(how)

    def terminate(self) -> None:
        """Tells all processes to end, and does not wait."""
        self.signal(signal.SIGTERM)

    def roll(self, env: Mapping[str, str] | None = None) -> None:
        """Replaces the processes one by one, each only once its successor shows a beat; `env` is theirs from now on."""
        if env is not None:
            self.env = dict(env)
        if not self.is_held:
            self._roll = Roll(list(self.members))

    def end(self) -> list[int]:
        """Ends all processes in good order; gives their exit codes."""
        codes = [self._end(member) for member in self.members]
        self.members.clear()
        return codes

    def _started(self) -> Service:
        name = f"{self.node}-{next(self._number)}"
        member = Service(name, "pipeline_under_test", self.log_dir / f"{name}.log", self.env, None, self.arguments)
        member.start()
        return member

    def _end(self, member: Service) -> int:
        if member.process is None:
            return 0
        if member.process.poll() is None:
            member.process.send_signal(signal.SIGCONT)  # one that was stopped could not end
        code = terminate(member.process, self.stop_timeout_s)
        if code > 0 or code == -signal.SIGKILL:
            log.error("%s ended with %d; see %s", member.name, code, member.log_path)
        return code

    def _beats(self, member: Service) -> bool:
        if member.process is None or member.process.poll() is not None:
            return False
        age = age_s(self.beats_dir, member.process.pid)
        return age is not None and age < HUNG_S

    def _kill_if_hung(self, member: Service) -> None:
        if member.process is None or member.process.poll() is not None or self._beats(member):
            return
        lived_s = time.monotonic() - member.started_at
        if lived_s > STARTING_S:
            log.error("%s shows no beat; killing it", member.name)
            member.process.kill()
            member.process.wait()

    def _roll_on(self) -> None:
        if self._roll is None:
            return
        if self._roll.fresh is None:
            self._roll.fresh = self._started()
            self.members.append(self._roll.fresh)
        if self._beats(self._roll.fresh):
            gone = self._roll.old.pop(0) if self._roll.old else None
            if gone in self.members:
                self.members.remove(gone)
                self._end(gone)
            self._roll.fresh = None
            if not self._roll.old:
                self._roll = None

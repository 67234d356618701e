"""A node as a group of processes: as many as are wanted, each started again when it dies or no longer shows a beat."""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from lagloss_server.ops.processes import log_tail, terminate
from lagloss_server.ops.supervisor import GIVE_UP_STARTING, Service
from pipeline_under_test.harness.beat import Pulse

log = logging.getLogger(__name__)

HUNG_S: Final = 15.0
"""A process whose last beat is older than this is killed: its loop stands."""
STARTING_S: Final = 30.0
"""How long a process may take to its first beat."""
STOP_TIMEOUT_S: Final = 30.0
"""How long a process may take to end in good order; then it is killed."""


@dataclass(slots=True)
class Roll:
    """A rolling restart on its way: who is still to be replaced, who is to take the place of the first of them, and the
    environment to go back to if none can."""

    old: list[Service]
    env_before: dict[str, str]
    fresh: Service | None = None


@dataclass(frozen=True, slots=True)
class StoppingProcess:
    """A process that was asked to end, and its deadline (monotonic clock)."""

    service: Service
    deadline: float


@dataclass(slots=True)
class Group:
    """The processes of one node. `tend` is called often and never waits.

    `least` and `most` bound `wanted`, which `scale` sets. `env` is laid over the environment of processes that are
    started from then on. `module` is what they run, with `arguments`. `pass_fds` are open in them: a socket that they
    listen on in turn outlives each of them, so that no connection is refused or reset when one ends.
    """

    node: str
    arguments: tuple[str, ...]
    log_dir: Path
    beats_dir: Path
    least: int = 1
    most: int = 1
    module: str = "pipeline_under_test"
    pass_fds: tuple[int, ...] = ()
    hung_s: float = HUNG_S
    starting_s: float = STARTING_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    env: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    is_held: bool = False
    """Whether it has no processes at all, whatever is wanted."""
    wanted: int = 0
    members: list[Service] = field(default_factory=list)
    """Those that serve, or are started again."""
    _number: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _leavers: list[StoppingProcess] = field(default_factory=list)
    _pulses: dict[int, Pulse] = field(default_factory=dict)
    _roll: Roll | None = None

    def __post_init__(self) -> None:
        self.scale(self.wanted)

    def scale(self, count: int) -> None:
        """Set the wanted number of processes, within the bounds; the next `tend` starts or ends some."""
        self.wanted = min(self.most, max(self.least, count))

    @property
    def pids(self) -> list[int]:
        """Pids of all processes that live, those that are about to end included."""
        return [service.process.pid for service in self._all() if service.process is not None and _lives(service)]

    @property
    def is_ready(self) -> bool:
        """Whether all that are wanted show a beat."""
        target = 0 if self.is_held else self.wanted
        return len(self.members) >= target and all(self._beats(member) for member in self.members)

    @property
    def is_rolling(self) -> bool:
        """Whether a rolling restart is on its way."""
        return self._roll is not None

    def tend(self) -> None:
        """Adjust the group once: end surplus processes, start missing or dead ones, kill hung ones, continue a rolling
        restart."""
        self._see_off()
        if self.is_held:
            self._end_roll()  # processes that start once the hold is over are new anyway
        target = 0 if self.is_held else self.wanted
        while len(self.members) > target:
            self._dismiss(self._roll.old[-1] if self._roll and self._roll.old else self.members[-1])
        while len(self.members) < target:
            self.members.append(self._started())
        for service in [*self.members, *self._successor()]:
            self._look_after(service)
        self._roll_on()
        living = set(self.pids)
        self._pulses = {pid: pulse for pid, pulse in self._pulses.items() if pid in living}

    def kill(self) -> None:
        """Kill all processes, as a crash would; `tend` starts them again."""
        self.signal(signal.SIGKILL)

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to all processes."""
        for service in self._all():
            if service.process is not None:
                service.process.send_signal(how)  # to none that is gone: it looks first

    def terminate(self) -> None:
        """Ask all processes to end, and return at once."""
        self.signal(signal.SIGCONT)  # one that is stopped could not end
        self.signal(signal.SIGTERM)

    def roll(self, env: Mapping[str, str] | None = None) -> None:
        """Replace the processes one by one, each only once its successor shows a beat; `env` is theirs from now on.

        If a successor dies again and again, the rest stay as they are, and `env` is what it was before.
        """
        self._end_roll()
        before = self.env
        if env is not None:
            self.env = dict(env)
        if not self.is_held:
            self._roll = Roll(list(self.members), before)

    def end(self) -> list[int]:
        """End all processes in good order, and wait for it; return their exit codes."""
        self.terminate()
        deadline = time.monotonic() + self.stop_timeout_s
        codes = [_ended(service, deadline - time.monotonic()) for service in self._all()]
        self._forget()
        return codes

    def abort(self) -> None:
        """Kill all processes, for good."""
        self.kill()
        for service in self._all():
            if service.process is not None:
                service.process.wait()
        self._forget()

    def _forget(self) -> None:
        self.members.clear()
        self._leavers.clear()
        self._pulses.clear()
        self._roll = None

    def _all(self) -> Iterator[Service]:
        yield from self.members
        yield from self._successor()
        for leaver in self._leavers:
            yield leaver.service

    def _successor(self) -> list[Service]:
        return [self._roll.fresh] if self._roll is not None and self._roll.fresh is not None else []

    def _started(self) -> Service:
        name = f"{self.node}-{next(self._number)}"
        service = Service(
            name, self.module, self.log_dir / f"{name}.log", self.env, None, self.arguments, self.pass_fds
        )
        service.start()
        self._watch(service)
        return service

    def _watch(self, service: Service) -> None:
        if service.process is not None:
            self._pulses[service.process.pid] = Pulse(self.beats_dir, service.process.pid)

    def _look_after(self, service: Service) -> None:
        """Kill a process if it hangs; start it again, after a pause that grows, if it is dead."""
        before = service.process
        if before is not None and _lives(service):
            pulse = self._pulses[before.pid]
            silent_s = pulse.silent_s
            if silent_s > (self.hung_s if pulse.has_beaten else self.starting_s):
                log.error("%s has sent no heartbeat for %.0f s; killing it", service.name, silent_s)
                before.kill()
        service.tend(lambda line: log.warning("%s", line))
        if service.process is not before:
            self._watch(service)
            self.restarts += 1

    def _beats(self, service: Service) -> bool:
        if service.process is None or not _lives(service):
            return False
        pulse = self._pulses[service.process.pid]
        return pulse.silent_s < self.hung_s and pulse.has_beaten

    def _dismiss(self, service: Service) -> None:
        """Ask a process to end; `_see_off` kills it if it does not."""
        if service in self.members:
            self.members.remove(service)
        if self._roll is not None and service in self._roll.old:
            self._roll.old.remove(service)
        if service.process is not None and _lives(service):
            service.process.send_signal(signal.SIGCONT)  # one that is stopped could not end
            service.process.send_signal(signal.SIGTERM)
        self._leavers.append(StoppingProcess(service, time.monotonic() + self.stop_timeout_s))

    def _see_off(self) -> None:
        for leaver in list(self._leavers):
            if not _lives(leaver.service) or time.monotonic() > leaver.deadline:
                self._leavers.remove(leaver)
                _ended(leaver.service, 0)

    def _roll_on(self) -> None:
        roll = self._roll
        if roll is None:
            return
        if not roll.old:
            self._end_roll()
        elif roll.fresh is None:
            if not self._leavers:  # one more than wanted, not two
                roll.fresh = self._started()
        elif self._beats(roll.fresh):
            self.members.append(roll.fresh)
            roll.fresh = None
            self._dismiss(roll.old[0])
        elif roll.fresh.deaths >= GIVE_UP_STARTING:
            why = log_tail(roll.fresh.log_path)
            log.error(
                "%s died %d times; the other processes are left unchanged: %s", roll.fresh.name, roll.fresh.deaths, why
            )
            self.env = roll.env_before
            self._end_roll()

    def _end_roll(self) -> None:
        fresh = self._successor()
        self._roll = None
        for service in fresh:
            self._dismiss(service)


def _lives(service: Service) -> bool:
    return service.process is not None and service.process.poll() is None


def _ended(service: Service, timeout_s: float) -> int:
    """Return the exit code of a process that was asked to end; kill it if it does not within the time."""
    if service.process is None:
        return 0
    code = terminate(service.process, timeout_s)
    if code > 0 or code == -signal.SIGKILL:
        log.error("%s exited with code %d; see %s", service.name, code, service.log_path)
    return code


class CpuMeter:
    """How much of a core processes use, from one look to the next."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def shares(self, pids: Iterable[int]) -> dict[int, float]:
        """Return each pid's share since the last look, without new and ended ones."""
        before, self._known = self._known, {}
        shares_ = {}
        for pid in pids:
            try:
                process = before.get(pid) or psutil.Process(pid)
                share = process.cpu_percent() / 100
            except psutil.Error:
                continue
            self._known[pid] = process
            if pid in before:
                shares_[pid] = share
        return shares_

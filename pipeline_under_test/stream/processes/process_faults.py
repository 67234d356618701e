"""Faults of processes and servers: begun and ended at their times."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipeline_under_test.harness.faults import Injection, Injections
from pipeline_under_test.harness.group import Group
from pipeline_under_test.stream.faults import ALL

log = logging.getLogger(__name__)

KINDS: Final = frozenset({"crash", "stall", "stop", "restart", "skew"})
LIBRARIES: Final = ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")
FAKETIME: Final = "libfaketimeMT.so.1"
"""A wrong clock for a process, preloaded."""


class NoFaketime(RuntimeError):
    """libfaketime is not installed; the message explains how to install it."""


def library() -> Path:
    """Return the path of libfaketime.

    Raises:
        NoFaketime: if it is nowhere.
    """
    for folder in LIBRARIES:
        paths = sorted(Path(folder).glob(f"**/{FAKETIME}"))
        if paths:
            return paths[0]
    raise NoFaketime("expected libfaketime, found none; install it (Debian: apt-get install faketime)")


def environment(ahead_s: float) -> dict[str, str]:
    """Return the variables under which a process finds its clock this many seconds ahead (behind, if negative).
    Monotonic time, by which timeouts are measured, is unaffected."""
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME": f"{ahead_s:+g}s",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


class ProcessFaults:
    """Carries out what the file of faults says about processes."""

    def __init__(self, injections: Injections, groups: Mapping[str, Group]) -> None:
        self._injections = injections
        self._groups = groups
        self._on: dict[int, Injection] = {}
        self._next_crash: dict[int, float] = {}

    def step(self) -> None:
        """Begin and end what is due; never wait."""
        now_ms = time.time() * 1000
        for number, injection in enumerate(self._injections.known()):
            if injection.fault.kind not in KINDS:
                continue
            begins = injection.from_ms <= now_ms
            if injection.holds(now_ms) and number not in self._on:
                self._on[number] = injection
                self._begin(injection)
            elif begins and not injection.holds(now_ms) and number in self._on:
                self._end(self._on.pop(number))
            if number in self._on:
                self._crash_again(number, injection)

    def _of(self, injection: Injection) -> list[Group]:
        node = injection.fault.node
        if node == ALL:
            return list(self._groups.values())
        return [self._groups[node]] if node in self._groups else []  # a pipeline may run no shadow

    def _begin(self, injection: Injection) -> None:
        fault = injection.fault
        log.warning("fault begins: %s", fault.text)
        for group in self._of(injection):
            match fault.kind:
                case "crash" if not fault.seconds:
                    group.kill()
                case "stall":
                    group.signal(signal.SIGSTOP)
                case "stop":
                    group.is_held = True
                case "restart":
                    group.roll()
                case "skew":
                    _skew(group, fault.seconds)
                case _:
                    pass

    def _end(self, injection: Injection) -> None:
        fault = injection.fault
        log.warning("fault ends: %s", fault.text)
        for group in self._of(injection):
            match fault.kind:
                case "stall":
                    group.signal(signal.SIGCONT)
                case "stop":
                    group.is_held = False
                case "skew" if group.env:
                    group.roll({})
                case _:
                    pass

    def _crash_again(self, number: int, injection: Injection) -> None:
        every_s, now = injection.fault.seconds, time.monotonic()
        if injection.fault.kind == "crash" and every_s and now >= self._next_crash.get(number, 0.0):
            self._next_crash[number] = now + every_s
            for group in self._of(injection):
                group.kill()


def _skew(group: Group, ahead_s: float) -> None:
    """Restart the group with a skewed clock. Log a warning if libfaketime is missing: the command refuses such a fault,
    but a file of faults may come from elsewhere."""
    try:
        group.roll(environment(ahead_s))
    except NoFaketime as problem:
        log.warning("leaving the clock of %s unchanged: %s", group.node, problem)

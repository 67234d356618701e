"""Time on the wall, and CPU time of processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

import psutil


class Stopwatch:
    """Adds up the seconds for which it runs: on the wall, and of the CPU of this process and of others by pid."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.wall_s = self.own_s = 0.0
        self.others_s = dict.fromkeys(pids, 0.0)

    @property
    def servers_s(self) -> float:
        """Return the CPU time of the other processes together."""
        return sum(self.others_s.values())

    def __enter__(self) -> Self:
        self._add(-1)
        return self

    def __exit__(self, *_: object) -> None:
        self._add(1)

    def _add(self, sign: int) -> None:
        self.wall_s += sign * time.perf_counter()
        self.own_s += sign * time.process_time()
        for pid in self._pids:
            self.others_s[pid] += sign * cpu_s(pid)


def timed_s(work: Callable[[], object]) -> float:
    """Return how long this takes on the wall."""
    with Stopwatch() as watch:
        work()
    return watch.wall_s


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants, in seconds; of those that ended if they were its
    children."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + (times.children_user + times.children_system if process == root else 0)
    return total

"""CPU time of processes."""

from __future__ import annotations

import psutil


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

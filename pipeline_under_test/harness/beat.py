"""A process's sign of life: a file that it touches each second while its loop goes round."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

EVERY_S: Final = 1.0


class Beat:
    """The file `DIRECTORY/PID`; gone once the process has ended well."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / str(os.getpid())
        self._next = 0.0

    def step(self) -> None:
        """Touch the file if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_S
            self._path.touch()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)


class Pulse:
    """A process's beat as another one sees it, to be made when the process has just been started.

    Only changes of the file count, timed by the watcher's monotonic clock: neither a clock that is set anew, nor a
    machine that slept, nor a process with a skewed clock makes a living one look dead.
    """

    def __init__(self, directory: Path, pid: int) -> None:
        self._path = directory / str(pid)
        self._path.unlink(missing_ok=True)  # of an earlier process with this number
        self._touched_ns: int | None = None
        self._since = time.monotonic()

    @property
    def has_beaten(self) -> bool:
        """Whether the process has shown that it lives, as of the last look at `silent_s`."""
        return self._touched_ns is not None

    @property
    def silent_s(self) -> float:
        """Seconds since a beat was last seen, or since the process was started."""
        now = time.monotonic()
        try:
            touched_ns = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return now - self._since
        if touched_ns != self._touched_ns:
            self._touched_ns, self._since = touched_ns, now
        return now - self._since

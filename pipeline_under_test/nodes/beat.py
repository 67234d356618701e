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
        """Touches the file if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_S
            self._path.touch()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)


def age_s(directory: Path, pid: int) -> float | None:
    """Seconds since a process last showed that it lives; None if it never did."""
    try:
        return time.time() - (directory / str(pid)).stat().st_mtime
    except FileNotFoundError:
        return None

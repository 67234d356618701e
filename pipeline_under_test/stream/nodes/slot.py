"""A process's place among those of its node: a number that no other has while it lives, and that the next can have.

It is held by a lock on a file, which ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import itertools
from pathlib import Path
from typing import IO


class Slot:
    """The lowest number that is free."""

    def __init__(self, directory: Path, node: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.number, self._locked = _lowest_free(directory, node)

    def close(self) -> None:
        """Release the slot to the next process."""
        self._locked.close()


def _lowest_free(directory: Path, node: str) -> tuple[int, IO[bytes]]:
    for number in itertools.count():
        file = (directory / f"{node}-{number}").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return number, file
    raise AssertionError("numbers do not end")

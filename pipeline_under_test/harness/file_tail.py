"""A file that others append lines to, read as it grows."""

from __future__ import annotations

from pathlib import Path


class FollowedFile:
    """The lines of a file; each call of `new_lines` continues where the last stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0

    def new_lines(self) -> list[bytes]:
        """Return the lines appended since the last call, without their ends; none without a file.

        A last line without an end (its writer is not done, or was killed) waits for it.
        """
        try:
            if self._path.stat().st_size == self._read_to:
                return []
        except FileNotFoundError:
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            *whole, rest = file.read().split(b"\n")
            self._read_to = file.tell() - len(rest)
        return whole

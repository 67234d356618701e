"""A segment: one of a spool's files of flushes, with the small ones beside it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from lagloss.sdk.spool.directory import sync_directory


@dataclass(slots=True)
class Segment:
    """One file of flushes. `last` is the number of the newest one in it."""

    directory: Path
    number: int
    descriptor: int = -1
    size: int = 0
    last: int = 0

    def path(self, suffix: str) -> Path:
        return self.directory / f"{self.number:08}.{suffix}"

    def begin(self, head: bytes) -> None:
        """Create the file, with this content.

        Raises:
            OSError: and no file is left.
        """
        try:
            self.descriptor = os.open(self.path("log"), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
            self.append(head)
            sync_directory(self.directory)
        except OSError:
            self.remove()
            raise

    def append(self, data: bytes) -> None:
        """Append to the file, whole or not at all, and wait until it is on disk.

        Raises:
            OSError: the disk failed.
        """
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.descriptor, view) :]
            os.fdatasync(self.descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(data)

    def read(self, start: int) -> bytes:
        """Return its content from `start` on; less if the disk fails."""
        buffer = bytearray()
        while start + len(buffer) < self.size:
            piece = os.pread(self.descriptor, self.size - start - len(buffer), start + len(buffer))
            if not piece:
                break
            buffer += piece
        return bytes(buffer)

    def note_positions(self, data: bytes) -> None:
        """Append to the file of positions, without syncing: blocks not noted are sent again, and count once."""
        with contextlib.suppress(OSError), self.path("sent").open("ab") as file:
            file.write(data)

    def write_base(self, data: bytes) -> None:
        """Write the state of tallies before this file.

        Raises:
            OSError: and the earlier state is kept.
        """
        draft = self.path("base.new")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path("base"))
        sync_directory(self.directory)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def remove(self) -> None:
        self.close()
        for suffix in ("log", "sent", "base"):
            with contextlib.suppress(OSError):
                self.path(suffix).unlink(missing_ok=True)

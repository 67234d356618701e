"""Spool directories, and the segments in them: files of flushes, with small ones next to each.

There is a directory per emitter, locked until its process ends, so that those of dead processes can be found.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

LOCK: Final = "lock"
_DRAFT: Final = ".new-"
_EMITTER: Final = re.compile(r"\.[0-9a-f]{32}")


@dataclass(slots=True)
class SpoolDirectory:
    """A directory `PIPELINE.NODE.EMITTER` and the lock on it. Names of pipelines and nodes have no dots."""

    path: Path
    _lock: int

    @classmethod
    def made(cls, below: Path, pipeline: str, node: str, emitter: bytes) -> Self:
        """Make a new one, locked by this process.

        Raises:
            OSError: the disk failed.
        """
        below.mkdir(parents=True, exist_ok=True)
        name = f"{pipeline}.{node}.{emitter.hex()}"
        draft = below / f"{_DRAFT}{name}"  # until it is locked, it must not look like a dead process's
        draft.mkdir(mode=0o700)
        try:
            lock = _locked(draft)
            assert lock is not None
            path = draft.rename(below / name)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_directory(below)
        return cls(path, lock)

    @classmethod
    def abandoned(cls, below: Path, pipeline: str = "*", node: str = "*") -> Iterator[Self]:
        """Yield the directories of this node's (by default any node's) dead processes, each locked by this process from
        now on.
        """
        with contextlib.suppress(OSError):
            for path in sorted(below.glob(f"{pipeline}.{node}.*")):
                lock = _locked(path) if _EMITTER.fullmatch(path.suffix) else None
                if lock is not None:
                    yield cls(path, lock)

    @property
    def owner(self) -> tuple[str, str, bytes]:
        """Pipeline, node and emitter that it belongs to."""
        pipeline, node, emitter = self.path.name.split(".")
        return pipeline, node, bytes.fromhex(emitter)

    def release(self) -> None:
        """Release the lock, and leave the directory to the next process."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def remove(self) -> None:
        """Remove the directory, of which nothing is needed any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


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
            self.trim()
            view = memoryview(data)
            while view:
                view = view[os.write(self.descriptor, view) :]
            os.fdatasync(self.descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self.trim()
            raise
        self.size += len(data)

    def trim(self) -> None:
        """Remove what an append that failed has left, if the disk did not let it do that itself.

        Raises:
            OSError: the disk failed.
        """
        os.ftruncate(self.descriptor, self.size)

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


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the directory's lock, None if another process has it or it is gone."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

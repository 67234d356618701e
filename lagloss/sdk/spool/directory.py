"""Spool directories: one per emitter, locked until its process ends, so that those of dead processes can be found."""

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

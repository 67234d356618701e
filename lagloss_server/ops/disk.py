"""The disk of a folder: whether a server can write there, asked before its last words are believed."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lagloss_server.base.errors import DiskFull, DiskUnusable, DiskUnwritable

FULL_MB: Final = 32
"""Less than a server needs to start: PostgreSQL makes a WAL segment of 16 MB, Kafka two index files of 10 MB each."""
FULL_INODES: Final = 32
LOW_SHARE: Final = 0.05
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE: Final = (errno.EROFS, errno.EACCES)
_WORDS: Final = {
    DiskFull: tuple(map(os.strerror, FULL)),
    DiskUnwritable: (*map(os.strerror, _UNWRITABLE), "invalid permissions", "wrong ownership"),
}
"""How a server's log names the operating system's reason, and PostgreSQL its own."""
_OF_A_PORT: Final = "(?i)bind|socket|address"
"""Rights that are not those of a disk."""


@dataclass(frozen=True)
class Room:
    """Room on the disk of `folder` for whoever is not root. `files` is how many more it takes; None: without limit."""

    folder: Path
    device: int
    free_mb: int
    files: int | None
    free_share: float
    """Of blocks or of inodes, whichever is less."""
    is_read_only: bool

    @classmethod
    def of(cls, folder: Path) -> Room:
        """Look at a folder's disk, or at that of the nearest one above it that exists. Raises OSError."""
        while not folder.exists() and folder != folder.parent:
            folder = folder.absolute().parent
        stat = os.statvfs(folder)
        usable = stat.f_blocks - stat.f_bfree + stat.f_bavail  # as df does: without what is reserved for root
        shares = [stat.f_bavail / usable if usable else 1.0]
        if stat.f_files:  # some file systems make inodes as they need them
            shares.append(stat.f_favail / stat.f_files)
        free_mb = stat.f_bavail * stat.f_frsize // 1_000_000
        files = stat.f_favail if stat.f_files else None
        return cls(folder, folder.stat().st_dev, free_mb, files, min(shares), bool(stat.f_flag & os.ST_RDONLY))

    @property
    def problem(self) -> DiskUnusable | None:
        """Why no server can write here; None if one can."""
        if self.is_read_only:
            return DiskUnwritable(path=self.folder, detail=os.strerror(errno.EROFS))
        if self.free_mb < FULL_MB:
            return DiskFull(
                path=self.folder, detail=f"expected at least {FULL_MB} MB of free space, found {self.free_mb} MB"
            )
        if self.files is not None and self.files < FULL_INODES:
            return DiskFull(path=self.folder, detail=f"no inodes left ({self.files} free)")
        return None

    @property
    def warning(self) -> str | None:
        """The text of a warning below LOW_SHARE; None above."""
        if self.free_share >= LOW_SHARE:
            return None
        what = "space" if self.files is None else "space or inodes"
        return f"the disk of {self.folder} has {self.free_share:.1%} of its {what} free ({self.free_mb} MB)"


def problem_of(folder: Path, log: str = "") -> DiskUnusable | None:
    """Return why a server cannot write to its folder: by the disk as it is now, else by the last such line of its log,
    since a quota or the rights of its user do not show otherwise."""
    try:
        problem = Room.of(folder).problem
    except OSError as error:
        return _problem_of_error(error, folder)
    if problem is not None:
        return problem
    for line in reversed(log.splitlines()):
        for kind, words in _WORDS.items():
            if any(word in line for word in words) and not re.search(_OF_A_PORT, line):
                return kind(path=folder, detail=line.strip()[:400])
    return None


def warnings(data_dir: Path) -> list[str]:
    """Return a warning for each disk of a data directory that has less than LOW_SHARE free. Raises OSError."""
    return [room.warning for room in rooms(data_dir) if room.warning is not None]


def free_share(data_dir: Path) -> float:
    """Return the share that is free of the fuller disk of a data directory; NaN if it is unknown."""
    try:
        return min(room.free_share for room in rooms(data_dir))
    except OSError:
        return float("nan")


def rooms(data_dir: Path) -> list[Room]:
    """Return the room on each disk that the servers of a data directory write to: root may keep PostgreSQL's cluster
    on another one. Raises OSError."""
    note = data_dir / "postgres" / "cluster.path"
    elsewhere = [Path(note.read_text().strip())] if note.exists() else []
    return list({room.device: room for room in map(Room.of, (*elsewhere, data_dir))}.values())


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Raise DiskUnusable in place of an OSError that means that the folder's disk is full or cannot be written to."""
    try:
        yield
    except OSError as error:
        problem = _problem_of_error(error, folder)
        if problem is None:
            raise
        raise problem from error


def demand(folder: Path) -> None:
    """Raise DiskUnusable if a server could not write to the folder."""
    problem = problem_of(folder)
    if problem is not None:
        raise problem


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that it is never half there: on a full disk it keeps what it had."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.replace(path)


def _problem_of_error(error: OSError, folder: Path) -> DiskUnusable | None:
    if error.errno in FULL:
        return DiskFull(path=folder, detail=error.strerror)
    return DiskUnwritable(path=error.filename or folder, detail=error.strerror) if error.errno in _UNWRITABLE else None

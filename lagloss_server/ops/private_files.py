"""Files that only their owner can read: all of a data directory, which holds message ids and secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o077
_PASSABLE: Final = 0o011
"""A user who knows a name below the folder can go there, and cannot list the folder."""
_WITH_DATA: Final = ("kafka", "logs", "postgres", "spark", "spool")
_FILES: Final = ("endpoints.json", "endpoints.json.new", "ports.json", "up.lock")
_INSTANCES: Final = ("demo", "demo-batch", "running")
"""Other instances, which close their own folders, and links to those that run."""


@contextmanager
def umask(mask: int) -> Iterator[int]:
    """Have this process, and children that it starts, make files without these rights; yield the mask before."""
    before = os.umask(mask)
    try:
        yield before
    finally:
        os.umask(before)


def make_folder(folder: Path, *, passable: bool) -> None:
    """Make a folder if it is missing, for its owner only; with `passable`, so that a server of another user can pass.
    Missing folders above it are made as the umask says."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700 | (_PASSABLE if passable else 0))


def close_folder(folder: Path, *, passable: bool) -> None:
    """Remove the rights of other users on lagloss's files in a data directory (restored from a copy, or made by hand),
    and on the directory itself unless it holds other files, too. With `passable`, those who could pass still can. Files
    of another user and targets of links stay as they are."""
    entries = {path.name: path for path in folder.iterdir()}
    if entries.keys() <= {*_WITH_DATA, *_FILES, *_INSTANCES}:
        _close(folder, passable=passable)
    for name, path in entries.items():
        if name in _WITH_DATA and not path.is_symlink() and path.stat().st_mode & 0o066:
            for root, folders, files in os.walk(path):
                if Path(root) == folder / "postgres":
                    folders.clear()  # the cluster's: PostgreSQL refuses one that others can read
                for file in files:
                    _close(Path(root, file))
                _close(Path(root), passable=passable and name == "postgres")
        elif name in _FILES and path.is_file():
            _close(path)


def _close(path: Path, *, passable: bool = False) -> None:
    with suppress(FileNotFoundError, PermissionError):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            closed = mode & ~(OWNER_ONLY ^ (_PASSABLE if passable else 0))
            if mode != closed:
                path.chmod(closed)

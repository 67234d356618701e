"""Environments of servers whose packages do not go together with lagloss's: made from a lock when first needed."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lagloss_server.base.errors import ServerNotInstalled
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.jars import jars_dir
from lagloss_server.ops.processes import python, run


@dataclass(frozen=True)
class LockedEnvironment:
    """The environment of `server`, of exactly the packages in `lock`. `variable` names its folder; by default it lies
    beside the jars'."""

    server: str
    lock: Path
    variable: str

    @property
    def folder(self) -> Path:
        folder_text = os.environ.get(self.variable)
        return Path(folder_text) if folder_text else jars_dir().absolute().parent / f".{self.server.lower()}"

    def ensure(self) -> Path:
        """Make the environment if it is missing or the lock has changed; return its Python. Needs the network then.

        Raises:
            ServerNotInstalled: a package could not be fetched, or differs from the lock.
        """
        interpreter, stamp = self.folder / "bin" / "python", self.folder / ".complete"
        digest = hashlib.sha256(self.lock.read_bytes()).hexdigest()
        with _alone_in(self.folder):
            if not stamp.exists() or stamp.read_text() != digest:
                self._make(interpreter)
                stamp.write_text(digest)
        return interpreter

    def _make(self, interpreter: Path) -> None:
        install = ("install", "--quiet", "--no-deps", "--require-hashes", "-r", self.lock)
        for command in (
            python("venv", "--clear", self.folder),
            python("pip", "--disable-pip-version-check", *install, interpreter=interpreter),
        ):
            done = run(command, environment=foreign_environment)
            if done.returncode != 0:
                raise ServerNotInstalled(server=self.server, detail=(done.stderr or done.stdout).strip()[-2_000:])


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from making the same environment; the lock is on the folder itself, which venv keeps."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

"""Environments of servers whose packages do not go together with lagloss's: made from a lock when first needed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lagloss_server.errors import ServerNotInstalled
from lagloss_server.ops.jars import jars_dir


@dataclass(frozen=True)
class LockedEnvironment:
    """The environment of `server`, of exactly the packages in `lock`. `variable` names its folder; by default it lies
    beside the jars'."""

    server: str
    lock: Path
    variable: str

    @property
    def folder(self) -> Path:
        given = os.environ.get(self.variable)
        return Path(given) if given else jars_dir().absolute().parent / f".{self.server.lower()}"

    def ensure(self) -> Path:
        """Make the environment if it is missing or the lock has changed; return its Python. Needs the network then.

        Raises:
            ServerNotInstalled: a package could not be fetched, or differs from the lock.
        """
        python, stamp = self.folder / "bin" / "python", self.folder / ".complete"
        digest = hashlib.sha256(self.lock.read_bytes()).hexdigest()
        with _alone_in(self.folder):
            if not stamp.exists() or stamp.read_text() != digest:
                self._make(python)
                stamp.write_text(digest)
        return python

    def _make(self, python: Path) -> None:
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(self.folder)],
            [*pip, "--require-hashes", "-r", str(self.lock)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
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

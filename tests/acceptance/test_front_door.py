"""`make demo`, as the only command after its packages are installed, by a user in a copy of the tree. As root,
test_readme.py starts the same demo."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from lagloss_server.ops import jars as lagloss_jars
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.conftest import new_folder
from tests.support.closers import wait_until

ROOT = Path(__file__).parent.parent.parent
LEFT_OUT = (
    *(".git", ".venv", ".jars", ".tools", ".airflow", ".localstack"),
    *(".*_cache", ".hypothesis", "__pycache__", "dist", "build"),
)
"""What a tarball of the tree has not got."""
LOAD_TIMEOUT_S = 240
END_TIMEOUT_S = 480
HISTORY_MINUTES = 55
"""The demo sends an hour; the newest minutes may still be open."""


@dataclass
class Start:
    """A copy of the tree and who runs it; `home` holds nothing."""

    user: str
    tree: Path
    home: Path
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def demo(self, *words: str) -> None:
        """Start the README's command, and ask for its state in a second terminal once the pipeline is loaded."""
        with (self.home / "demo.log").open("w") as log:
            self._process = self._spawn(["make", "demo", *words], log)
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while "pipeline: load" not in self.output():
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.5)
        assert "PostgreSQL" in self.lagloss("doctor")
        self.lagloss("alerts", "list")

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        assert self._process is not None
        return self._process.wait(END_TIMEOUT_S)

    def interrupt(self) -> None:
        """End it as Ctrl-C does, if a check failed and it still runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            self._process.wait(120)

    def output(self) -> str:
        return (self.home / "demo.log").read_text()

    def windows(self) -> list[object]:
        found: list[object] = json.loads(self.lagloss("windows", "clicks", "--from", "-65m", "--json"))
        return found

    def lagloss(self, *words: str) -> str:
        """What a command prints in a second terminal."""
        with self._spawn([str(self.tree / ".venv" / "bin" / "lagloss"), *words], subprocess.PIPE) as process:
            found = process.communicate(timeout=60)[0]
        assert process.returncode == 0, found
        return found

    def _spawn(self, words: list[str], stdout: IO[str] | int) -> subprocess.Popen[str]:
        found = pwd.getpwnam(self.user)
        return subprocess.Popen(
            words,
            cwd=self.tree,
            env={
                "HOME": str(self.home),
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
            },
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            user=found.pw_uid,
            group=found.pw_gid,
            extra_groups=[],
            start_new_session=True,
        )


def _python() -> str:
    """A Python of this version that any user can run: root's own may lie in root's home."""
    candidates = [sys._base_executable, f"/usr/bin/python3.{sys.version_info.minor}"]  # type: ignore[attr-defined]
    for candidate in candidates:
        try:
            if subprocess.run([candidate, "-V"], user="nobody", check=False, capture_output=True).returncode == 0:
                return candidate
        except OSError:
            continue
    pytest.fail(f"no Python that another user can run: {candidates}")


def _copy(tree: Path) -> None:
    """A copy of the tree, set up but for the last step; the packages and jars of this run are linked, not fetched, with
    what of them is compiled, as pip would have."""
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
    subprocess.run([_python(), "-m", "venv", "--without-pip", tree / ".venv"], check=True)
    packages = Path(sysconfig.get_path("purelib"))
    ours = shutil.ignore_patterns("*lagloss*")
    shutil.copytree(
        packages, next((tree / ".venv").glob("lib/python*/site-packages")), ignore=ours, copy_function=_link,
        dirs_exist_ok=True,
    )  # fmt: skip
    shutil.copytree(lagloss_jars.jars_dir(), tree / ".jars", ignore=shutil.ignore_patterns(".*"), copy_function=_link)
    for stamp in (tree / ".venv" / ".build", tree / ".venv" / ".packages", tree / ".jars" / ".complete"):
        stamp.touch()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@contextmanager
def _user(home: Path) -> Iterator[str]:
    name = f"lagloss-{uuid.uuid4().hex[:8]}"
    subprocess.run(["useradd", "--home-dir", home, "--shell", "/bin/sh", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start it as others")
def test_the_demo_is_the_only_command_that_is_needed(jars: None) -> None:
    folder = new_folder()
    home = folder / "user"
    try:
        with _user(home) as user:
            _copy(home / "a lagloss")
            for path in (home, *home.rglob("*")):
                if path.is_dir() or path.stat().st_nlink == 1:
                    os.chown(path, *pwd.getpwnam(user)[2:4], follow_symlinks=False)
            home.chmod(0o700)
            start = Start(user, home / "a lagloss", home)
            try:
                start.demo("MINUTES=1")
                wait_until(lambda: len(start.windows()) >= HISTORY_MINUTES, LOAD_TIMEOUT_S, "for the past hour")
                assert start.ended() == 0, start.output()
                assert "measured = injected" in start.output()
            finally:
                start.interrupt()
                EmbeddedPostgres.remove(home / ".local" / "share" / "lagloss" / "demo" / "postgres")
    finally:
        shutil.rmtree(folder)

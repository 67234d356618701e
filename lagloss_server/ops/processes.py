"""Child processes that never outlive the process that started them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from lagloss_server.errors import PortInUse
from lagloss_server.ops.machine import port_is_free

_LAUNCHER: Final = Path(__file__).with_name("_die_with_parent.py")
LOOPBACK: Final = "127.0.0.1"
MAX_PORT: Final = 65_535
MAX_LOG_BYTES: Final = 20_000_000
PACKAGES: Final = Path(__file__).parents[2]
"""The folder that holds lagloss's packages: a checkout, or the site-packages of an environment."""


def own_modules_first() -> dict[str, str]:
    """Return the variables by which a Python finds lagloss's modules before any of the same name elsewhere.

    PYTHONSAFEPATH is `-P`: the current directory is not searched. PYTHONPATH keeps what it has, after PACKAGES. Both
    reach the processes that the Python starts, such as Spark's workers.
    """
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(PACKAGES)]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *others])}


def launcher(on_parent_death: int = signal.SIGTERM, user: str | None = None) -> list[str]:
    """Return the prefix of a command that makes it run as `user`, and signals it when this process dies."""
    uid, gid = (-1, -1) if user is None else pwd.getpwnam(user)[2:4]
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *map(str, (int(on_parent_death), os.getpid(), uid, gid))]


def spawn(
    argv: Sequence[str | Path],
    log_path: Path,
    *,
    env: Mapping[str, str] | None = None,
    on_parent_death: int = signal.SIGTERM,
    user: str | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, its output appended to `log_path`.

    `env` is merged into this process's environment, with `own_modules_first`; `pass_fds` are open in the child, too. If
    this process dies, in any way, the child gets `on_parent_death`. The kernel sends it when the *thread* that called
    this ends: call from one that lives on.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [*launcher(on_parent_death, user), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own_modules_first(), **(env or {})},
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )


def terminate(process: subprocess.Popen[bytes], timeout_s: float = 10, how: int = signal.SIGTERM) -> int:
    """End a spawned program: send `how`, then after `timeout_s` SIGKILL to its group. Returns its exit code."""
    if process.poll() is not None:
        return process.returncode  # reaped: its number may belong to another process by now
    process.send_signal(how)
    deadline = time.monotonic() + timeout_s
    # Waits without reaping, so that the group's number stays ours until the rest of the group is gone, too.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def is_running(pid: int, word: str) -> bool:
    """Return True if process `pid` lives and has `word` in its command line (a pid in a file may have been reused)."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(word in part for part in process.cmdline())
    except psutil.Error:
        return False


def wait_gone(pid: int, word: str, timeout_s: float) -> bool:
    """Wait for another parent's process to end; return True if it did. One left by a killed parent is about to."""
    deadline = time.monotonic() + timeout_s
    while is_running(pid, word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def choose_port(server: str, wanted: int = 0, remembered: object = None) -> int:
    """Choose a loopback port for `server`: the one wanted, else the remembered one if free, else any free one.

    `remembered`: what was read from a file, which may be damaged.

    Raises PortInUse if a port was asked for by number and another process has it.
    """
    if wanted:
        if not port_is_free(wanted):
            raise PortInUse(server=server, port=wanted)
        return wanted
    if type(remembered) is int and 0 < remembered <= MAX_PORT and port_is_free(remembered):
        return remembered
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def rotate(log_path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move what a log holds to `NAME.log.1` once it is too large. Its process keeps writing to the same file: a line
    that it writes in this moment may be lost, as with logrotate's copytruncate."""
    with contextlib.suppress(FileNotFoundError):
        if log_path.stat().st_size > max_bytes:
            shutil.copyfile(log_path, log_path.with_name(f"{log_path.name}.1"))
            os.truncate(log_path, 0)


def log_tail(log_path: Path, lines: int = 3) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        text = log_path.read_text(errors="replace")
    except OSError:
        return "no log"
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:]) or "its log is empty"

"""Child processes that never outlive the process that started them: the one place that starts programs."""

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import psutil

from lagloss_server.errors import PortInUse
from lagloss_server.ops.child_environment import NOTHING, own_environment
from lagloss_server.ops.machine import port_is_free

_LAUNCHER: Final = Path(__file__).with_name("_die_with_parent.py")
LOOPBACK: Final = "127.0.0.1"
MAX_LOG_BYTES: Final = 20_000_000
Environment = Callable[[Mapping[str, str]], dict[str, str]]
"""Makes the environment of a child from the variables that it is given: `own_environment`, `foreign_environment`."""
_Argv = Sequence[object]


def python(module: str, *words: object, interpreter: str | Path = "") -> list[str]:
    """Return the command that runs a module by this Python or another, and no file of its name in the current
    directory."""
    return [str(interpreter) or sys.executable, "-P", "-m", module, *map(str, words)]


def launcher(on_parent_death: int = signal.SIGTERM, user: str | None = None) -> list[str]:
    """Return the prefix of a command that makes it run as `user`, and signals it when this process dies."""
    uid, gid = (-1, -1) if user is None else pwd.getpwnam(user)[2:4]
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *map(str, (int(on_parent_death), os.getpid(), uid, gid))]


def start(
    argv: _Argv,
    env: Mapping[str, str] = NOTHING,
    environment: Environment = own_environment,
    *,
    on_parent_death: int = signal.SIGTERM,
    user: str | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a program without input, in the environment made of `env`; `options` are Popen's.

    If this process dies, in any way, the child gets `on_parent_death`. The kernel sends it when the *thread* that
    called this ends: call from one that lives on.
    """
    command = [*launcher(on_parent_death, user), *map(str, argv)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment(env), **options)


def spawn(
    argv: _Argv,
    log_path: Path,
    *,
    env: Mapping[str, str] = NOTHING,
    environment: Environment = own_environment,
    on_parent_death: int = signal.SIGTERM,
    user: str | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, its output appended to `log_path`; see `start`. `pass_fds` are open in
    the child, too."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return start(
            argv,
            env,
            environment,
            on_parent_death=on_parent_death,
            user=user,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )


def run(
    argv: _Argv,
    env: Mapping[str, str] = NOTHING,
    environment: Environment = own_environment,
    *,
    timeout_s: float | None = None,
    on_parent_death: int = signal.SIGTERM,
    user: str | None = None,
    cwd: str | Path | None = None,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its exit code, and what it wrote as text; see `start`.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout_s`, and was killed.
    """
    how: dict[str, Any] = {"on_parent_death": on_parent_death, "user": user, "cwd": cwd}
    with start(argv, env, environment, **how, stdout=stdout, stderr=stderr, text=True, errors="replace") as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def become(argv: _Argv, env: Mapping[str, str] = NOTHING) -> NoReturn:
    """Replace this process by another of lagloss: signals and the exit code are that one's."""
    command = [*map(str, argv)]
    os.execve(command[0], command, own_environment(env))


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


def choose_port(server: str, wanted: int = 0, remembered: int | None = None) -> int:
    """Choose a loopback port for `server`: the one wanted, else the remembered one if free, else any free one.

    Raises PortInUse if a port was asked for by number and another process has it.
    """
    if wanted:
        if not port_is_free(wanted):
            raise PortInUse(server=server, port=wanted)
        return wanted
    if remembered and port_is_free(remembered):
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

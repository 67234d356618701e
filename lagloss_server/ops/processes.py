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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from lagloss_server.base.errors import AlreadyRunning, PortInUse
from lagloss_server.ops._die_with_parent import PID_BYTES, end_all, started
from lagloss_server.ops.child_environment import NOTHING, own_environment
from lagloss_server.ops.machine import port_is_free

_LAUNCHER: Final = Path(__file__).with_name("_die_with_parent.py")
LOOPBACK: Final = "127.0.0.1"
ORPHANS_END_S: Final = 8
"""What is left of a dead parent's children is killed after so long. The next parent may wait for it already."""
LEFTOVER_S: Final = 12
"""Time that a start leaves to what a killed parent left, before it kills that itself."""
DYING_S: Final = 2
"""A parent that was killed is gone after so long; one that lives on has its children."""
MAX_PORT: Final = 65_535
MAX_LOG_BYTES: Final = 20_000_000
Environment = Callable[[Mapping[str, str]], dict[str, str]]
"""Makes the environment of a child from the variables that it is given: `own_environment`, `foreign_environment`."""
_Argv = Sequence[object]


def python(module: str, *words: object, interpreter: str | Path = "") -> list[str]:
    """Return the command that runs a module by this Python or another, and no file of its name in the current
    directory."""
    return [str(interpreter) or sys.executable, "-P", "-m", module, *map(str, words)]


def launcher(on_parent_death: int = signal.SIGTERM, user: str | None = None, pid_path: Path | None = None) -> list[str]:
    """Return the prefix of a command that makes it run as `user`, and signals it when this process dies. The file at
    `pid_path` then says which process it is, for `end_leftovers`."""
    uid, gid = (-1, -1) if user is None else pwd.getpwnam(user)[2:4]
    words = (int(on_parent_death), os.getpid(), uid, gid, pid_path or "")
    return [sys.executable, "-I", "-S", str(_LAUNCHER), "launch", *map(str, words)]


def start(
    argv: _Argv,
    env: Mapping[str, str] = NOTHING,
    environment: Environment = own_environment,
    *,
    on_parent_death: int = signal.SIGTERM,
    user: str | None = None,
    pid_path: Path | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a program without input, in the environment made of `env`; `options` are Popen's.

    If this process dies, in any way, the child gets `on_parent_death`. The kernel sends it when the *thread* that
    called this ends: call from one that lives on.
    """
    command = [*launcher(on_parent_death, user, pid_path), *map(str, argv)]
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
    """Start a program in a session of its own, its output appended to `log_path`; see `start`. `pid_path_of` says which
    process it is; `pass_fds` are open in the child, too.

    If this process dies, the child is killed ORPHANS_END_S later, with all that it started.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = start(
            argv,
            env,
            environment,
            on_parent_death=on_parent_death,
            user=user,
            pid_path=pid_path_of(log_path),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    _tell_guard(process.pid)
    return process


def pid_path_of(log_path: Path) -> Path:
    """Return the file that says which process writes this log: its number and start, then its parent's."""
    return log_path.absolute().with_suffix(".pid")


def end_leftovers(what: str, folder: Path, pid_paths: Iterable[Path]) -> None:
    """Wait for the processes that a killed parent left, which are about to end; kill them after LEFTOVER_S.

    Two that work in one folder would harm each other. A process that has a leftover's number by now is left alone.

    Raises:
        AlreadyRunning: their parent lives, or the kernel does not end them.
    """
    leftovers: dict[int, str] = {}
    for path in pid_paths:
        child, parent = _read_pids(path)
        deadline = time.monotonic() + DYING_S
        while _is_alive(child) and _is_alive(parent):
            if time.monotonic() > deadline:
                raise AlreadyRunning(what=what, path=folder, pid=child[0])
            time.sleep(0.05)
        if _is_alive(child):
            leftovers[child[0]] = child[1]
    for pid in end_all(leftovers, LEFTOVER_S)[:1]:
        raise AlreadyRunning(what=what, path=folder, pid=pid)


def _is_alive(process: tuple[int, str]) -> bool:
    pid, start = process
    return bool(start) and started(pid) == start


def _read_pids(path: Path) -> tuple[tuple[int, str], tuple[int, str]]:
    """Return a child and its parent, each by number and start; those of a file that is not there are not alive."""
    try:
        child, parent = (line.split() for line in path.read_text().splitlines())
        return (int(child[0]), child[1]), (int(parent[0]), parent[1])
    except (OSError, ValueError, IndexError):
        return (0, ""), (0, "")


def _tell_guard(pid: int) -> None:
    """Have a child ended with this process, however that ends."""
    if sys.platform != "linux":
        return
    number = pid.to_bytes(PID_BYTES)
    try:
        os.write(_guard(os.getpid()), number)
    except BrokenPipeError:  # somebody killed it
        _guard.cache_clear()
        os.write(_guard(os.getpid()), number)


@cache
def _guard(pid: int) -> int:
    """Start the guard of this process's children; return the pipe that takes their numbers. A fork has its own."""
    read, write = os.pipe()
    command = [sys.executable, "-I", "-S", str(_LAUNCHER), "guard", str(pid), str(ORPHANS_END_S)]
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    env = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}  # Python's own libraries
    os.posix_spawn(command[0], command, env, file_actions=[(os.POSIX_SPAWN_DUP2, read, 0), *quiet], setsid=True)
    os.close(read)
    return write


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


def choose_port(server: str, preferred: int = 0, remembered: object = None) -> int:
    """Choose a loopback port for `server`: the one wanted, else the remembered one if free, else any free one.

    `remembered`: what was read from a file, which may be damaged.

    Raises PortInUse if a port was asked for by number and another process has it.
    """
    if preferred:
        if not port_is_free(preferred):
            raise PortInUse(server=server, port=preferred)
        return preferred
    if type(remembered) is int and 0 < remembered <= MAX_PORT and port_is_free(remembered):
        return remembered
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def rotate(log_path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move what a log holds to `NAME.log.1` once it is too large, if there is room for it. Its process keeps writing
    to the same file: a line that it writes in this moment may be lost, as with logrotate's copytruncate."""
    with contextlib.suppress(OSError):
        size = log_path.stat().st_size
        if max_bytes < size < shutil.disk_usage(log_path.parent).free:
            shutil.copyfile(log_path, log_path.with_name(f"{log_path.name}.1"))
            os.truncate(log_path, 0)


def log_tail(log_path: Path, lines: int = 3) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        text = log_path.read_text(errors="replace")
    except OSError:
        return "no log"
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:]) or "the log is empty"

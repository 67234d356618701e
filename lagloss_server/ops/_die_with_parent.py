"""What lets no child outlive its parent: a launcher between fork and exec, and a guard beside the parent.

`launch SIGNAL PARENT_PID UID GID PID_FILE PROGRAM ARGUMENT…` becomes the program, which the kernel signals when the
parent dies. `guard PARENT_PID SECONDS` reads the numbers of children from its stdin and, once the parent is gone, kills
those that are left after that time, with all that they started: one that is stopped, or hangs, obeys no signal.

Run by `processes.py` as a file with `python -I -S` (about 15 ms), so it imports nothing but the standard library. The
launcher stands between fork and exec because code run there inside a threaded parent (subprocess's preexec_fn) may
deadlock, and because root can still read a Python below its own home, which the user it drops to could not.
"""

import ctypes
import os
import select
import sys
import time

PR_SET_PDEATHSIG = 1
SIGKILL = 9
"""Not that of the module `signal`, which takes as long to import as all else here."""
PID_BYTES = 4
"""A child's number as the guard reads it: written at once, so that it is never read in halves."""
KILLED_S = 10
"""A killed process takes as long at most to be gone, unless its disk hangs."""
LOOK_EVERY_S = 0.1


def launch(arguments: list[str]) -> None:
    """Note the process in its PID_FILE (empty: none), drop to UID and GID (-1: stay), ask the kernel for the signal,
    become the program."""
    death_signal, parent, uid, gid = (int(argument) for argument in arguments[:4])
    pid_file, program = arguments[4], arguments[5:]
    if pid_file:
        _note(pid_file, parent)
    if uid >= 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        except OSError as error:  # root of a container that cannot change its user
            sys.exit(f"user {uid}: {error.strerror}")
    if sys.platform == "linux":
        # After the change of user, which would clear it. Kept across exec.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            sys.exit(1)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


def guard(parent: int, within_s: float) -> None:
    """Wait for the parent's end, then see to that of its children.

    The parent may have died before this ran: what it wrote is read all the same. Its forks keep the pipe open."""
    children: dict[int, str] = {}
    while True:
        parent_lives = os.getppid() == parent
        if select.select([0], [], [], 1 if parent_lives else 0)[0]:
            numbers = os.read(0, 1024 * PID_BYTES)
            if not numbers:
                break
            pids = [int.from_bytes(numbers[index : index + PID_BYTES]) for index in range(0, len(numbers), PID_BYTES)]
            children = {pid: start for pid, start in children.items() if started(pid) == start}
            children |= {pid: start for pid in pids if (start := started(pid))}
        elif not parent_lives:
            break
    end_all(children, within_s)


def started(pid: int) -> str:
    """Return the boot and the tick in it at which a process started, which tell it from a later one of the same
    number; empty if it is gone, a zombie, or this is no Linux."""
    return _facts(pid)[2]


def end_all(processes: dict[int, str], within_s: float) -> list[int]:
    """Wait for processes, given by number and start, and for what they started; after `within_s` kill what is left.

    Returns those that even that did not end."""
    family = dict(processes)
    deadline = time.monotonic() + within_s
    while True:
        remaining = {pid: start for pid, start in family.items() if started(pid) == start}
        over_s = time.monotonic() - deadline
        if not remaining or over_s > KILLED_S:
            return list(remaining)
        if over_s > 0:
            for pid, start in remaining.items():
                _kill(pid, start)
        family = {**remaining, **_descendants(remaining)}
        time.sleep(LOOK_EVERY_S)


def _note(pid_file: str, parent: int) -> None:
    """Write the process's number and start, then its parent's: whole or not at all."""
    draft = f"{pid_file}.new"
    try:
        with open(draft, "w") as file:  # noqa: PTH123  # pathlib, too, takes long to import
            file.write("".join(f"{pid} {started(pid)}\n" for pid in (os.getpid(), parent)))
        os.replace(draft, pid_file)  # noqa: PTH105
    except OSError:  # a full disk: then the next start does not know of it
        pass


def _descendants(family: dict[int, str]) -> dict[int, str]:
    """Return the living processes whose parent is in the family, or whose session's leader is (an orphan's)."""
    facts = {int(name): _facts(int(name)) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    descendants: dict[int, str] = {}
    while True:
        new = {
            pid: start
            for pid, (parent, session, start) in facts.items()
            if start and pid not in family and pid not in descendants and {parent, session} & {*family, *descendants}
        }
        if not new:
            return descendants
        descendants |= new


def _kill(pid: int, start: str) -> None:
    """Kill that very process: what a handle stands for stays the same one even if its number is used again."""
    import signal

    try:
        handle = os.pidfd_open(pid)
    except OSError:  # it is gone, or the kernel is older than 5.3
        handle = None
    try:
        if started(pid) != start:
            return
        if handle is None:
            os.kill(pid, SIGKILL)
        else:
            signal.pidfd_send_signal(handle, SIGKILL)
    except OSError:  # it ended by itself, or belongs to another user
        pass
    finally:
        if handle is not None:
            os.close(handle)


def _facts(pid: int) -> tuple[int, int, str]:
    """Return a process's parent, session and start."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat, open("/proc/sys/kernel/random/boot_id") as boot:  # noqa: PTH123
            fields = stat.read().rpartition(")")[2].split()  # before it the program's name, which may hold blanks
            start = "" if fields[0] in "ZX" else f"{boot.read().strip()}:{fields[19]}"
            return int(fields[1]), int(fields[3]), start
    except (OSError, IndexError):
        return 0, 0, ""


if __name__ == "__main__":
    if sys.argv[1] == "guard":
        guard(int(sys.argv[2]), float(sys.argv[3]))
    else:
        launch(sys.argv[2:])

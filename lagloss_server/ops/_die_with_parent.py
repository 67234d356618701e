"""Launcher of another program that gets a signal when its parent dies: `SIGNAL PARENT_PID UID GID PROGRAM ARGUMENT…`.

Run by `processes.py` as a file with `python -I -S` (about 15 ms), so it imports nothing but the standard library. It
stands between fork and exec because code run there inside a threaded parent (subprocess's preexec_fn) may deadlock, and
because root can still read a Python below its own home, which the user it drops to could not.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Drop to UID and GID (-1: stay), ask the kernel for the signal, become the program."""
    signal, parent, uid, gid = (int(argument) for argument in arguments[:4])
    program = arguments[4:]
    if uid >= 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        except OSError as error:  # root of a container that cannot change its user
            sys.exit(f"user {uid}: {error.strerror}")
    if sys.platform == "linux":
        # After the change of user, which would clear it. Kept across exec.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            sys.exit(1)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Check whether this machine can run lagloss: Python, Java, memory, disk, ports.

Run by set-up before anything is installed or downloaded, as a file and perhaps by an old Python, so it imports the
standard library only and keeps to the syntax of Python 3.6: `python3 -I machine.py FOLDER`. Exit code 0 or 3.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from typing import Iterator, Optional

MIN_PYTHON = (3, 11)
MIN_JAVA = 17
"""Spark 4 and Kafka 4 both need it."""
MIN_MEMORY_MB = 3500
"""Measured: Kafka, PostgreSQL, Spark and the services together take 3.3 GB while the demo runs on four cores."""
MIN_DISK_MB = 500
"""An hour of the demo: beacons, tables and logs."""
SETUP_DISK_MB = 3500
"""Measured: 3.1 GB at the peak, while pip unpacks Spark; 1.6 GB afterwards, its cache included."""
PORTS = ("DASHBOARD", "COLLECTOR", "METRICS", "ALERTING", "KAFKA", "POSTGRES")


def python_problems() -> Iterator[str]:
    """Yield the problems with the Python that runs this."""
    if sys.version_info < MIN_PYTHON:
        yield (
            "Expected Python 3.11 or newer, found {} at {}. Install one, or select one: make setup PYTHON=path"
        ).format(sys.version.split()[0], sys.executable)
    elif importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        yield "Python's venv module is missing. Install it (Debian: apt-get install python3-venv)"


def java_problems() -> Iterator[str]:
    """Yield the problems with the Java of JAVA_HOME or PATH."""
    java = java_path()
    version = java_version(java) if java else None
    if version is None or version < MIN_JAVA:
        yield (
            "Expected Java 17 or newer, found {}. Install it (Debian: apt-get install default-jre-headless) "
            "or set JAVA_HOME to its directory"
        ).format(java_found(java, version))


def java_path() -> Optional[str]:
    """Return the path of `java`: JAVA_HOME's, else the PATH's; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def java_version(java: str) -> Optional[int]:
    """Return the major version of a `java`, None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ},
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stdout.decode(errors="replace"))
    if match is None:
        return None
    return int(match.group(2) or 1) if match.group(1) == "1" else int(match.group(1))  # "1.8.0" is Java 8


def java_found(java: Optional[str], version: Optional[int]) -> str:
    """Return the finding in place of a suitable Java, for a message."""
    if java is None:
        return "none"
    return "{}, which cannot be run".format(java) if version is None else "Java {} at {}".format(version, java)


def memory_problems() -> Iterator[str]:
    """Yield a problem if this machine has too little memory for Kafka, PostgreSQL, Spark and the services."""
    memory = memory_mb()
    if memory is not None and memory < MIN_MEMORY_MB:
        yield "Expected at least {:.1f} GB of memory, found {:.1f}. Use a larger machine or raise its limit".format(
            MIN_MEMORY_MB / 1000, memory / 1000
        )


def memory_mb() -> Optional[int]:
    """Return the machine's memory in MB, or the limit of this container if that is less; None if unknown."""
    limits = []
    for path, pattern in (
        ("/proc/meminfo", r"MemTotal:\s+(\d+) kB"),
        ("/sys/fs/cgroup/memory.max", r"(\d+)"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", r"(\d+)"),
    ):
        try:
            with open(path) as file:
                match = re.search(pattern, file.read())
        except OSError:
            continue
        if match is not None:
            limits.append(int(match.group(1)) * (1000 if "meminfo" in path else 1) // 1000000)
    return min(limits) if limits else None


def free_disk_mb(folder: str) -> int:
    """Return the MB free for this process in `folder`, or in the nearest one above it that exists."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return shutil.disk_usage(folder).free // 1000000


def disk_problems(folder: str, needed_mb: int) -> Iterator[str]:
    """Yield a problem if `folder` has less than `needed_mb` MB free."""
    free_mb = free_disk_mb(folder)
    if free_mb < needed_mb:
        yield "Expected {:.1f} GB of free disk space in {}, found {:.1f}. Free some, or use another folder".format(
            needed_mb / 1000, os.path.abspath(folder), free_mb / 1000
        )


def port_problems() -> Iterator[str]:
    """Yield a problem for each port that a LAGLOSS_..._PORT variable names and that cannot be listened on."""
    for name in PORTS:
        variable = "LAGLOSS_{}_PORT".format(name)
        port = os.environ.get(variable, "")
        if port.isdigit() and 0 < int(port) < 65536 and not port_is_free(int(port)):
            yield (
                "Port {} ({}) is used by another process. Stop it (`ss -ltnp | grep :{}` shows the process), or choose "
                "another port; 0 selects a free one"
            ).format(port, variable, port)


def port_is_free(port: int) -> bool:
    """Return True if a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def setup_problems(folder: str) -> Iterator[str]:
    """Yield every reason why set-up in `folder`, or the demo after it, cannot work."""
    yield from python_problems()
    yield from java_problems()
    yield from memory_problems()
    yield from disk_problems(folder, SETUP_DISK_MB)
    yield from port_problems()


if __name__ == "__main__":
    missing = list(setup_problems(sys.argv[1]))
    for line in missing:
        sys.stderr.write("setup: {}\n".format(line))
    sys.exit(3 if missing else 0)

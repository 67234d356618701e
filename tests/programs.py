"""The programs outside Python that some tests need: `need` returns one or skips the test, `make test-tools` installs
them.

As a script it runs before anything is installed: `python3 tests/programs.py`, standard library only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

ALL_TESTS = "LAGLOSS_ALL_TESTS"
"""Set to 1, it makes a missing program a failure."""
SKIPPED = "not on this machine: "


def _which(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


def _chromium() -> str | None:
    path = os.environ.get("LAGLOSS_CHROMIUM") or _which("chromium")
    fonts = _which("fc-list") and subprocess.run(["fc-list"], capture_output=True, check=False).stdout
    return path if fonts else None  # without fonts, texts on a page have no width


def _pango() -> str | None:
    try:
        for library in ("libpango-1.0.so.0", "libpangoft2-1.0.so.0", "libharfbuzz-subset.so.0"):
            ctypes.CDLL(library)
    except OSError:
        return None
    return library


@dataclass(frozen=True)
class Program:
    """`find` returns the path, None if it is not there; `packages` are Debian's."""

    find: Callable[[], str | None]
    packages: tuple[str, ...]


PROGRAMS = {
    "chromium": Program(_chromium, ("chromium", "fontconfig", "fonts-dejavu-core")),
    "alertmanager": Program(lambda: _which("prometheus-alertmanager", "alertmanager"), ("prometheus-alertmanager",)),
    "prometheus": Program(lambda: _which("prometheus"), ("prometheus",)),
    "promtool": Program(lambda: _which("promtool"), ("prometheus",)),
    "pango": Program(_pango, ("libpango-1.0-0", "libpangoft2-1.0-0", "libharfbuzz-subset0")),
    "curl": Program(lambda: _which("curl"), ("curl",)),
    "openssl": Program(lambda: _which("openssl"), ("openssl",)),
}


@cache
def find(name: str) -> str | None:
    """Return where a program of PROGRAMS is, None if this machine has not got it."""
    return PROGRAMS[name].find()


def need(name: str) -> str:
    """Return where a program is. Where it is missing the test is skipped; with LAGLOSS_ALL_TESTS=1 it fails."""
    import pytest

    path = find(name)
    if path is None:
        if os.environ.get(ALL_TESTS) == "1":
            pytest.fail(f"{name} is missing: run `make test-tools`")
        pytest.skip(f"{SKIPPED}{name}")
    return path


def install() -> int:
    """Install the missing programs by apt-get; return 0, or 3 with the command for somebody who may run it."""
    packages = sorted({package for each in PROGRAMS.values() if each.find() is None for package in each.packages})
    if not packages:
        sys.stdout.write("test-tools: every program is there\n")
        return 0
    apt = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    if shutil.which("apt-get") is None or (as_root and shutil.which("sudo") is None):
        sys.stderr.write(f"test-tools: as root, run: apt-get update && {' '.join(apt)}\n")
        return 3
    # RUNLEVEL=1: the services in these packages are not started.
    settings = ["env", "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive"]
    for command in (["apt-get", "update", "-qq"], [*settings, *apt, "-qq"]):
        if subprocess.run([*as_root, *command], check=False).returncode != 0:
            return 3
    missing = [name for name, each in PROGRAMS.items() if each.find() is None]
    if missing:
        sys.stderr.write(f"test-tools: still missing: {', '.join(missing)}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(install())

"""The programs outside Python that some tests need: `need` returns one or skips the test, `make test-tools` installs
or builds them.

As a script it runs before anything is installed: `python3 tests/programs.py`, standard library only.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ALL_TESTS = "LAGLOSS_ALL_TESTS"
"""Set to 1, it makes a missing program a failure."""
SKIPPED = "not on this machine: "
TOOLS = Path(__file__).resolve().parents[1] / ".tools"
"""Where programs are that Debian has not got, and Go builds: each in a folder of its version."""
HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
APICURIO = "io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all"
APICURIO_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"


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


def _built(module: str) -> Path:
    """Return where the program of a Go module, `PATH@VERSION`, is once it is built."""
    path, version = module.split("@")
    return TOOLS / f"{path.rpartition('/')[2]}@{version}" / path.rpartition("/")[2]


def _jars(name: str) -> str | None:
    """Return the folder of the jars that `tests/support/NAME_jars.lock` lists, once they are all there."""
    root = Path(__file__).resolve().parents[1]
    jars = Path(os.environ.get("LAGLOSS_JARS_DIR") or root / ".jars")
    lines = (root / "tests" / "support" / f"{name}_jars.lock").read_text().splitlines()
    paths = [jars / line.split()[1] for line in lines if line and not line.startswith("#")]
    return str(jars / name.replace("_", "-")) if all(path.is_file() for path in paths) else None


def _unpacked(artifact: str) -> Path:
    """Return where a Maven artifact, `GROUP:NAME:VERSION:TYPE:CLASSIFIER`, is once it is unpacked."""
    _, name, version, *_ = artifact.split(":")
    return TOOLS / f"{name}@{version}"


@dataclass(frozen=True)
class Program:
    """`find` returns the path, None if it is not there; `packages` are Debian's, or Go builds it from `module`, or
    Maven fetches `artifact`, an archive of this SHA-256, or the virtual environment's Python fetches it (`make
    test-tools` does that last)."""

    find: Callable[[], str | None]
    packages: tuple[str, ...] = ()
    module: str = ""
    artifact: str = ""
    sha256: str = ""
    is_fetched: bool = False


PROGRAMS = {
    "chromium": Program(_chromium, ("chromium", "fontconfig", "fonts-dejavu-core")),
    "alertmanager": Program(lambda: _which("prometheus-alertmanager", "alertmanager"), ("prometheus-alertmanager",)),
    "prometheus": Program(lambda: _which("prometheus"), ("prometheus",)),
    "promtool": Program(lambda: _which("promtool"), ("prometheus",)),
    "pango": Program(_pango, ("libpango-1.0-0", "libpangoft2-1.0-0", "libharfbuzz-subset0")),
    "curl": Program(lambda: _which("curl"), ("curl",)),
    "openssl": Program(lambda: _which("openssl"), ("openssl",)),
    "iproute2": Program(lambda: _which("ip"), ("iproute2",)),
    "cc": Program(lambda: _which("cc"), ("gcc", "libc6-dev")),
    "nftables": Program(lambda: _which("nft"), ("nftables",)),
    "helm": Program(lambda: _which(str(_built(HELM)), "helm"), module=HELM),
    "apicurio": Program(
        lambda: str(_unpacked(APICURIO)) if _unpacked(APICURIO).is_dir() else None,
        () if _which("mvn") else ("maven",),
        artifact=APICURIO,
        sha256=APICURIO_SHA256,
    ),
    "kafka-connect": Program(lambda: _jars("connect"), is_fetched=True),
    "kafka-connect-jdbc": Program(lambda: _jars("connect_jdbc"), is_fetched=True),
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
    """Install the missing programs by apt-get, or build them by Go; return 0, or 3 with what is left to do."""
    missing = [each for each in PROGRAMS.values() if not each.is_fetched and each.find() is None]
    packages = sorted({package for each in missing for package in each.packages})
    if packages and not _install(packages):
        return 3
    for module in {each.module for each in missing if each.module}:
        _build(module)
    for each in missing:
        if each.artifact:
            _fetch(each.artifact, each.sha256)
    left = [name for name, each in PROGRAMS.items() if not each.is_fetched and each.find() is None]
    if left:
        sys.stderr.write(f"test-tools: still missing: {', '.join(left)}\n")
        return 3
    sys.stdout.write("test-tools: every program is there\n")
    return 0


def _install(packages: list[str]) -> bool:
    """Install Debian's packages; return False if that cannot be done, and say how it can."""
    apt = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    if shutil.which("apt-get") is None or (as_root and shutil.which("sudo") is None):
        sys.stderr.write(f"test-tools: as root, run: apt-get update && {' '.join(apt)}\n")
        return False
    # RUNLEVEL=1: the services in these packages are not started.
    settings = ["env", "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive"]
    commands = (["apt-get", "update", "-qq"], [*settings, *apt, "-qq"])
    return all(subprocess.run([*as_root, *command], check=False).returncode == 0 for command in commands)


def _build(module: str) -> None:
    """Build a Go module's program, and leave nothing but that: Go's caches of it are a gigabyte."""
    go = shutil.which("go")
    if go is None:
        sys.stderr.write(f"test-tools: {module} is built by Go, 1.26 or newer: install that, or the program itself\n")
        return
    sys.stdout.write(f"test-tools: building {module} (some minutes)\n")
    sys.stdout.flush()
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        env = {
            **os.environ,
            "GOPATH": f"{scratch}/path",
            "GOCACHE": f"{scratch}/cache",
            "GOBIN": f"{scratch}/bin",
            "GOFLAGS": "-modcacherw -trimpath",
        }
        if subprocess.run([go, "install", "-ldflags=-s -w", module], env=env, check=False).returncode == 0:
            shutil.rmtree(_built(module).parent, ignore_errors=True)
            Path(env["GOBIN"]).rename(_built(module).parent)


def _fetch(artifact: str, sha256: str) -> None:
    """Fetch an archive by Maven, and unpack it."""
    _, name, version, kind, classifier = artifact.split(":")
    sys.stdout.write(f"test-tools: fetching {name} {version}\n")
    sys.stdout.flush()
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}"]
        if subprocess.run(["mvn", "--quiet", "--batch-mode", "-Dstyle.color=never", *goal], check=False).returncode:
            return
        archive = Path(scratch, f"{name}-{version}-{classifier}.{kind}")
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            sys.stderr.write(f"test-tools: {archive.name} has the SHA-256 {found}, expected {sha256}\n")
            return
        unpacked = Path(scratch, "unpacked")
        with tarfile.open(archive) as packed:
            packed.extractall(unpacked, filter="data")
        unpacked.rename(_unpacked(artifact))


if __name__ == "__main__":
    sys.exit(install())

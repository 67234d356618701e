"""Fetch the jars that Spark and the embedded broker need, and check each against a committed SHA-256.

`python -m lagloss_server.ops.jars` shows its progress, `… jars spark` fetches that set only; `--lock` writes the lock
anew after a change of versions. They come through Ivy, which is inside the pyspark wheel, so nothing but Java has to be
on the machine.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lagloss.errors import LaglossError
from lagloss_server.base.errors import JarMismatch, JarsMissing, JarsNotFetched, SparkMissing
from lagloss_server.ops.child_environment import PACKAGES, foreign_environment
from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import start


@dataclass(frozen=True)
class JarSet:
    """Jars to request from Ivy: coordinates `organisation:name:version`, with their dependencies if `transitive`.

    `lock`: the file of their SHA-256, by default the packaged one.
    """

    name: str
    coordinates: tuple[str, ...]
    transitive: bool
    lock: Path | None = None

    def locked(self) -> list[LockedJar]:
        """Return the jars of this set that its lock names."""
        lock = read_lock() if self.lock is None else read_lock(self.lock.read_text())
        return [jar for jar in lock if jar.kind == self.name]


SPARK: Final = JarSet(
    "spark",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",  # decision 24
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    transitive=False,  # the rest is inside pyspark
)
BROKER: Final = JarSet(
    "broker",
    ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    transitive=True,
)
SETS: Final = (SPARK, BROKER)

Report = Callable[[str, int, int], None]
"""Progress callback: (a line to show, jars done, jars to do)."""


@dataclass(frozen=True)
class LockedJar:
    """A jar of the lock, with its set, SHA-256 in hex, and Maven's coordinates, `group:artifact:version`."""

    kind: str
    name: str
    sha256: str
    coordinates: str = ""

    def path(self, root: Path) -> Path:
        return root / self.kind / self.name


def jars_dir() -> Path:
    """Return the jars' folder: LAGLOSS_JARS_DIR, else `.jars` of the checkout this runs from, else the user's cache."""
    if folder := os.environ.get("LAGLOSS_JARS_DIR"):
        return Path(folder)
    if (PACKAGES / "pyproject.toml").exists():
        return PACKAGES / ".jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lagloss" / "jars"


def read_lock(text: str | None = None) -> list[LockedJar]:
    """Return a lock's jars, by default the packaged one's.

    Its lines are in the format of `sha256sum`, so `sha256sum -c` in the jars' folder checks them too. The comment above
    a jar has its coordinates.
    """
    if text is None:
        text = resources.files("lagloss_server.ops").joinpath("jars.lock").read_text()
    jars, coordinates = [], ""
    for line in text.splitlines():
        if line.startswith("#"):
            coordinates = line.removeprefix("#").strip()
        elif line:
            sha256, path = line.split()
            kind, name = path.split("/")
            jars.append(LockedJar(kind, name, sha256, coordinates))
    return jars


def spark_home() -> Path | None:
    """Return the folder of pyspark; None if it is not installed, or not with its jars."""
    spec = importlib.util.find_spec("pyspark")  # found, not imported: importing pyspark takes a second
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders and Path(folders[0], "jars").is_dir() else None


def require_spark() -> Path:
    """Return the folder of pyspark. Raises SparkMissing."""
    home = spark_home()
    if home is None:
        raise SparkMissing
    return home


def spark_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector, for `spark.jars`. Raises JarsMissing."""
    return present(SPARK)


def broker_jars() -> list[Path]:
    """Return the embedded broker's class path. Raises JarsMissing."""
    return present(BROKER)


def present(jar_set: JarSet) -> list[Path]:
    """Return the class path of a set. Raises JarsMissing."""
    root = jars_dir()
    locked = jar_set.locked()
    # Whole files are enough here: ensure() has compared them, and moves only finished ones into place.
    missing = [jar for jar in locked if not jar.path(root).is_file()]
    if missing:
        raise JarsMissing(count=len(missing), total=len(locked), kind=jar_set.name, path=root, example=missing[0].name)
    return [jar.path(root) for jar in locked]


def ensure(progress: Report | None = None, sets: tuple[JarSet, ...] = SETS) -> None:
    """Fetch all jars that are missing or differ from the lock; needs no network if there are none.

    A jar that differs (half-downloaded, edited) is fetched again and reported to `progress`. Raises JavaMissing,
    JarsNotFetched, and JarMismatch if a fetched jar differs from the lock.
    """
    report = progress or _silent
    root = jars_dir()
    if not any(differs(jar, root) for jar_set in sets for jar in jar_set.locked()):
        return  # nothing to write: the folder may belong to another user
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / ".lock"):
            for jar_set in sets:
                bad = _remove_bad(jar_set, root, report)
                if bad:
                    _fetch_locked(jar_set, bad, root, report)
    except PermissionError as error:
        raise JarsNotFetched(detail=f"cannot write {error.filename} ({error.strerror})", log="none") from error


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differs(jar: LockedJar, root: Path) -> bool:
    """Return True if a jar is missing or differs from the lock."""
    path = jar.path(root)
    return not path.is_file() or sha256_of(path) != jar.sha256


def _remove_bad(jar_set: JarSet, root: Path, report: Report) -> list[LockedJar]:
    """Return the set's jars that are missing or not as locked, and delete the latter."""
    bad = []
    for jar in jar_set.locked():
        if not differs(jar, root):
            continue
        bad.append(jar)
        if jar.path(root).exists():
            report(f"{jar.name} is damaged, possibly an interrupted download: downloading it again", 0, 0)
            jar.path(root).unlink()
    return bad


def _fetch_locked(jar_set: JarSet, bad: list[LockedJar], root: Path, report: Report) -> None:
    ivy_cache = root / ".ivy"  # kept if this is interrupted: the next call resumes where this one stopped
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetched-") as scratch:
        fetched = _fetch(jar_set, ivy_cache, Path(scratch), len(jar_set.locked()), report)
        for jar in bad:
            path = fetched / jar.name
            if not path.exists():
                raise JarsNotFetched(detail=f"the repository did not provide {jar.name}", log=root / "fetch.log")
            sha256 = sha256_of(path)
            if sha256 != jar.sha256:
                shutil.rmtree(ivy_cache, ignore_errors=True)
                raise JarMismatch(jar=jar.name, found=sha256, expected=jar.sha256)
            jar.path(root).parent.mkdir(exist_ok=True)
            path.replace(jar.path(root))
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _fetch(
    jar_set: JarSet, ivy_cache: Path, scratch: Path, expected: int, report: Report, options: tuple[str, ...] = ()
) -> Path:
    """Let Ivy put the set's jars into a folder, which is returned. `expected` is for the progress only."""
    java = find_java()
    (scratch / "ivy.xml").write_text(_ivy_module(jar_set))
    out = scratch / "jars"
    settings = os.environ.get("LAGLOSS_IVY_SETTINGS")
    command = [
        java,
        # Java waits for ever by default; a dead network should be an error.
        "-Dsun.net.client.defaultConnectTimeout=20000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *("-cp", _ivy_jar(), "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-cache", ivy_cache, "-ivy", scratch / "ivy.xml"),
        *("-retrieve", f"{out}/[artifact]-[revision].[ext]"),
        *options,
    ]
    log_path = jars_dir() / "fetch.log"
    done = 0
    report(f"downloading the {jar_set.name} jars: resolving dependencies", 0, expected)
    with (
        log_path.open("w") as log,
        start(
            command,
            environment=foreign_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as ivy,
    ):
        try:
            for line in ivy.stdout or ():
                log.write(line)
                if "[SUCCESSFUL ]" in line:
                    done += 1
                    name = re.search(r"!(\S+?)\(|!(\S+)", line)
                    report((name[1] or name[2]) if name else "a jar", min(done, expected), expected)
        except BaseException:  # Ctrl-C too: Ivy has a session of its own and would continue
            ivy.kill()
            raise
    if ivy.returncode != 0 or not out.exists():
        problems = [
            line.strip() for line in log_path.read_text().splitlines() if re.search("UNRESOLVED|FAILED|rror", line)
        ]
        raise JarsNotFetched(
            detail=problems[-1] if problems else f"Ivy exited with code {ivy.returncode}", log=log_path
        )
    return out


def _ivy_jar() -> Path:
    return max(require_spark().glob("jars/ivy-*.jar"))


def _ivy_module(jar_set: JarSet) -> str:
    lines = []
    for coordinate in jar_set.coordinates:
        org, name, rev = map(quoteattr, coordinate.split(":"))
        transitive = str(jar_set.transitive).lower()
        lines.append(f'<dependency org={org} name={name} rev={rev} transitive="{transitive}" conf="default"/>')
    return (
        f'<ivy-module version="2.0"><info organisation="lagloss" module="{jar_set.name}"/>'
        f'<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Allow one fetching process at a time; the kernel releases the lock if its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _silent(line: str, done: int, total: int) -> None:
    """Show nothing."""


def write_lock(path: Path, sets: tuple[JarSet, ...] = SETS) -> None:
    """Fetch these sets anew and write the result as their lock, for a maintainer who changed a version.

    Ivy compares each jar with the checksum that its repository publishes. Raises JarsNotFetched if one differs, or if
    there is none.
    """
    lines = [
        "# SHA-256 of every jar, as sha256sum prints it, below its coordinates, group:artifact:version. Each agrees",
        "# with the SHA-1 that its repository publishes. Written by `make lock`; see jars.py for the reasons.",
    ]
    for jar_set in sets:
        with tempfile.TemporaryDirectory(dir=jars_dir(), prefix=".fetched-") as scratch:
            folder, report = Path(scratch), lambda line, *_: print(line)  # noqa: T201
            # only with -verbose does Ivy say which files it has compared
            out = _fetch(jar_set, folder / "ivy", folder, 0, report, ("-verbose",))
            for coordinates, name in _confirmed(jars_dir() / "fetch.log"):
                lines += [f"# {coordinates}", f"{sha256_of(out / name)}  {jar_set.name}/{name}"]
    path.write_text("\n".join(lines) + "\n")


def _confirmed(log: Path) -> list[tuple[str, str]]:
    """Return coordinates and file of each jar that Ivy has fetched, by its log. Raises JarsNotFetched."""
    text = log.read_text()
    compared = set(re.findall(r"^sha1 OK for \S+/(\S+\.jar)$", text, re.MULTILINE))
    fetched = sorted(re.findall(r"SUCCESSFUL \] (\S+)#(\S+);(\S+)!\S+\.jar", text))
    jars = [(f"{group}:{name}:{version}", f"{name}-{version}.jar") for group, name, version in fetched]
    for _, file in jars:
        if file not in compared:
            raise JarsNotFetched(detail=f"the repository publishes no checksum of {file}", log=log)
    return jars


@contextmanager
def shown_progress(console: Console) -> Iterator[Report]:
    """Show a progress bar on a terminal, plain lines elsewhere; nothing at all while there is nothing to fetch."""
    if not console.is_terminal:
        yield lambda line, done, total: console.print(f"  jars {done}/{total} {line}" if total else f"  {line}")
        return
    columns = (SpinnerColumn(), TextColumn("jars"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", visible=False)

        def report(line: str, done: int, total: int) -> None:
            if total:
                bar.update(task, description=line, completed=done, total=total, visible=True)
            else:
                bar.console.print(line)

        yield report


def main() -> int:
    """Fetch the jars; return exit code 0, or an error's."""
    parser = argparse.ArgumentParser(
        prog="python -m lagloss_server.ops.jars", description="download the jars that lagloss needs"
    )
    parser.add_argument("--lock", action="store_true", help="rewrite jars.lock from the repository")
    parser.add_argument(
        "set", nargs="?", choices=[jar_set.name for jar_set in SETS], help="sets of jars to download (default: all)"
    )
    arguments = parser.parse_args()
    sets = tuple(jar_set for jar_set in SETS if arguments.set in (None, jar_set.name))
    console = Console(stderr=True)
    try:
        if arguments.lock:
            jars_dir().mkdir(parents=True, exist_ok=True)
            write_lock(Path(__file__).with_name("jars.lock"))
        with shown_progress(console) as report:
            ensure(report, sets)
    except LaglossError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted; run it again to resume", style="yellow")
        return 130
    console.print(f"jars: {sum(len(jar_set.locked()) for jar_set in sets)} ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())

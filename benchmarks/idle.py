"""What `lagloss up` takes of a laptop while nothing happens: memory and CPU of each of its parts, after some minutes in
an empty data folder: `python -m benchmarks.idle --minutes 10`, with the canary by `--canary`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from benchmarks.figures import Figure, table
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import log_tail, python, spawn, terminate

MINUTES: Final = 10.0
MEASURED_S: Final = 120.0
"""CPU is that of the last so many seconds, or of half the time if that is less."""
READY_S: Final = 300.0
MAX_MB: Final = 1_500.0
SERVICES: Final = ("aggregator", "alerting", "taps", "dashboard", "collector", "canary")
PARTS: Final = ("Kafka", "PostgreSQL", "aggregator", "Spark", "Spark's workers", *SERVICES[1:], "supervisor")


def run(minutes: float = MINUTES, *, canary: bool = False) -> list[Figure]:
    """Print and return memory (MB of PSS) and CPU (cores) of the parts of an idle `lagloss up`, without its canary,
    which keeps it busy, or with it."""
    with _up(canary=canary) as root:
        measured_s = min(MEASURED_S, minutes * 30)
        time.sleep(minutes * 60 - measured_s)
        before = {name: _cpu_s(part) for name, part in parts(root).items()}
        time.sleep(measured_s)
        by_part = parts(root)
        cores = {name: (_cpu_s(part) - before.get(name, 0.0)) / measured_s for name, part in by_part.items()}
        memory = {name: list(filter(None, map(_memory, part))) for name, part in by_part.items()}
    return _figures(minutes, cores, memory, canary=canary)


def _figures(
    minutes: float,
    cores: Mapping[str, float],
    memory: Mapping[str, Sequence[tuple[float, float]]],
    *,
    canary: bool,
) -> list[Figure]:
    print("| part | processes | PSS | of it files | CPU |\n|---|---|---|---|---|")
    for name in (name for name in PARTS if name in memory):
        pss, files = (sum(values[index] for values in memory[name]) for index in (0, 1))
        print(f"| {name} | {len(memory[name])} | {pss:,.0f} MB | {files:,.0f} MB | {cores[name]:.3f} cores |")
    total_mb = sum(pss for values in memory.values() for pss, _ in values)
    return [
        Figure(f"`lagloss up` after {minutes:g} idle minutes", total_mb, "MB", None if canary else MAX_MB),
        Figure("its CPU", sum(cores.values()), "cores"),
    ]


@contextmanager
def _up(*, canary: bool) -> Iterator[psutil.Process]:
    """Run `lagloss up` in an empty data folder, with servers of its own; yield its process once it is ready."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL's user passes
        data_dir, log = Path(folder) / "data", Path(folder) / "up.log"
        unset = {"LAGLOSS_KAFKA_BOOTSTRAP": "", "LAGLOSS_DATABASE_URL": ""}
        unset |= {"LAGLOSS_CANARY": "on" if canary else "off"}
        command = python("lagloss_server.cli.main", "up", "--data-dir", data_dir)
        process = spawn(command, log, env=unset)
        try:
            ends = time.monotonic() + READY_S
            while "ready; Ctrl-C" not in (text := log.read_text()):
                if process.poll() is not None or time.monotonic() > ends:
                    raise SystemExit(f"`lagloss up` is not ready: {log_tail(log, 20)}")
                time.sleep(0.2)
            print(text, end="", flush=True)
            yield psutil.Process(process.pid)
        finally:
            terminate(process, 60)
            EmbeddedPostgres.remove(data_dir / "postgres")


def parts(root: psutil.Process) -> dict[str, list[psutil.Process]]:
    """Return the processes of a running `up` by the part that they belong to."""
    processes: dict[str, list[psutil.Process]] = defaultdict(list)
    for child in root.children():
        with suppress(psutil.NoSuchProcess):
            name = _part(child)
            for process in (child, *child.children(recursive=True)):
                processes[_role(name, process, child)].append(process)
    processes["supervisor"].append(root)
    return processes


def _part(child: psutil.Process) -> str:
    command = child.cmdline()
    if "kafka.Kafka" in command:
        return "Kafka"
    if Path(command[0]).name.startswith("postgres"):
        return "PostgreSQL"
    return next((name for name in SERVICES if name in command), "supervisor")  # its guard


def _role(name: str, process: psutil.Process, child: psutil.Process) -> str:
    if name != "aggregator" or process == child:
        return name
    return "Spark" if process.name() == "java" else "Spark's workers"


def _memory(process: psutil.Process) -> tuple[float, float] | None:
    """Return the MB of a process, each page that it shares divided by how many share it, and those of them that are
    pages of files; None if it has ended, as PostgreSQL's workers do."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return None
    values = {name: int(value.split()[0]) / 1_000 * 1.024 for name, value in (line.split(":") for line in lines)}
    return values["Pss"], values["Pss_File"]


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of these processes and of those children of theirs that have ended."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    """Measure for as long as the command line says, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--canary", action="store_true")
    arguments = parser.parse_args()
    figures = run(arguments.minutes, canary=arguments.canary)
    print(table(figures))
    sys.exit(not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    main()

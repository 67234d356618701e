"""A soak: all services on thousands of emitters and pipelines with faults, their memory, CPU and lags each 10 s, and
whether memory stays flat and every window is as the traffic made it: `python -m benchmarks.soak --minutes 60`.

Writes docs/images/soak.csv and draws docs/images/soak.png from it. With `--kill-every 2` the alerter and then the
aggregator, again and again, are killed each so many minutes; then nothing is drawn, and memory may grow.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import multiprocessing
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import numpy as np
import psutil
from plotly.subplots import make_subplots
from sqlalchemy import text, update

from benchmarks.chart import IMAGES, draw
from benchmarks.database import Servers, fresh_servers
from benchmarks.generated import fill
from benchmarks.services import Service, running
from benchmarks.soak_traffic import NODES, Outcome, Run, fault_of, pipeline_name, send
from lagloss.wire.format import WINDOW_S
from lagloss_server.ops.processes import log_tail
from lagloss_server.store.schema.core import EmitterRow
from lagloss_server.store.store import Store

PIPELINES: Final = 2_000
EMITTERS: Final = 5_000
MINUTES: Final = 60
SAMPLE_S: Final = 10.0
PROCESSES: Final = ("aggregator", "Spark", "Spark's workers", "alerting", "dashboard", "Kafka", "PostgreSQL")
HISTORY_H: Final = 6
"""Hours of windows that are stored before: what services keep of a pipeline's windows is at its level then."""
_SETTINGS: Final = {"LAGLOSS_VERIFY_SHARE": "0.25"}
"""Read a window in four though it is proven: Spark's workers have met every pipeline in the first half then."""
READERS: Final = 5
READ_S: Final = 5.0
WARM_S: Final = 8
"""From the start of the traffic's process to its first whole minute, at least."""
FLAT_SHARE: Final = 0.1
FLAT_MB: Final = 16.0
"""Memory is flat if it grows in an hour by no more than this share, or by this much if that is more."""
SETTLED_S: Final = 120
_SPAWN: Final = multiprocessing.get_context("spawn")
Sample = dict[str, float]


def run(
    minutes: int = MINUTES,
    pipelines: int = PIPELINES,
    emitters: int = EMITTERS,
    out: Path = IMAGES,
    kill_every: float | None = None,
) -> None:
    """Run it, write and draw its samples, and fail where memory grows or a window is wrong."""
    with fresh_servers() as servers, ExitStack() as stack:
        _fill(servers.store, pipelines)
        services = {
            name: stack.enter_context(running(name, servers.folder, {**servers.env, **_SETTINGS}))
            for name in ("aggregator", "alerting", "dashboard")
        }
        services["aggregator"].await_answer("/healthz", 120)
        services["dashboard"].await_answer("/healthz", 120)
        begins_s = (int(time.time()) + WARM_S) // WINDOW_S * WINDOW_S + WINDOW_S
        plan = Run(pipelines, emitters, begins_s, minutes)
        queue: multiprocessing.Queue[float] = _SPAWN.Queue()
        traffic = _SPAWN.Process(target=send, args=(servers.kafka.bootstrap, plan, queue), daemon=True)
        traffic.start()
        reading = stack.enter_context(_reading(services["dashboard"].url, pipelines))
        sampler = _Sampler(servers, services, reading, plan)
        print(f"{pipelines:,} pipelines, {emitters:,} emitters, {minutes} minutes from {time.ctime(begins_s)}")
        samples = list(_sampled(sampler, traffic, servers.folder if kill_every else out, kill_every))
        print(f"the sender was {queue.get(timeout=10):.1f} s late at most")
        wrong = _await_verdicts(servers.store, plan)
        wrong += _paged_wrongly(servers.store, plan)
        logs = {name: _warnings(service.log) for name, service in services.items()}
    if kill_every is None:
        plot(samples, out / "soak.png")
    for name, warnings in logs.items():
        print(f"{name}: {sum(warnings.values())} warnings and errors: {dict(warnings.most_common(5))}")
    growing = _growing(samples)
    wrong += growing if kill_every is None else ()
    if wrong:
        raise SystemExit("; ".join(wrong))
    print("every window is as expected")


def _fill(store: Store, pipelines: int) -> None:
    """Store the pipelines with some hours of windows, whose emitters have ended."""
    fill(store, list(map(pipeline_name, range(pipelines))), len(NODES), HISTORY_H / 24, rollup_days=1, lossy=0)
    with store.engine.begin() as connection:
        connection.execute(update(EmitterRow).values(closed=True))


@contextmanager
def _reading(url: str, pipelines: int) -> Iterator[list[float]]:
    """Let some readers ask for the overview and a pipeline each few seconds; yield how long (s) answers took,
    without end where there was none."""
    took_s, over = list[float](), threading.Event()

    def read(number: int) -> None:
        paths = ["/api/v1/overview?limit=100", f"/api/v1/pipelines/{pipeline_name(number * 7 % pipelines)}"]
        with httpx2.Client(base_url=url, timeout=60) as client:
            over.wait(number)
            while not over.wait(READ_S):
                for path in paths:
                    began = time.perf_counter()
                    try:
                        client.get(path).raise_for_status()
                    except httpx2.HTTPError:
                        began = float("-inf")
                    took_s.append(time.perf_counter() - began)

    readers = [threading.Thread(target=read, args=[number]) for number in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        yield took_s
    finally:
        over.set()
        for reader in readers:
            reader.join()


@dataclass
class _Sampler:
    servers: Servers
    services: Mapping[str, Service]
    reading: list[float]
    plan: Run
    cpu_s: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """By process and pid, of those that have ended, too."""
    closing: tuple[float, float] = (0.0, 0.0)
    """Sum and count of `lagloss_closing_seconds`."""
    sampled_s: float = 0.0

    def sample(self) -> Sample:
        """Measure everything once."""
        now_s = time.time()
        sample: Sample = {"minute": round((now_s - self.plan.begins_s) / 60, 2)}
        for name, processes in self._processes().items():
            sample |= self._usage(name, processes, now_s - self.sampled_s)
        self.sampled_s = now_s
        return sample | self._lags(now_s)

    def _processes(self) -> dict[str, list[psutil.Process]]:
        roots = {name: service.pid for name, service in self.services.items()}
        roots |= {"Kafka": self.servers.kafka.processes[0].pid, "PostgreSQL": self.servers.postgres.processes[0].pid}
        processes: dict[str, list[psutil.Process]] = {name: [] for name in PROCESSES}
        for name, pid in roots.items():
            try:
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    processes[_role(name, process, root)].append(process)
            except psutil.NoSuchProcess:
                log = self.services[name].log if name in self.services else self.servers.kafka.log_path
                raise SystemExit(f"{name} has ended: {log_tail(log, 30)}") from None
        return processes

    def _usage(self, name: str, processes: Sequence[psutil.Process], passed_s: float) -> Sample:
        memory = threads = files = 0
        before_s = sum(self.cpu_s[name].values())
        for process in processes:
            try:
                memory += _own_memory(process.pid)
                threads += process.num_threads()
                files += process.num_fds()
                times = process.cpu_times()
            except (psutil.Error, OSError):
                continue
            self.cpu_s[name][process.pid] = times.user + times.system
        cores = (sum(self.cpu_s[name].values()) - before_s) / passed_s
        return {
            f"{name} MB": round(memory / 1e6, 1),
            f"{name} threads": threads,
            f"{name} files": files,
            f"{name} cores": round(cores, 3),
        }

    def _lags(self, now_s: float) -> Sample:
        try:
            exposed = httpx2.get(f"{self.services['aggregator'].url}/metrics", timeout=30).text
        except httpx2.HTTPError:
            exposed = ""
        seconds, count = (_metric(exposed, f"lagloss_closing_seconds_{part}") for part in ("sum", "count"))
        before, self.closing = self.closing, (seconds, count) if exposed else self.closing
        took_s = self.reading[:]
        del self.reading[: len(took_s)]
        with self.servers.store.engine.connect() as connection:
            wal_mb = float(connection.execute(text("SELECT (pg_current_wal_lsn() - '0/0') / 1e6")).scalar_one())
            newest = connection.execute(text("SELECT max(sent_at) FROM emitter")).scalar_one() or 0
            since = {"since": now_s - 1_800}
            counted = 'SELECT window_start, count(*) AS windows FROM "window" WHERE window_start > :since GROUP BY 1'
            closed = {row.window_start: row.windows for row in connection.execute(text(counted), since)}
        whole = [start_s for start_s, number in closed.items() if number >= self.plan.pipelines]
        return {
            "reports lag s": _metric(exposed, "lagloss_reports_lag_seconds"),
            "live age s": round(time.time() - newest / 1_000, 2) if newest else float("nan"),
            "closing s": round((seconds - before[0]) / (count - before[1]), 3) if count > before[1] else float("nan"),
            "newest whole minute s": round(now_s - max(whole) - WINDOW_S, 1) if whole else float("nan"),
            "WAL MB": round(wal_mb),
            "roll-ups dirty": _metric(exposed, "lagloss_rollups_dirty"),
            "answer s": round(max(took_s), 3) if took_s else float("nan"),
        }


def _own_memory(pid: int) -> int:
    """Return the bytes that are a process's own, each of those that it shares divided by how many share it. Pages of
    files are not: they go when others need the memory, and their share depends on what else runs."""
    values = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(values[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))


def _role(name: str, process: psutil.Process, root: psutil.Process) -> str:
    if name != "aggregator" or process == root:
        return name
    return "Spark" if process.name() == "java" else "Spark's workers"


def _metric(exposed: str, name: str) -> float:
    match = re.search(rf"^{name} (\S+)$", exposed, re.MULTILINE)
    return float(match[1]) if match else float("nan")


def _sampled(sampler: _Sampler, traffic: Any, folder: Path, kill_every: float | None) -> Iterator[Sample]:
    """Sample until the traffic ends, write each to a file at once, and kill services meanwhile: the alerter first, so
    that its memory is that of one which took over, and then the aggregator."""
    victims = itertools.chain([sampler.services["alerting"]], itertools.repeat(sampler.services["aggregator"]))
    kill_at = kill_every or math.inf
    columns = list(sampler.sample())
    with (folder / "soak.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, columns)
        rows.writeheader()
        while traffic.is_alive():
            traffic.join(SAMPLE_S - time.time() % SAMPLE_S)
            sample = sampler.sample()
            rows.writerow(sample)
            file.flush()
            yield sample
            if kill_every and sample["minute"] >= kill_at:
                kill_at += kill_every
                victim = next(victims)
                victim.kill_and_start()
                print(f"minute {sample['minute']:.1f}: killed {victim.name}", flush=True)


def _await_verdicts(store: Store, plan: Run) -> list[str]:
    """Return which judged windows are not as expected once all are, or after a while."""
    ends_s = time.monotonic() + SETTLED_S
    while wrong := wrong_windows(store, plan):
        if time.monotonic() > ends_s:
            return wrong
        time.sleep(2)
    print(f"{len(plan.judged) * plan.pipelines:,} windows closed with the verdicts of the traffic")
    return []


def wrong_windows(store: Store, plan: Run) -> list[str]:
    """Return which of the judged windows are not as the traffic made them, in words."""
    columns = "pipeline, window_start, verdict, messages, lost_min, lost_max"
    query = f'SELECT {columns} FROM "window" WHERE window_start BETWEEN :first AND :last'
    with store.engine.connect() as connection:
        rows = connection.execute(text(query), {"first": plan.judged[0], "last": plan.judged[-1]}).all()
    found = {(row.pipeline, row.window_start): row for row in rows}
    wrong = Counter[str]()
    for number, start_s in itertools.product(range(plan.pipelines), plan.judged):
        row, expected = found.get((pipeline_name(number), start_s)), plan.outcome(number, start_s)
        if row is None:
            wrong[f"{fault_of(number) or 'sound'} pipelines are not closed"] += 1
        elif expected is not None:
            for lost in {row.lost_min, row.lost_max}:
                if (closed := Outcome(row.verdict, row.messages, lost)) != expected:
                    wrong[f"{fault_of(number) or 'sound'} pipelines: {closed} instead of {expected}"] += 1
    return [f"{count:,} windows of {what}" for what, count in wrong.items()]


def _paged_wrongly(store: Store, plan: Run) -> list[str]:
    """Return pipelines that have an incident of loss and lose nothing, or the other way round."""
    with store.engine.connect() as connection:
        pipelines = set(
            connection.execute(text("SELECT DISTINCT pipeline FROM incident WHERE rule = 'loss'")).scalars()
        )
    expected = {pipeline_name(number) for number in range(plan.pipelines) if fault_of(number) == "loss"}
    print(f"incidents of loss: {len(pipelines)} pipelines, {len(expected)} lose messages")
    return [f"incidents of loss of {sorted(wrong)[:5]}" for wrong in (pipelines ^ expected,) if wrong]


def _growing(samples: Sequence[Sample]) -> list[str]:
    """Print the second half by process: mean, growth, CPU, threads and files at both ends; return what is not flat."""
    half = samples[len(samples) // 2 :]
    hours = np.array([sample["minute"] / 60 for sample in half])
    growing = []
    print(f"{'':20}{'MB':>8}{'MB/h':>8}{'cores':>8}{'threads':>14}{'files':>14}")
    for name in PROCESSES:
        used = np.array([sample[f"{name} MB"] for sample in half])
        slope = float(np.polyfit(hours, used, 1)[0])
        is_flat = slope <= max(FLAT_MB, FLAT_SHARE * used.mean())
        cores = np.mean([sample[f"{name} cores"] for sample in half])
        counts = "".join(f"{half[0][name]:7.0f} {half[-1][name]:6.0f}" for name in (f"{name} threads", f"{name} files"))
        print(f"{name:20}{used.mean():8.0f}{slope:+8.0f}{cores:8.2f}{counts}   {'flat' if is_flat else 'grows'}")
        growing += [] if is_flat else [f"{name} grows by {slope:.0f} MB an hour"]
    for name in ("reports lag s", "live age s", "closing s", "newest whole minute s", "roll-ups dirty", "answer s"):
        values = np.array([sample[name] for sample in half])
        print(f"{name:24} median {np.nanmedian(values):.2f}, max {np.nanmax(values):.2f}")
    return growing


def _warnings(log: Path) -> Counter[str]:
    lines = log.read_text(errors="replace").splitlines()
    matches = (re.search(r"(?:\[|\b)(?:warning|error|WARN|ERROR)\b\W+(.{1,50})", line) for line in lines)
    return Counter(match[1] for match in matches if match)


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Draw memory, CPU and lags over the minutes from the first beacon on."""
    samples = [sample for sample in samples if sample["minute"] > 0]
    minutes = [sample["minute"] for sample in samples]
    titles = ("own memory, MB", "CPU, cores", "seconds", "seconds since the newest minute that is closed in all")
    figure = make_subplots(rows=4, cols=1, shared_xaxes=True, vertical_spacing=0.05, subplot_titles=titles)

    def add(row: int, label: str, column: str, position: int, legend: str) -> None:
        figure.add_scatter(
            x=minutes, y=[sample[column] for sample in samples], name=label, row=row, col=1, legend=legend,
            line={"color": _COLOURS[position], "width": 1.5}, showlegend=row in (1, 3),
        )  # fmt: skip

    for index, name in enumerate(PROCESSES):
        add(1, name, f"{name} MB", index, "legend")
        add(2, name, f"{name} cores", index, "legend")
    for index, name in enumerate(("live age", "closing", "answer")):
        add(3, name, f"{name} s", index, "legend2")
    add(4, "", "newest whole minute s", 3, "legend2")
    figure.update_layout(
        template="plotly_white", width=900, height=1000, font_size=13, legend={"y": 1.0}, legend2={"y": 0.45},
        title=f"{samples[-1]['minute']:.0f} minutes of all services",
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(title="minutes", row=4, col=1)
    draw(figure, path)


_COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Run all services for long.")
    parser.add_argument("--minutes", type=int, default=MINUTES)
    parser.add_argument("--pipelines", type=int, default=PIPELINES)
    parser.add_argument("--emitters", type=int, default=EMITTERS)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of soak.csv and soak.png")
    parser.add_argument("--kill-every", type=float, metavar="MINUTES", help="kill the alerter, then the aggregator")
    arguments = parser.parse_args()
    run(arguments.minutes, arguments.pipelines, arguments.emitters, arguments.out, arguments.kill_every)


if __name__ == "__main__":
    main()

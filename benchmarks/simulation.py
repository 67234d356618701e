"""A simulation of sizes past this machine, from costs that benchmarks measured: what each part needs at a load, which
gives way first, and how long a bad hour lasts: `python -m benchmarks.simulation`.

Everything is linear in what is counted (reports, beacons, windows), as the measurements at two sizes or more are; what
is shared is not modelled: locks, caches, a network.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lagloss.wire.format import WINDOW_S

GRACE_S: Final = 60
FULL: Final = 0.7
"""Share of a resource's time from which on it counts as giving way: a queue before it grows with every burst."""
DAY_S: Final = 86_400
KEPT_DAYS: Final = 35
LOG_DAYS: Final = 7
WINDOWS_PER_READ: Final = 4_000
BEACONS_PER_PARTITION: Final = 6.25e6
"""Limits of a turn and of a read, of aggregator/closing; not imported, since that would bring Spark."""


def _from(value: float, benchmark: str) -> Any:
    return field(default=value, metadata={"benchmark": benchmark})


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured, of one core where it is CPU; each with the benchmark that prints it."""

    report_us: float = _from(47.0, "reports")
    """Of the follower."""
    report_postgres_us: float = _from(32.0, "reports")
    report_bytes: float = _from(1_025.0, "reports")
    report_wal_bytes: float = _from(1_897.0, "reports")
    beacon_ns: float = _from(124.0, "sizes")
    """Of an executor: fetched, scanned, counted."""
    read_s: float = _from(0.5, "sizes")
    """Of a read, whatever it reads."""
    beacon_bytes: float = _from(13.0, "closing")
    """In the log, of one copy."""
    task_mib: float = _from(320.0, "sizes")
    task_beacon_bytes: float = _from(22.0, "sizes")
    proven_ms: float = _from(1.09, "pipelines")
    """Of a window, of the closing thread, its commit included."""
    read_window_ms: float = _from(3.3, "pipelines")
    window_postgres_ms: float = _from(1.0, "soak")
    window_bytes: float = _from(2_500.0, "sizes")
    """In PostgreSQL, indexes included."""
    look_ms: float = _from(1.1, "looks")
    """Of the alerter, at a window that has just closed."""
    look_postgres_ms: float = _from(0.1, "looks")
    take_over_ms: float = _from(33.0, "looks")
    """Of a cold stand-by alerter, for a pipeline with a day of windows."""
    refresh_window_ms: float = _from(0.5, "soak")
    """Of the dashboard, at a window that has just closed."""
    aggregator_mb: float = _from(250.0, "soak")
    aggregator_pipeline_kb: float = _from(150.0, "soak")
    alerter_mb: float = _from(130.0, "soak")
    alerter_pipeline_kb: float = _from(83.0, "looks")
    dashboard_mb: float = _from(190.0, "soak")
    dashboard_pipeline_kb: float = _from(40.0, "soak")
    broker_record_us: float = _from(10.0, "soak")
    """Of a record produced and consumed once."""


COSTS: Final = Costs()


@dataclass(frozen=True, slots=True)
class Load:
    """What comes in. `read_share`: of the windows, what tallies do not prove."""

    emitters: int
    beacons_per_s: float
    pipelines: int
    read_share: float = 0.05
    block_beacons: int = 250

    @property
    def reports_per_s(self) -> float:
        """Return the reports: an emitter sends one each second from 500 beacons a second on, below 250 each 2.5 s."""
        per_emitter = self.beacons_per_s / self.emitters
        return self.emitters / (1.0 if per_emitter >= 500 else 2.5)

    @property
    def windows_per_s(self) -> float:
        return self.pipelines / WINDOW_S

    @property
    def beacons_per_window(self) -> float:
        return self.beacons_per_s / self.windows_per_s

    def times(self, factor: float) -> Load:
        """Return the same load, that many times as large."""
        return dataclasses.replace(
            self,
            emitters=max(1, round(self.emitters * factor)),
            beacons_per_s=self.beacons_per_s * factor,
            pipelines=max(1, round(self.pipelines * factor)),
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """What there is of each part. `followers` and `closers` are one today; two or more stand for a split by partition
    of the reports, and by pipeline."""

    followers: int = 1
    closers: int = 1
    executor_cores: int = 2
    partitions: int = 8
    """Of the beacons topic."""
    brokers: int = 1
    broker_cores: int = 2
    broker_mb_per_s: float = 1_000.0
    """Of one broker, in and out: its network or its disks."""
    copies: int = 1
    databases: int = 1
    database_cores: int = 2
    database_wal_mb_per_s: float = 400.0
    """Of one server: what its disk and the network to its stand-by can take; assumed, not measured."""
    alerters: int = 1
    dashboards: int = 1

    @property
    def beacons_per_read(self) -> float:
        return BEACONS_PER_PARTITION * self.partitions


@dataclass(frozen=True, slots=True)
class Use:
    """How busy a resource is: 1 is all of its time."""

    resource: str
    busy: float
    amount: float
    unit: str

    @property
    def full_at(self) -> float:
        """Return the amount at which it is full, all else growing alike."""
        return self.amount * FULL / self.busy if self.busy else float("inf")


def uses(load: Load, cluster: Cluster, costs: Costs = COSTS) -> list[Use]:
    """Return how busy each resource is in steady state, the busiest first."""
    reports, windows = load.reports_per_s, load.windows_per_s
    read = load.read_share * windows
    following = reports * (costs.report_us + costs.report_postgres_us) / 1e6
    closing = (windows - read) * costs.proven_ms / 1e3
    if read:
        batch = _windows_per_read(load, cluster)
        closing += read / batch * read_s(load, cluster, batch, costs)
    executors = load.beacons_per_s * load.read_share * costs.beacon_ns / 1e9
    written = load.beacons_per_s * costs.beacon_bytes + reports * costs.report_bytes
    records = load.beacons_per_s / load.block_beacons + reports
    broker_cores = records * cluster.copies * costs.broker_record_us / 1e6
    moved = written * (cluster.copies + 1 + load.read_share) / 1e6
    wal = _wal_mb_per_s(load, costs)
    database = (
        reports * costs.report_postgres_us / 1e6 + windows * (costs.window_postgres_ms + costs.look_postgres_ms) / 1e3
    )
    alerting, dashboard = windows * costs.look_ms / 1e3, windows * costs.refresh_window_ms / 1e3
    uses = [
        Use("following reports (1 thread)", following / cluster.followers, reports, "reports/s"),
        Use("closing (1 thread)", closing / cluster.closers, windows * WINDOW_S, "windows/min"),
        Use("executors", executors / cluster.executor_cores, load.beacons_per_s / 1e6, "M beacons/s"),
        Use("brokers, network", moved / cluster.brokers / cluster.broker_mb_per_s, moved, "MB/s"),
        Use("brokers, CPU", broker_cores / cluster.brokers / cluster.broker_cores, records, "records/s"),
        Use("PostgreSQL, CPU", database / cluster.databases / cluster.database_cores, database, "cores"),
        Use("PostgreSQL, WAL", wal / cluster.databases / cluster.database_wal_mb_per_s, wal, "MB/s"),
        Use("alerter (1 thread)", alerting / cluster.alerters, windows * WINDOW_S, "windows/min"),
        Use("dashboard (1 process)", dashboard / cluster.dashboards, windows * WINDOW_S, "windows/min"),
    ]
    return sorted(uses, key=lambda use: -use.busy)


def _wal_mb_per_s(load: Load, costs: Costs) -> float:
    """Return the WAL: a window is written as it is, and once more with the pages that it is the first to touch."""
    return (load.reports_per_s * costs.report_wal_bytes + load.windows_per_s * 2 * costs.window_bytes) / 1e6


def stores(load: Load, cluster: Cluster, costs: Costs = COSTS) -> dict[str, float]:
    """Return what Kafka and PostgreSQL keep, the memory of executors and services, and the time of a take-over."""
    log_bytes = load.beacons_per_s * costs.beacon_bytes + load.reports_per_s * costs.report_bytes
    at_once = min(load.beacons_per_s * WINDOW_S, max(cluster.beacons_per_read, load.beacons_per_window))
    task = costs.task_mib * 2**20 + costs.task_beacon_bytes * at_once / cluster.partitions
    services = {
        "aggregator without Spark": (costs.aggregator_mb, costs.aggregator_pipeline_kb),
        "alerter": (costs.alerter_mb, costs.alerter_pipeline_kb),
        "dashboard": (costs.dashboard_mb, costs.dashboard_pipeline_kb),
    }
    return {
        "Kafka, TB": log_bytes * LOG_DAYS * DAY_S * cluster.copies / 1e12,
        "PostgreSQL, TB": load.windows_per_s * KEPT_DAYS * DAY_S * costs.window_bytes / 1e12,
        "executors, GiB": cluster.executor_cores * task / 2**30,
        **{f"{name}, GB": (mb + load.pipelines * kb / 1e3) / 1e3 for name, (mb, kb) in services.items()},
        "take-over by a cold alerter, min": load.pipelines * costs.take_over_ms / cluster.alerters / 60e3,
    }


def _windows_per_read(load: Load, cluster: Cluster) -> float:
    """Return the windows that one read closes, of those of a minute."""
    of_a_minute = load.read_share * load.pipelines
    return max(1.0, min(of_a_minute, WINDOWS_PER_READ, cluster.beacons_per_read / load.beacons_per_window))


def read_s(load: Load, cluster: Cluster, windows: float, costs: Costs = COSTS) -> float:
    """Return how long (s) a read of so many windows takes, until its commit."""
    counting = windows * load.beacons_per_window * costs.beacon_ns / 1e9 / cluster.executor_cores
    return costs.read_s + counting + windows * costs.read_window_ms / 1e3


@dataclass(frozen=True, slots=True)
class State:
    """Queues at the end of a minute: how far (s) following is behind, windows that are due and not closed, and windows
    that are closed and not looked at."""

    minute: int
    reports_late_s: float
    windows_waiting: float
    looks_waiting: float

    @property
    def is_level(self) -> bool:
        return self.reports_late_s < 1 and self.windows_waiting < 1 and self.looks_waiting < 1


@dataclass(frozen=True, slots=True)
class Scene:
    """What happens in an hour. `bad`: minutes all of whose windows are read; `outage`: in which nothing is followed,
    closed or alerted on, while emitters send."""

    name: str
    bad: range = range(0)
    outage: range = range(0)

    @property
    def ends(self) -> int:
        return max(self.bad.stop, self.outage.stop)


SCENES: Final = (
    Scene("an hour in which all windows are read", bad=range(10, 70)),
    Scene("an outage of 10 minutes", outage=range(10, 20)),
    Scene("an outage of 10 minutes in an hour in which all windows are read", bad=range(10, 70), outage=range(10, 20)),
)


def hours(load: Load, cluster: Cluster, scene: Scene, minutes: int = 240, costs: Costs = COSTS) -> list[State]:
    """Return the queues at the end of each minute."""
    states: list[State] = []
    reports = looks = proven = read = budget_s = 0.0
    undue = list(range(minutes + 1))
    report_s = (costs.report_us + costs.report_postgres_us) / 1e6 / cluster.followers
    for minute, second in itertools.product(range(minutes), range(WINDOW_S)):
        reports += load.reports_per_s
        if minute not in scene.outage:
            reports -= min(reports, 1 / report_s)
            followed_s = minute * WINDOW_S + second - reports / load.reports_per_s
            while undue and followed_s >= (undue[0] + 1) * WINDOW_S + GRACE_S:  # judged as of what is followed
                share = 1.0 if undue.pop(0) in scene.bad else load.read_share
                read, proven = read + load.pipelines * share, proven + load.pipelines * (1 - share)
            budget_s += cluster.closers
            first = min(proven, budget_s / costs.proven_ms * 1e3)
            proven, looks, budget_s = proven - first, looks + first, budget_s - first * costs.proven_ms / 1e3
            while read and budget_s > 0:
                batch = min(read, WINDOWS_PER_READ, max(1.0, cluster.beacons_per_read / load.beacons_per_window))
                budget_s -= read_s(load, cluster, batch, costs)
                read, looks = read - batch, looks + batch
            budget_s = min(budget_s, 0.0)
            looks -= min(looks, cluster.alerters / costs.look_ms * 1e3)
        if second == WINDOW_S - 1:
            due = max(0, minute - 1 - undue[0]) * load.pipelines
            states.append(State(minute, reports / load.reports_per_s, due + read + proven, looks))
    return states


def level_after(states: Sequence[State], since: int) -> int | None:
    """Return how many minutes after `since` all queues are empty for good; None if they are not."""
    uneven = [state.minute for state in states if not state.is_level]
    last = max(uneven, default=since - 1)
    return None if last == states[-1].minute else max(0, last + 1 - since)


_LARGE: Final = Load(100_000, 100e6, 10_000)
_ONE: Final = Cluster(executor_cores=64, partitions=512, brokers=12, broker_cores=16, copies=3, database_cores=16)
_SPLIT: Final = dataclasses.replace(_ONE, followers=20)
_CELLS: Final = dataclasses.replace(_SPLIT, closers=2, databases=2, database_cores=8, alerters=2)
PLANS: Final = {
    "this machine": (Load(1_000, 1e6, 200), Cluster()),
    "10 M/s": (
        Load(10_000, 10e6, 2_000),
        Cluster(followers=2, executor_cores=8, partitions=64, brokers=3, broker_cores=8, copies=3, database_cores=8),
    ),
    "100 M/s, as it is": (_LARGE, _ONE),
    "100 M/s, following split": (_LARGE, _SPLIT),
    "100 M/s, in two cells by pipeline": (_LARGE, _CELLS),
}


def main() -> None:
    """Print the plans, or the load that the command line has."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description="Compute what a load needs.")
    for name in ("emitters", "beacons_per_s", "pipelines"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float)
    for setting in dataclasses.fields(Cluster):
        parser.add_argument(f"--{setting.name.replace('_', '-')}", type=type(setting.default), default=setting.default)
    arguments = vars(parser.parse_args())
    plans = PLANS
    if arguments["emitters"]:
        load = Load(int(arguments["emitters"]), arguments["beacons_per_s"], int(arguments["pipelines"]))
        cluster = Cluster(**{setting.name: arguments[setting.name] for setting in dataclasses.fields(Cluster)})
        plans = {"asked": (load, cluster)}
    for name, (load, cluster) in plans.items():
        _print(name, load, cluster)


def _print(name: str, load: Load, cluster: Cluster) -> None:
    beacons = f"{load.beacons_per_s / 1e6:,.0f} M beacons/s"
    print(f"== {name}: {load.emitters:,} emitters, {beacons}, {load.pipelines:,} pipelines\n{cluster}")
    bad_load = dataclasses.replace(load, read_share=1.0)
    bad = {use.resource: use.busy for use in uses(bad_load, cluster)}
    print("| resource | of | busy | busy, all windows read | full at |\n|---|---|---|---|---|")
    for use in uses(load, cluster):
        full_at, limit = (f"{amount:,.{1 if amount < 100 else 0}f} {use.unit}" for amount in (use.full_at, use.amount))
        print(f"| {use.resource} | {limit} | {use.busy:.0%} | {bad[use.resource]:.0%} | {full_at} |")
    print("; ".join(f"{what}: {value:,.1f}" for what, value in stores(load, cluster).items()))
    for scene in SCENES:
        states = hours(load, cluster, scene)
        after = level_after(states, scene.ends)
        worst = max(state.windows_waiting for state in states) / load.pipelines
        level = "not level an hour or more after its end" if after is None else f"level {after} min after its end"
        print(f"{scene.name}: {level}, {worst:.1f} minutes of windows wait at most")


if __name__ == "__main__":
    main()

"""Live numbers: how old what a page shows of open windows is, from a report sent to its count in `Store.windows`, and
what following costs meanwhile."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer

from benchmarks.database import fresh_servers
from benchmarks.figures import Figure
from benchmarks.reports import A_SECOND, NODES, PIPELINES, Fleet, pipeline_name
from benchmarks.services import running
from benchmarks.timing import Stopwatch
from benchmarks.traffic import chain
from lagloss.broker.topics import REPORTS
from lagloss.wire.avro import encode_long
from lagloss.wire.format import WINDOW_S
from lagloss_server.store.store import Store

SECONDS: Final = 60
WARM_S: Final = 20
"""Seconds of reports that are not measured: the aggregator starts."""
TARGET_S: Final = 5.0
POLL_S: Final = 0.1
WATCHED: Final = pipeline_name(0)


def run() -> list[Figure]:
    """Print and return the age of live numbers, with the CPU, while few and many emitters report each second."""
    return [_measure(emitters) for emitters in (200, 10_000)]


def _measure(emitters: int) -> Figure:
    with fresh_servers() as servers:
        store, postgres = servers.store, servers.postgres
        for number in range(PIPELINES):
            store.apply(chain(pipeline_name(number), NODES), 0)
        queue: multiprocessing.Queue[Any] = _SPAWN.Queue()
        traffic = _SPAWN.Process(target=send, args=(servers.kafka.bootstrap, emitters, queue))
        traffic.start()
        plan: Plan = queue.get(timeout=300)
        with running("aggregator", servers.folder, servers.env) as aggregator:
            watcher = _Watcher(store, plan)
            watcher.until(plan.began_s + WARM_S)
            with Stopwatch(aggregator.pid, postgres.processes[0].pid) as spent:
                watcher.until(plan.began_s + SECONDS)
            cores = [took_s / spent.wall_s for took_s in spent.others_s.values()]
            watcher.rest()
        traffic.join(30)
    p50, p95, most = np.quantile(watcher.ages, [0.5, 0.95, 1.0])
    print(f"{emitters:,} emitters x 2 checkpoints, each reports each second (the sender was {queue.get():.1f} s late)")
    print(f"  age of live numbers: p50 {p50:.1f} s, p95 {p95:.1f} s, max {most:.1f} s (asked for: {TARGET_S:.0f} s)")
    print(
        f"  cores: aggregator {cores[0]:.2f}, PostgreSQL {cores[1]:.2f}, {sum(cores) / emitters * 1e6:.0f} us a report"
    )
    return Figure(f"age of live numbers, p95, {emitters:,} emitters", p95, "s", TARGET_S)


_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Plan:
    """When each report is sent: the one of emitter n in second s is the (s * emitters + n)th."""

    emitters: int
    window_s: int
    began_s: float

    def sent_s(self, second: int, emitter: int) -> float:
        return self.began_s + second + emitter / self.emitters

    @property
    def watched(self) -> list[float]:
        """Return when each report of the first node of one pipeline is sent: each adds as many messages."""
        emitters = range(0, self.emitters, PIPELINES * len(NODES))
        return [self.sent_s(second, emitter) for second in range(SECONDS) for emitter in emitters]


_SOME_S: Final = 1_700_000_040
_SOME: Final = encode_long(_SOME_S)
_SOME_MS: Final = encode_long(_SOME_S * 1000)
"""Stand for the window and the time in reports that are encoded ahead: their encoding takes longer than their sending.
"""


def send(bootstrap: str, emitters: int, queue: multiprocessing.Queue[object]) -> None:
    """Put the plan into the queue, send by it, and put how late (s) the latest report was."""
    values = [Fleet(_SOME_S, emitters).reports(second, _SOME_S * 1000) for second in range(SECONDS)]
    began_s = time.time() + WARM_S
    plan = Plan(emitters, (int(began_s) // WINDOW_S + 1) * WINDOW_S, began_s)
    queue.put(plan)
    window = encode_long(plan.window_s)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    late_s = 0.0
    for second, reports in enumerate(values):
        now = encode_long(int((began_s + second) * 1000))
        for emitter, value in enumerate(reports):
            if emitter % 50 == 0:
                ahead_s = plan.sent_s(second, emitter) - time.time()
                time.sleep(max(ahead_s, 0.0))
                late_s = max(late_s, -ahead_s)
                producer.poll(0)
            timed = value.replace(_SOME, window).replace(_SOME_MS, now)
            producer.produce(REPORTS, timed, Fleet.name(emitter))
    producer.flush(10)
    queue.put(late_s)


class _Watcher:
    """Reads the messages that the open window shows, and notes how old the newest of them are."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store, self._plan = store, plan
        self._sent = plan.watched
        self._seen = 0
        self.ages: list[float] = []

    def until(self, moment_s: float) -> None:
        while time.time() < moment_s:
            self._look()
            time.sleep(POLL_S)

    def rest(self) -> None:
        """Wait until all reports are visible."""
        gives_up_s = time.time() + 30
        while self._seen < len(self._sent):
            if time.time() > gives_up_s:
                raise SystemExit(f"only {self._seen} of {len(self._sent)} reports became visible")
            self._look()
            time.sleep(POLL_S)

    def _look(self) -> None:
        start = self._plan.window_s
        windows = self._store.windows(WATCHED, start, start + WINDOW_S)
        visible = sum(window.messages for window in windows) // A_SECOND
        now = time.time()
        shown = [sent for sent in self._sent[self._seen : visible] if sent > self._plan.began_s + WARM_S]
        self.ages += [now - sent for sent in shown]
        self._seen = max(self._seen, visible)

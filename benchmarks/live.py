"""Live numbers: how old what a page shows of open windows is, from a report sent to its count in `Store.windows`."""

from __future__ import annotations

import bisect
import itertools
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from confluent_kafka import Producer

from lagloss.broker.topics import REPORTS, create_topics
from lagloss.wire.format import WINDOW_S, EmitterReport, OffsetRange, Progress, Tally, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.model.definition import Definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import spawn, terminate
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store

NODES = ("src", "norm", "conn", "sink")
EMITTERS = 200
SECONDS = 70
TARGET_S = 5.0
POLL_S = 0.1
A_SECOND = 10
"""Messages a second at each emitter."""


def run() -> None:
    """Print the age of live numbers while 200 emitters report every second at two checkpoints each."""
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedKafka(Path(folder) / "kafka") as kafka,
        EmbeddedPostgres(Path(folder) / "postgres") as postgres,
    ):
        Path(folder).chmod(0o711)
        create_topics(kafka.bootstrap)
        migrate(postgres.url)
        store = Store(postgres.url)
        store.apply(_definition(), 0)
        env = {
            "LAGLOSS_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "LAGLOSS_DATABASE_URL": postgres.url,
            "LAGLOSS_DATA_DIR": folder,
        }
        aggregator = spawn([sys.executable, "-m", "aggregator"], Path(folder) / "aggregator.log", env=env)
        try:
            ages = _measure(store, Traffic(kafka.bootstrap))
        finally:
            terminate(aggregator)
            store.close()
    p50, p95, most = np.quantile(ages, [0.5, 0.95, 1.0])
    print(f"traffic: {EMITTERS} emitters x 2 checkpoints, a report of each a second, {len(ages):,} reports measured")
    print(f"age of live numbers: p50 {p50:.1f} s, p95 {p95:.1f} s, max {most:.1f} s (asked for: {TARGET_S:.0f} s)")


def _definition() -> Definition:
    chain = [{"name": name, "to": [after]} for name, after in itertools.pairwise(NODES)]
    spec = {"nodes": [*chain, {"name": NODES[-1]}]}
    return Definition.model_validate(
        {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "live"}, "spec": spec}
    )


@dataclass
class Traffic:
    """All emitters in one thread, spread over each second. `sent` and `totals` are parallel: when a report of the first
    node was sent (epoch s), and how many messages all of them had reported by then."""

    bootstrap: str
    sent: list[float] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)

    def run(self, seconds: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": 0})
        lags = Sketch.of(np.random.default_rng(1).exponential(100, 2_000))
        began = time.time()
        started_ms = int(began * 1000)
        names = [uuid.uuid4().bytes for _ in range(EMITTERS)]
        start = next_window_s(began)
        total = 0
        for number in range(seconds * EMITTERS):
            seq, emitter = divmod(number, EMITTERS)
            time.sleep(max(0.0, began + number / EMITTERS - time.time()))
            now = time.time()
            node, count = NODES[emitter % len(NODES)], (seq + 1) * A_SECOND
            ranges = tuple(OffsetRange(partition, seq, seq + 60) for partition in range(8))
            tallies = tuple(Tally(f"{node}.{side}", start, count, seq, lags, ranges) for side in ("in", "out"))
            progress = (Progress(f"{node}.in", f"topic/{emitter}", int(now * 1000)),)
            report = EmitterReport(
                "live", node, names[emitter], "bench", seq, started_ms, int(now * 1000), False, start, progress, tallies
            )
            if node == NODES[0]:
                total += A_SECOND
                self.sent.append(now)
                self.totals.append(total)
            producer.produce(REPORTS, encode_report(report), names[emitter])
            producer.poll(0)
        producer.flush(10)


def next_window_s(now_s: float) -> int:
    """Return the start of the next minute: a window that stays open for two minutes to come."""
    return (int(now_s) // WINDOW_S + 1) * WINDOW_S


def _measure(store: Store, traffic: Traffic) -> list[float]:
    """Age (s) of each report of the first node, without those of the first 20 s, in which the aggregator starts."""
    window_s = next_window_s(time.time())
    sending = threading.Thread(target=traffic.run, args=(SECONDS,))
    sending.start()
    ages: list[float] = []
    warm_s = time.time() + 20
    seen = 0
    while sending.is_alive() or seen < len(traffic.totals):
        if time.time() > warm_s + SECONDS + 30:
            raise SystemExit(f"only {seen} of {len(traffic.totals)} reports became visible")
        visible = sum(window["messages"] or 0 for window in store.windows("live", window_s, window_s + 2 * WINDOW_S))
        now = time.time()
        upto = bisect.bisect_right(traffic.totals, visible)
        ages += [now - sent for sent in traffic.sent[seen:upto] if sent > warm_s]
        seen = max(seen, upto)
        time.sleep(POLL_S)
    sending.join()
    return ages

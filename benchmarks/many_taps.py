"""CPU of a process with 20 taps over 6 topics: idle, and at 60 records per second."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import func, select

from benchmarks.database import fresh_servers, transactions
from benchmarks.services import running
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.schema.taps import TapRow
from lagloss_server.store.store import Store

TOPICS: Final = 6
PARTITIONS: Final = 4
PIPELINES: Final = {"long": 6, "short": 4}
"""Topics in a chain, each written by a node with a group of its own, which reads the one before."""
TAPS: Final = 20
RATE: Final = 60
"""Records per second, of all topics together."""
WARM_UP_S: Final = 20.0
MEASURED_S: Final = 45.0


def run() -> None:
    """Print CPU of one core, and the heaviest threads, of both states."""
    with fresh_servers() as servers:
        admin = AdminClient({"bootstrap.servers": servers.kafka.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(f"t{index}", PARTITIONS, 1) for index in range(TOPICS)]).values():
            future.result(30)
        store = servers.store
        for name, length in PIPELINES.items():
            store.apply(parse_definition(_chain(name, length)), 0)
        with running("taps", servers.folder, servers.env) as taps:
            traffic = _Traffic(servers.kafka.bootstrap)
            traffic.go_on(WARM_UP_S)
            with store.engine.connect() as connection:
                owned = connection.execute(select(func.count()).where(TapRow.owner != "")).scalar_one()
            assert owned == TAPS, f"{owned} of {TAPS} taps run"
            _measure("60 records/s", taps.pid, store, lambda: traffic.go_on(MEASURED_S))
            time.sleep(5)
            _measure("idle", taps.pid, store, lambda: time.sleep(MEASURED_S))
            traffic.close()


def _chain(name: str, length: int) -> str:
    source = "{name: n0, to: [n1], taps: {out: {topic: t0, id: $.id, eventTime: $.at}}}"
    nodes = [source] + [
        f"{{name: n{index}, to: [n{index + 1}], taps: {{in: {{group: {name}-{index}}}, out: {{topic: t{index}}}}}}}"
        for index in range(1, length)
    ]
    nodes.append(f"{{name: n{length}, taps: {{in: {{group: {name}-{length}}}}}}}")
    spec = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": name}}
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in spec.items())
    return head + "\nspec:\n  lookback: 10m\n  nodes:\n" + "".join(f"    - {node}\n" for node in nodes)


class _Traffic:
    """Writes records to all topics and commits them for all groups."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._ends = Counter[tuple[str, int]]()
        self._groups = {
            (f"{name}-{index}", f"t{index - 1}"): Consumer(
                {"bootstrap.servers": bootstrap, "group.id": f"{name}-{index}", "log_level": 0}
            )
            for name, length in PIPELINES.items()
            for index in range(1, length + 1)
        }
        self._number = 0

    def go_on(self, seconds: float) -> None:
        """Write RATE records per second, and commit each second."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _ in range(RATE // TOPICS):
                self._number += 1
                document = json.dumps({"id": f"m-{self._number}", "at": time.time_ns() // 1_000_000, "of": "x" * 200})
                for topic in range(TOPICS):
                    self._producer.produce(f"t{topic}", document, partition=self._number % PARTITIONS)
                    self._ends[f"t{topic}", self._number % PARTITIONS] += 1
            self._producer.flush()
            self.commit()
            time.sleep(1)

    def commit(self) -> None:
        """Commit everything that was written."""
        for (_, topic), consumer in self._groups.items():
            offsets = [TopicPartition(topic, index, self._ends[topic, index]) for index in range(PARTITIONS)]
            consumer.commit(offsets=offsets, asynchronous=False)

    def close(self) -> None:
        for consumer in self._groups.values():
            consumer.close()


def _measure(what: str, pid: int, store: Store, work: Callable[[], None]) -> None:
    process = psutil.Process(pid)
    before, began, commits = _threads(process), time.monotonic(), transactions(store)
    total = process.cpu_times()
    work()
    seconds, after = time.monotonic() - began, _threads(process)
    spent = process.cpu_times()
    used = spent.user + spent.system - total.user - total.system
    rate = (transactions(store) - commits) / seconds
    print(
        f"{what}: {used / seconds:.1%} of a core, {len(after)} threads, {rate:.1f} transactions/s in the database,"
        f" {process.memory_info().rss >> 20} MB"
    )
    by_name = Counter[str]()
    for thread, (name, ticks) in after.items():
        by_name[name] += ticks - before.get(thread, (name, 0))[1]
    hertz = os.sysconf("SC_CLK_TCK")
    for name, ticks in by_name.most_common(8):
        print(f"  {name}: {ticks / hertz / seconds:.2%}")


def _threads(process: psutil.Process) -> dict[int, tuple[str, int]]:
    """Return by thread its name and its CPU, in ticks."""
    threads = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        name, _, stat = (task / "stat").read_text().partition("(")[2].rpartition(")")
        fields = stat.split()
        threads[int(task.name)] = name, int(fields[11]) + int(fields[12])
    return threads

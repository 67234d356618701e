"""One process with 2, 20 and 1,000 taps, half of topics and half of groups: what they cost while nothing happens, and
the delay from a record to its beacon next to idle ones."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import OFFSET_END, Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import func, select

from benchmarks.database import PATIENT, Servers, fresh_servers, make_topics, prepare_groups, transactions
from benchmarks.figures import Figure
from benchmarks.services import Service, running
from lagloss.broker.topics import BEACONS
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.schema.taps import TapRow

SIZES: Final = (2, 20, 1_000)
"""Taps; the delay next to many is compared with that of the first."""
PARTITIONS: Final = 2
WARM_UP_S: Final = 20.0
WARM_UP_PER_TAP_S: Final = 0.12
"""Until all have had their turns, and rest."""
IDLE_S: Final = 120.0
RECORDS: Final = 25
READY_S: Final = 600.0
AT_ONCE: Final = 20
MAX_THREADS: Final = 100
MAX_IDLE: Final = 0.05
MAX_MB: Final = 1_024


def run() -> list[Figure]:
    """Print and return what each size costs."""
    figures: list[Figure] = []
    delays: list[float] = []
    for size in SIZES:
        with fresh_servers() as servers:
            _apply(servers, size)
            with running("taps", servers.folder, servers.env) as taps:
                began = time.monotonic()
                _await_taps(servers, taps, size)
                print(f"{size} taps: owned after {time.monotonic() - began:.1f} s", flush=True)
                time.sleep(WARM_UP_S + WARM_UP_PER_TAP_S * size)
                figures += _idle(servers, taps, size)
                delays.append(_delay(servers.kafka.bootstrap))
                print(f"{size} taps: {delays[-1]:.3f} s from a record to its beacon (median of {RECORDS})", flush=True)
                figures.append(
                    Figure(f"record to beacon, {size} taps", delays[-1], "s", 2.0, delays[0], f"of {SIZES[0]}")
                )
    return figures


def _apply(servers: Servers, taps: int) -> None:
    """Make the topics and groups of so many taps, and a pipeline of each topic and group."""
    admin = AdminClient({"bootstrap.servers": servers.kafka.bootstrap, "log_level": 0})
    make_topics(servers.kafka.bootstrap, [f"t{index}" for index in range(taps // 2)], PARTITIONS)
    producer = Producer({"bootstrap.servers": servers.kafka.bootstrap, "log_level": 0, **PATIENT})
    for index in range(taps // 2):
        for partition in range(PARTITIONS):
            producer.produce(f"t{index}", _record(f"{index}-{partition}"), partition=partition)
    producer.flush()
    prepare_groups(servers.kafka.bootstrap, "t0")
    for first in range(0, taps // 2, AT_ONCE):
        groups = [
            ConsumerGroupTopicPartitions(f"g{index}", [TopicPartition(f"t{index}", at, 1) for at in range(PARTITIONS)])
            for index in range(first, min(first + AT_ONCE, taps // 2))
        ]
        for committed in [admin.alter_consumer_group_offsets([group], request_timeout=300) for group in groups]:
            for commit in committed.values():
                commit.result(300)
    servers.store.change([parse_definition(_definition(index)) for index in range(taps // 2)])


def _definition(index: int) -> str:
    nodes = [
        f"{{name: source, to: [sink], taps: {{out: {{topic: t{index}, id: $.id, eventTime: $.at}}}}}}",
        f"{{name: sink, taps: {{in: {{group: g{index}}}}}}}",
    ]
    spec = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": f"p{index}"}}
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in spec.items())
    return head + "\nspec:\n  lookback: 10m\n  nodes:\n" + "".join(f"    - {node}\n" for node in nodes)


def _record(name: str) -> bytes:
    return json.dumps({"id": name, "at": time.time_ns() // 1_000_000, "of": "x" * 200}).encode()


def _await_taps(servers: Servers, taps: Service, size: int) -> None:
    """Wait until all taps are owned and have begun to read."""
    ends = time.monotonic() + READY_S
    begun = select(func.count()).where(TapRow.owner != "", TapRow.number > 0)
    while time.monotonic() < ends:
        with servers.store.engine.connect() as connection:
            if connection.execute(begun).scalar_one() == size:
                return
        time.sleep(0.5)
    raise SystemExit(f"not all of {size} taps run:\n{taps.log.read_text()[-5_000:]}")


def _idle(servers: Servers, taps: Service, size: int) -> list[Figure]:
    process = psutil.Process(taps.pid)
    before, began, commits = _threads(process), time.monotonic(), transactions(servers.store)
    total = process.cpu_times()
    time.sleep(IDLE_S)
    seconds, after = time.monotonic() - began, _threads(process)
    spent = process.cpu_times()
    used = (spent.user + spent.system - total.user - total.system) / seconds
    rate = (transactions(servers.store) - commits) / seconds
    memory, files = process.memory_full_info(), process.num_fds()
    print(
        f"{size} taps idle: {used:.1%} of a core, {len(after)} threads, {memory.pss >> 20} MB PSS,"
        f" {memory.rss >> 20} MB RSS, {files} file descriptors, {rate:.1f} transactions/s in the database",
        flush=True,
    )
    by_name = Counter[str]()
    for thread, (name, ticks) in after.items():
        by_name[name] += ticks - before.get(thread, (name, 0))[1]
    hertz = os.sysconf("SC_CLK_TCK")
    for name, ticks in by_name.most_common(6):
        print(f"  {name}: {ticks / hertz / seconds:.2%}", flush=True)
    return [
        Figure(f"{size} idle taps, CPU", used, "cores", MAX_IDLE),
        Figure(f"{size} idle taps, threads", len(after), "", MAX_THREADS),
        Figure(f"{size} idle taps, memory", memory.pss / 2**20, "MB PSS", MAX_MB),
    ]


def _delay(bootstrap: str) -> float:
    """Return the median time (s) from a record of one topic to a block of its tap, at random moments of a turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.wait.max.ms": 20, "log_level": 0})
    partitions = consumer.list_topics(BEACONS, timeout=10).topics[BEACONS].partitions
    consumer.assign([TopicPartition(BEACONS, partition, OFFSET_END) for partition in partitions])
    consumer.consume(1_000, 3.0)
    delays = []
    for number in range(RECORDS):
        consumer.consume(1_000, random.uniform(0.2, 1.2))
        producer.produce("t0", _record(f"busy-{number}"), partition=number % PARTITIONS)
        producer.flush()
        began = time.monotonic()
        message = consumer.poll(30)
        if message is None:
            raise SystemExit("no beacon came within 30 s")
        delays.append(time.monotonic() - began)
    consumer.close()
    return statistics.median(delays)


def _threads(process: psutil.Process) -> dict[int, tuple[str, int]]:
    """Return by thread its name and its CPU, in ticks."""
    threads = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        name, _, stat = (task / "stat").read_text().partition("(")[2].rpartition(")")
        fields = stat.split()
        threads[int(task.name)] = name, int(fields[11]) + int(fields[12])
    return threads

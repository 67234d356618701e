"""The examples as users run them: as processes of their own, on a real broker, judged by what they left in the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.wire.format import EmitterReport, decode_block, decode_report, hash_id
from tests.support.kafka_log import read_all, wait_for

ROOT = Path(__file__).parents[3]
MESSAGES = 40
PARTITIONS = 2


@dataclass
class Left:
    """What a pipeline's emitters left in the log."""

    counts: Counter[str] = field(default_factory=Counter)
    """Beacons by checkpoint, with the reason where there is one."""
    ids: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Hashes of ids by checkpoint."""
    last_reports: list[EmitterReport] = field(default_factory=list)

    def progress_of(self, node: str) -> dict[tuple[str, str], int]:
        return {(at.checkpoint, at.lane): at.until for r in self.last_reports if r.node == node for at in r.progress}

    def open_nodes(self) -> list[str]:
        """Nodes of emitters that did not say that they ended."""
        return [report.node for report in self.last_reports if not report.closed]


def left_by(bootstrap: str, pipeline: str) -> Left:
    left, seen, newest = Left(), set(), {}
    for *_, key, value in read_all(bootstrap, BEACONS):
        if not key.startswith(f"{pipeline}/".encode()):
            continue
        block = decode_block(value)
        if (block.emitter, block.seq) not in seen:
            seen.add((block.emitter, block.seq))
            left.counts[block.checkpoint + (f" {block.reason}" if block.reason else "")] += block.count
            left.ids[block.checkpoint].update(block.id_hash.tolist())
    for *_, value in read_all(bootstrap, REPORTS):
        report = decode_report(value)
        if report.pipeline == pipeline:
            newest[report.emitter] = report
    left.last_reports = list(newest.values())
    return left


@contextmanager
def started(bootstrap: str, example: str, pipeline: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The example as a process, killed at the end if it still runs."""
    environment = {**os.environ, "LAGLOSS_KAFKA_BOOTSTRAP": bootstrap, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples" / f"{example}.py", "--pipeline", pipeline, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def run(kafka_bootstrap: str) -> Callable[[str], tuple[str, Left]]:
    """Runs an example to its end; gives its pipeline and what it left."""

    create_topics(kafka_bootstrap)

    def run_example(example: str) -> tuple[str, Left]:
        pipeline = f"{example.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
        with started(kafka_bootstrap, example, pipeline, "--messages", str(MESSAGES)) as process:
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return pipeline, left_by(kafka_bootstrap, pipeline)

    return run_example


class Broker:
    """Asks the broker how far topics and groups are."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def records(self, topic: str) -> int:
        """Records in the topic."""
        ends = self._admin.list_offsets({place: OffsetSpec.latest() for place in _places(topic)})
        return sum(end.result(10).offset for end in ends.values())

    def backlog(self, group: str, topic: str) -> int:
        """Records of the topic that the group has not committed."""
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, _places(topic))])
        committed = asked[group].result(10).topic_partitions
        return self.records(topic) - sum(max(place.offset, 0) for place in committed)


def _places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


SOURCE = {"shop.in": MESSAGES, "shop.out": MESSAGES}
RELAY = {**SOURCE, "enrich.in": MESSAGES, "enrich.out": MESSAGES}
ROBOTS = MESSAGES // 10
EXPECTED = {
    "kafka_source": SOURCE,
    "kafka_service": {**RELAY, "enrich.out": MESSAGES - ROBOTS, "enrich.filtered robot": ROBOTS},
    "kafka_threads": RELAY,
    "kafka_asyncio": RELAY,
    "aiokafka_service": {**RELAY, "enrich.out": MESSAGES - ROBOTS, "enrich.filtered robot": ROBOTS},
    "batch_sink": {**SOURCE, "warehouse.in": MESSAGES, "warehouse.out": MESSAGES},
    "fastapi_service": {**SOURCE, "shop.out": MESSAGES - ROBOTS, "shop.filtered http 422": ROBOTS},
    "spark_job": dict.fromkeys(("extract.in", "extract.out", "load.in", "load.out"), MESSAGES),
    "forked_worker": {"shop.in": 3 * MESSAGES, "shop.out": 3 * MESSAGES},
}
CONSUMERS = {
    **dict.fromkeys(("aiokafka_service", "kafka_service", "kafka_threads", "kafka_asyncio"), "enrich"),
    "batch_sink": "warehouse",
}


def test_every_example_is_run() -> None:
    elsewhere = {"http_service"}  # test_sdk_over_http.py
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*EXPECTED, *elsewhere, "common"}


@pytest.mark.parametrize(
    "example",  # one starts a Spark of its own
    [pytest.param(name, marks=pytest.mark.slow) if name == "spark_job" else name for name in EXPECTED],
)
def test_an_example_leaves_one_beacon_a_checkpoint_and_message_and_ends_in_good_order(
    kafka_bootstrap: str, run: Callable[[str], tuple[str, Left]], example: str
) -> None:
    pipeline, left = run(example)
    assert dict(left.counts) == EXPECTED[example]
    assert {len(ids) for at, ids in left.ids.items() if at.endswith(".in")} == {max(EXPECTED[example].values())}
    assert left.open_nodes() == []
    if example == "forked_worker":  # the parent, and a child of either kind
        assert len(left.last_reports) == 3
    node = CONSUMERS.get(example)
    if node is not None:
        topic = f"{pipeline}.orders"
        progress = left.progress_of(node)
        assert set(progress) == {(f"{node}.out", ""), *((f"{node}.in", f"{topic}/{at}") for at in range(PARTITIONS))}
        began = min(report.started_at for report in left.last_reports)
        assert all(began < until <= time.time() * 1000 for until in progress.values())
        assert Broker(kafka_bootstrap).backlog(pipeline, topic) == 0


@pytest.mark.slow
def test_a_service_killed_in_mid_stream_makes_duplicates_and_no_holes(kafka_bootstrap: str) -> None:
    pipeline, count = f"killed-{uuid.uuid4().hex[:8]}", 100_000
    with started(kafka_bootstrap, "kafka_source", pipeline, "--messages", str(count)) as source:
        assert source.wait(60) == 0
    orders, enriched = f"{pipeline}.orders", f"{pipeline}.enriched"
    broker = Broker(kafka_bootstrap)

    for _ in range(2):
        before = broker.backlog(pipeline, orders)
        with started(kafka_bootstrap, "kafka_service", pipeline, "--no-feed", "--messages", "0") as service:
            wait_for(lambda before=before: broker.backlog(pipeline, orders) < before, 60, "a commit of its own")
            service.send_signal(signal.SIGKILL)
    assert broker.backlog(pipeline, orders) > 0
    with started(kafka_bootstrap, "kafka_service", pipeline, "--no-feed", "--messages", "0") as service:
        wait_for(lambda: broker.backlog(pipeline, orders) == 0, 120, "all committed")
        service.send_signal(signal.SIGTERM)
        assert service.wait(30) == 0

    left = left_by(kafka_bootstrap, pipeline)
    expected = {hash_id(f"order-{number}") for number in range(count)}
    robots = {hash_id(f"order-{number}") for number in range(count) if number % 10 == 7}
    assert left.ids["enrich.in"] == expected
    assert left.ids["enrich.filtered"] == robots
    assert left.ids["enrich.out"] == expected - robots
    assert sorted(left.open_nodes()) == ["enrich", "enrich"]
    assert broker.records(enriched) > len(expected - robots)
    assert len({value for *_, value in read_all(kafka_bootstrap, enriched)}) == len(expected - robots)

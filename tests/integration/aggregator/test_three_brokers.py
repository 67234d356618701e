"""Three brokers, each record on all, acknowledged by two: one is killed while emitters send and windows close."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.store import Store
from tests.conftest import fresh_database
from tests.integration.aggregator.test_aggregator_process import aggregator, define, metric
from tests.support.closers import wait_until
from tests.support.window_documents import documents

NAME = "three"
BEFORE, DURING = 10, 5
"""Minutes whose messages are in the log before the broker is killed, and minutes whose messages are sent meanwhile."""


@pytest.fixture
def three_brokers(jars: None, own_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedKafka]:
    monkeypatch.setenv("LAGLOSS_VERIFY_SHARE", "1")  # windows without a loss are proven, but shall be read here
    with EmbeddedKafka(own_dir, brokers=3, heap_mb=192) as kafka:
        yield kafka


class Traffic:
    """Two nodes, each message at both. `sent` counts messages by minute."""

    def __init__(self, bootstrap: str, start_s: int) -> None:
        self.sent: Counter[int] = Counter()
        self._start_s = start_s
        self._emitters = [Emitter(NAME, node, bootstrap, first=node == "src") for node in ("src", "snk")]

    def send(self, minute: int) -> None:
        at = self.sent[minute]
        event_ms = (self._start_s + 60 * minute) * 1000 + at % 60_000
        for node, emitter in enumerate(self._emitters):
            emitter.received(f"{minute}-{at}", event_ms, observed_at=event_ms + 5 + 10 * node)
            emitter.sent(f"{minute}-{at}", event_ms, observed_at=event_ms + 9 + 10 * node)
        self.sent[minute] += 1

    def send_until(self, enough: threading.Event) -> None:
        """Message after message into the later minutes, two thousand a second at most."""
        at = 0
        while not enough.wait(0.01):
            for _ in range(20):
                self.send(BEFORE + at % DURING)
                at += 1

    def end(self) -> None:
        """Everything is acknowledged, and both nodes say that this was all."""
        for emitter in self._emitters:
            assert emitter.flush(60)
            emitter.close()


def closed(store: Store, start_s: int) -> list[dict[str, Any]]:
    found = documents(store.windows(NAME, start_s, start_s + 60 * (BEFORE + DURING)))
    return [window for window in found if window["state"] == "closed"]


@pytest.mark.slow
def test_a_broker_killed_while_emitters_send_and_windows_close_costs_no_beacon(
    three_brokers: EmbeddedKafka, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    bootstrap = three_brokers.bootstrap
    create_topics(bootstrap, replication=3)
    assert_spread_and_acknowledged_by_two(bootstrap)
    start_s = int(time.time()) // 60 * 60 - 60 * (BEFORE + DURING + 5)
    traffic, enough = Traffic(bootstrap, start_s), threading.Event()
    for at in range(BEFORE * 500):
        traffic.send(at % BEFORE)
    sender = threading.Thread(target=traffic.send_until, args=(enough,))
    with fresh_database(postgres) as url, aggregator(bootstrap, url, tmp_path) as process:
        store = Store(url)
        define(store, NAME)
        sender.start()
        try:
            wait_until(lambda: metric(process.url, "lagloss_block_records_read_total") > 0, 120, "for it to read")
            three_brokers.processes[2].kill()
            alone = sum(traffic.sent.values())
            wait_until(lambda: len(closed(store, start_s)) >= BEFORE, 120, "for the first windows")
            wait_until(lambda: sum(traffic.sent.values()) > alone + 1_000, 60, "for messages sent with two brokers")
        finally:
            enough.set()
            sender.join()
        traffic.end()

        def wrong() -> dict[int, Any]:
            found = {
                at: (window["verdict"], window["messages"], window["delivered"], window["lost"]["max"])
                for at, window in enumerate(closed(store, start_s))
            }
            right = {at: ("ok", count, count, 0) for at, count in traffic.sent.items()}
            return {at: (found.get(at), right[at]) for at in right if found.get(at) != right[at]}

        wait_until(lambda: not wrong(), 120, f"for exact counts: {wrong()}")
        assert three_brokers.processes[2].poll() == -9
        assert process.poll() is None
        store.close()


def assert_spread_and_acknowledged_by_two(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def copies_and_leaders(topic: str) -> tuple[set[int], set[int]]:
        partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions.values()
        return {len(partition.replicas) for partition in partitions}, {partition.leader for partition in partitions}

    def acknowledged_by(topic: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            return str(admin.describe_configs([resource])[resource].result(20)["min.insync.replicas"].value)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return None

    for topic in (BEACONS, REPORTS):
        # whichever broker is asked, which is another one each time, may hear of a new topic after the one that made it
        wait_until(lambda topic=topic: copies_and_leaders(topic) == ({3}, {1, 2, 3}), 20, f"for {topic} on 3 brokers")
        assert wait_until(lambda topic=topic: acknowledged_by(topic), 20, f"for settings of {topic}") == "2"

"""A tap that a new version replaces, and the one in its place: each window is one's own, whatever comes late."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.broker.topics import create_topics
from lagloss.wire.format import EmitterReport, hash_id
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import Interval, ListedWindow
from lagloss_server.store.store import Store
from pipeline_under_test.harness.stack import ScenarioStack
from taps.service import TapService
from taps.wanted import RunningTap, by_emitter, taps_after
from tests.support.kafka_log import blocks_of, reports_of, wait_for
from tests.support.tapped_pipelines import Tapped

DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [mail], taps: {out: {topic: NAME, id: $.id, eventTime: $.at}}}
    - {name: mail, taps: {in: {group: GROUP}}}
  lookback: 5m
  grace: 2s
  maxWait: 30s
"""
MINUTE_MS = 60_000


class Orders:
    """A topic of one partition, and groups that commit."""

    def __init__(self, bootstrap: str) -> None:
        self.name, self._bootstrap, self.count = f"orders-{uuid.uuid4().hex[:8]}", bootstrap, 0
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.name, 1, 1)])[self.name].result(10)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def definition(self, group: str) -> str:
        return DEFINITION.replace("NAME", self.name).replace("GROUP", f"{self.name}-{group}")

    def send(self, message_id: str, event_ms: int) -> None:
        self.count += 1
        self._producer.produce(self.name, json.dumps({"id": message_id, "at": event_ms}))
        assert self._producer.flush(10) == 0

    def commit(self, group: str) -> None:
        """Have a group take in all that was sent."""
        settings = {"bootstrap.servers": self._bootstrap, "group.id": f"{self.name}-{group}"}
        consumer = Consumer(settings)
        consumer.commit(offsets=[TopicPartition(self.name, 0, self.count)], asynchronous=False)
        consumer.close()


@contextmanager
def running_taps(bootstrap: str, database_url: str) -> Iterator[TapService]:
    service, stop = TapService(bootstrap, database_url), threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        yield service
    finally:
        stop.set()
        thread.join()


def taps_of(store: Store, name: str) -> dict[tuple[str, bool], RunningTap]:
    """The taps of a pipeline by node and whether they were replaced."""
    taps = by_emitter([taps_after(None, store.versions_of(name))])
    return {(tap.tap.node, tap.until_ms is not None): tap for tap in taps.values()}


def seen(bootstrap: str, tap: RunningTap) -> set[int]:
    """The hashes of the messages that a tap has seen come in."""
    blocks = (stored.block for stored in blocks_of(bootstrap, tap.emitter))
    return {id_ for block in blocks if block.checkpoint.endswith(".in") for id_ in block.id_hash.tolist()}


def newest(bootstrap: str, tap: RunningTap) -> EmitterReport:
    return max(reports_of(bootstrap, tap.emitter), key=lambda report: report.seq)


def test_a_late_message_is_of_the_tap_of_its_minute(kafka_bootstrap: str, database_url: str) -> None:
    create_topics(kafka_bootstrap)
    orders = Orders(kafka_bootstrap)
    with closing(Store(database_url)) as store, running_taps(kafka_bootstrap, database_url):
        store.apply(parse_definition(orders.definition("old")))
        before_ms = time.time_ns() // 1_000_000 - MINUTE_MS
        orders.send("early", before_ms)
        orders.commit("old")
        first = taps_of(store, orders.name)["mail", False]
        wait_for(lambda: hash_id("early") in seen(kafka_bootstrap, first), 60)
        store.apply(parse_definition(orders.definition("new")))
        taps = taps_of(store, orders.name)
        replaced, heir = taps["mail", True], taps["mail", False]
        assert replaced.emitter == first.emitter
        assert taps["shop", False].until_ms is None, "it is in both versions"
        until_ms = replaced.until_ms
        assert until_ms == heir.since_ms
        wait_for(lambda: newest(kafka_bootstrap, first).closed, 60)
        report = newest(kafka_bootstrap, first)
        assert (report.unfinished, report.sent_at) == (True, until_ms)
        orders.send("late", before_ms)
        orders.send("next", until_ms)
        orders.commit("old")
        orders.commit("new")
        wait_for(lambda: hash_id("next") in seen(kafka_bootstrap, heir), 60)
        wait_for(lambda: hash_id("late") in seen(kafka_bootstrap, first), 60)
        assert hash_id("next") not in seen(kafka_bootstrap, first)
        assert not {hash_id("early"), hash_id("late")} & seen(kafka_bootstrap, heir)
        assert newest(kafka_bootstrap, first).closed


@pytest.mark.slow
def test_what_is_late_when_a_tap_is_replaced_is_never_lost_for_certain(jars: None, tmp_path: Path) -> None:
    with ScenarioStack() as stack, closing(Store(stack.settings.require_database())) as store:
        orders = Orders(stack.settings.require_kafka())
        tapped = Tapped(orders.name, stack, store, tmp_path)
        tapped.apply(orders.definition("old"))
        window_ms = time.time_ns() // 1_000_000 // MINUTE_MS * MINUTE_MS - 2 * MINUTE_MS
        start_s = window_ms // 1_000

        def look() -> ListedWindow | None:
            """Return what is said of the window, which may be anything but that a message is lost for certain."""
            window = next(iter(store.windows(orders.name, start_s, start_s + 1)), None)
            assert window is None or window.lost is None or window.lost.min == 0, window
            return window

        def send(count: int) -> None:
            for _ in range(count):
                orders.send(f"order-{orders.count}", window_ms + orders.count)

        send(40)
        orders.commit("old")
        send(10)
        wait_for(lambda: (window := look()) is not None and window.messages == 50, 60, "a first look")
        tapped.apply(orders.definition("new"))
        send(10)
        orders.commit("new")
        heir = taps_of(store, orders.name)["mail", False]
        wait_for(lambda: bool(reports_of(tapped.bootstrap, heir.emitter)), 60, "the new tap")
        wait_for(lambda: (window := look()) is not None and window.messages == 60, 60, "the late ones")
        wait_for(lambda: (window := look()) is not None and window.lost == Interval(0, 20), 120, "20 that are overdue")
        orders.commit("old")
        wait_for(lambda: (window := look()) is not None and window.verdict == "ok", 60, "all of them received")

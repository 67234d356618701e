"""Records as producers, admins and exporters really make them: nothing that is in both topics is lost for certain."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from lagloss.wire.format import WINDOW_S
from lagloss_server.base.instances import read_endpoints
from lagloss_server.store.store import Store
from pipeline_under_test.harness.stack import ScenarioStack
from tests.support.kafka_log import wait_for
from tests.support.tap_histories import STAMPS
from tests.support.tapped_pipelines import SETTLED_S, Tapped
from tests.support.window_documents import documents, window_of

COPIED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [copier], taps: {out: {topic: NAME.orders, id: $.id, eventTime: $.at}}}
    - {name: copier, taps: {in: {group: NAME.copier}, out: {topic: NAME.copied}}}
  grace: 2s
  maxWait: 20s
  lookback: 10m
"""
COUNT = 20
BROKEN = b"{broken"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(jars: None) -> Iterator[ScenarioStack]:
    with ScenarioStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def make(stack: ScenarioStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Tapped]]:
    """Makes a pipeline with topics of its own, which is not applied yet."""
    store = Store(stack.settings.require_database())

    def make_one() -> Tapped:
        tapped = Tapped(f"odd-{uuid.uuid4().hex[:8]}", stack, store, tmp_path_factory.mktemp("tapped"))
        tapped.create_topics(1, f"{tapped.name}.orders", f"{tapped.name}.copied")
        take_any_timestamp(tapped)
        return tapped

    try:
        yield make_one
    finally:
        store.close()


@pytest.fixture
def tapped(make: Callable[[], Tapped]) -> Tapped:
    return make()


def take_any_timestamp(tapped: Tapped) -> None:
    """Have the broker refuse no timestamp, as brokers before 3.6 do, and delete no record by it."""
    config = {"message.timestamp.after.max.ms": str((1 << 63) - 1), "retention.ms": "-1"}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    topics = [
        ConfigResource(ResourceType.TOPIC, f"{tapped.name}.{name}", incremental_configs=entries)
        for name in ("orders", "copied")
    ]
    admin = AdminClient({"bootstrap.servers": tapped.bootstrap})  # it answers as long as it is there
    for future in admin.incremental_alter_configs(topics).values():
        future.result(30)


def last_window() -> int:
    """Return the start (epoch s) of the newest window that is over."""
    return int(time.time()) // WINDOW_S * WINDOW_S - WINDOW_S


def send(tapped: Tapped, topic: str, values: dict[int, bytes], stamp: Callable[[int], int]) -> None:
    producer = Producer({"bootstrap.servers": tapped.bootstrap})
    for value in values.values():
        producer.produce(f"{tapped.name}.{topic}", value, timestamp=stamp(time.time_ns() // 1_000_000))
    assert producer.flush(30) == 0


def orders(window: int) -> dict[int, bytes]:
    """Return orders of a window by number."""
    return {
        number: json.dumps({"id": f"order-{number}", "at": window * 1_000 + number}).encode() for number in range(COUNT)
    }


def commit(tapped: Tapped, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": tapped.bootstrap, "group.id": f"{tapped.name}.copier"})
    try:
        place = TopicPartition(f"{tapped.name}.orders", 0, offset)
        consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


def window_once(tapped: Tapped, start: int, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the result of a window as soon as a condition holds."""

    def found() -> dict[str, Any] | None:
        windows = {
            window_of(each).start_s: each
            for each in documents(tapped.store.windows(tapped.name, start, start + WINDOW_S))
        }
        window = windows.get(start)
        return window if window is not None and window["state"] != "open" and condition(window) else None

    wait_for(lambda: found() is not None, timeout_s=SETTLED_S, what=f"the result of window {start}")
    window = found()
    assert window is not None
    return window


IN_BOTH = ("seconds", "one", "microseconds", "far ahead", "of its input")
Begun = dict[str, tuple[Tapped, int]]
"""By timestamp, a pipeline and its window. All begin together, since each waits for some seconds to be judged."""


@pytest.fixture(scope="module")
def in_both(make: Callable[[], Tapped]) -> Begun:
    """Messages in both topics."""
    begun: Begun = {}
    for stamped in IN_BOTH:
        tapped, window = begun[stamped] = make(), last_window()
        send(tapped, "orders", orders(window), STAMPS[stamped])
        commit(tapped, COUNT)
        send(tapped, "copied", orders(window), STAMPS[stamped])
        tapped.apply(COPIED)
    return begun


@pytest.mark.parametrize("stamped", IN_BOTH)
def test_messages_in_both_topics_are_delivered_whatever_their_timestamps(in_both: Begun, stamped: str) -> None:
    tapped, window = in_both[stamped]
    result = window_once(tapped, window, lambda found: found["delivered"] == COUNT)
    assert result["lost"] == {"min": 0, "max": 0}
    assert result["verdict"] == "ok"


def test_a_lost_message_is_not_pending_for_as_long_as_a_producer_s_clock_is_ahead(tapped: Tapped) -> None:
    window = last_window()
    sent = orders(window)
    send(tapped, "orders", sent, STAMPS["ahead"])
    commit(tapped, COUNT)
    send(tapped, "copied", {number: value for number, value in sent.items() if number != 7}, STAMPS["ahead"])
    tapped.apply(COPIED)
    result = window_once(tapped, window, lambda found: found["delivered"] == COUNT - 1 and not found["pending"])
    assert result["lost"]["max"] == 1


@pytest.fixture(scope="module")
def unreadable(make: Callable[[], Tapped]) -> Begun:
    """One of the messages in the second topic cannot be read."""
    begun: Begun = {}
    for stamped in STAMPS:
        tapped, window = begun[stamped] = make(), last_window()
        sent = orders(window)
        tapped.apply(COPIED)
        send(tapped, "orders", sent, STAMPS["honest"])
        commit(tapped, COUNT)
        send(tapped, "copied", {number: value for number, value in sent.items() if number != 7}, STAMPS["honest"])
        send(tapped, "copied", {7: BROKEN}, STAMPS[stamped])
    return begun


@pytest.mark.parametrize("stamped", list(STAMPS))
def test_a_message_whose_record_cannot_be_read_is_not_lost_for_certain(unreadable: Begun, stamped: str) -> None:
    tapped, window = unreadable[stamped]
    result = window_once(tapped, window, lambda found: found["delivered"] == COUNT - 1 and not found["pending"])
    assert result["lost"] == {"min": 0, "max": 1}
    dashboard = read_endpoints(tapped.stack.directory)["dashboard"]
    taps = f"{dashboard}/api/v1/pipelines/{tapped.name}/taps"
    wait_for(
        lambda: "not_json" in httpx2.get(taps).raise_for_status().text, timeout_s=60, what="the count of the record"
    )


def test_records_that_come_after_a_commit_beyond_the_end_are_received_by_nobody(tapped: Tapped) -> None:
    window = last_window()
    sent = orders(window)
    tapped.apply(COPIED)
    send(tapped, "orders", {number: value for number, value in sent.items() if number < 10}, STAMPS["honest"])
    commit(tapped, 10)
    send(tapped, "copied", {number: value for number, value in sent.items() if number < 10}, STAMPS["honest"])
    window_once(tapped, window, lambda found: found["delivered"] == 10)
    commit(tapped, 15)
    seen_beyond = f"SELECT count(*) FROM tap WHERE pipeline = '{tapped.name}' AND plan->'void' ? '0'"
    wait_for(lambda: count(tapped, seen_beyond) == 1, timeout_s=60, what="the commit beyond the end")
    send(tapped, "orders", {number: value for number, value in sent.items() if number >= 10}, STAMPS["honest"])
    result = window_once(tapped, window, lambda found: found["messages"] == COUNT and not found["pending"])
    assert result["lost"] == {"min": 0, "max": 10}  # overdue: the group has not read them
    commit(tapped, 12)
    commit(tapped, COUNT)
    send(tapped, "copied", {number: value for number, value in sent.items() if number >= 10}, STAMPS["honest"])
    result = window_once(tapped, window, lambda found: found["delivered"] == COUNT)
    assert result["lost"] == {"min": 0, "max": 0}


def count(tapped: Tapped, statement: str) -> int:
    with tapped.store.engine.connect() as connection:
        return int(connection.exec_driver_sql(statement).scalar_one())

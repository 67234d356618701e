"""Offsets of source connectors, as a tap reads them in Kafka Connect's offset topic on a real broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from taps import source_offsets
from taps.clusters import TapCluster
from taps.plan import STANDING_MS
from taps.planner import NewCommits
from taps.source_offsets import ConnectorCommits
from tests.support.kafka_log import wait_for

ORDERS = "orders"


@dataclass
class Storage:
    """An offset topic, and the worker that writes to it."""

    bootstrap: str
    topic: str = field(default_factory=lambda: f"offsets-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        self.cluster = TapCluster("", self.bootstrap)
        self.create()

    def create(self) -> None:
        config = {"cleanup.policy": "compact"}
        self.admin.create_topics([NewTopic(self.topic, 2, 1, config=config)])[self.topic].result(20)
        wait_for(self._is_led, what="the leaders of the offset topic")

    def _is_led(self) -> bool:
        try:
            return bool(self.cluster.topics.look(self.topic, range(2)))
        except KafkaException:
            return False

    def store(self, offset: int | None, partition: int = 0, alias: str = "a", **more: Any) -> None:
        """Store that a connector has read the record at an offset; None: it is reset."""
        key = ["mirror", {"cluster": alias, "partition": partition, "topic": ORDERS}]
        value = None if offset is None else json.dumps({"offset": offset})
        self.write(json.dumps(key), value, **more)

    def write(self, key: str, value: str | None, producer: Producer | None = None, **more: Any) -> None:
        sender = producer or self.producer
        sender.produce(self.topic, value, key, **more)
        assert sender.flush(20) == 0

    def tap(self) -> ConnectorCommits:
        return ConnectorCommits(self.cluster.source_offsets(self.topic), "mirror", ORDERS)


@pytest.fixture
def storage(kafka_bootstrap: str) -> Iterator[Storage]:
    made = Storage(kafka_bootstrap)
    yield made
    made.cluster.close(10)
    made.admin.delete_topics([made.topic])


def marks(commits: NewCommits) -> dict[int, list[int]]:
    return {partition: [mark.offset for mark in some] for partition, some in commits.marks.items()}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def until(tap: ConnectorCommits, last: NewCommits, expected: dict[int, list[int]]) -> NewCommits:
    """Return what a tap has read when it has these new offsets: the look of a turn may be from before they came."""
    found: dict[int, list[int]] = {}
    deadline = time.monotonic() + 20
    while found != expected:
        assert time.monotonic() < deadline, found
        last = tap.read(last.next, 0)
        for partition, some in marks(last).items():
            found.setdefault(partition, []).extend(some)
    return last


def test_the_next_offset_counts_and_what_stood_before_the_tap_began_is_told_by_its_time(storage: Storage) -> None:
    storage.store(9, timestamp=now_ms() - 3_600_000)
    before_ms = now_ms()
    storage.store(19, partition=1)
    tap = storage.tap()
    begun = tap.read({}, before_ms - 60_000)
    assert marks(begun) == {0: [10], 1: [20]}
    assert begun.marks[0][0].at_ms == STANDING_MS
    assert before_ms <= begun.marks[1][0].at_ms <= now_ms()
    assert begun.at_ms is not None
    storage.store(None)
    storage.store(24)
    storage.store(22)
    assert until(tap, begun, {0: [25, 23]}).unreadable == {}


def test_who_takes_over_reads_on_and_counts_odd_records_no_second_time(storage: Storage) -> None:
    storage.store(9)
    storage.write("{", '{"offset": 99}')
    storage.write('["mirror", {"server": "shop"}]', '{"lsn": 99}')
    storage.write('["another", {"server": "shop"}]', '{"lsn": 99}')
    begun = storage.tap().read({}, 0)
    counted = {reason: records.count for reason, records in begun.unreadable.items()}
    assert (marks(begun), counted) == ({0: [10]}, {"bad_key": 1, "no_topic": 1})
    storage.store(29)
    after = storage.tap().read(begun.next, 0)
    assert (marks(after), after.unreadable) == ({0: [30]}, {})


def test_offsets_of_an_aborted_transaction_are_none_and_an_open_one_holds_progress_back(storage: Storage) -> None:
    tap = storage.tap()
    begun = tap.read({}, 0)
    exactly_once = Producer({"bootstrap.servers": storage.bootstrap, "transactional.id": storage.topic, "log_level": 0})
    exactly_once.init_transactions(20)
    exactly_once.begin_transaction()
    storage.store(99, producer=exactly_once)
    storage.store(49, partition=1)
    turns = [begun]

    def next_turn() -> NewCommits:
        turns.append(tap.read(turns[-1].next, 0))
        return turns[-1]

    wait_for(lambda: next_turn().at_ms is None, what="progress that is held back")
    assert 0 not in storage.tap().read({}, 0).marks
    exactly_once.abort_transaction(20)
    storage.store(9)
    wait_for(lambda: next_turn().at_ms is not None and any(0 in turn.marks for turn in turns), what="the next offset")
    assert [offset for turn in turns for offset in marks(turn).get(0, [])] == [10]


def test_a_connector_that_stored_offsets_of_two_clusters_is_not_followed_until_one_is_reset(storage: Storage) -> None:
    storage.store(9, alias="a")
    storage.store(99, alias="b")
    tap = storage.tap()
    with pytest.raises(KafkaException, match="in the clusters a, b; only those of one can be followed"):
        tap.read({}, 0)
    storage.store(None, alias="b")
    wait_for(lambda: _reads(tap), what="the offsets of one cluster")


def test_an_offset_topic_that_was_widened_is_read_on(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_offsets, "DESCRIBE_S", 0.0)
    storage.store(9)
    tap = storage.tap()
    turns = [tap.read({}, 0)]
    storage.admin.create_partitions([NewPartitions(storage.topic, 3)])[storage.topic].result(20)

    def reads_all_partitions() -> bool:
        try:
            turns.append(tap.read(turns[-1].next, 0))
        except KafkaException:  # the new partition has no leader yet
            return False
        return len(turns[-1].next) == 3

    wait_for(reads_all_partitions, what="the third partition")
    assert [offset for turn in turns for offset in marks(turn).get(0, [])] == [10]


def _reads(tap: ConnectorCommits) -> bool:
    try:
        return marks(tap.read({}, 0)) == {0: [10]}
    except KafkaException:
        return False

"""A KafkaNode that observes: commits and transactions are the host's, and a message is in flight until it has left."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Message, Producer, TopicPartition

from lagloss import MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.identity import Identity
from lagloss.kafka import KafkaNode, NodeConsumer, NodeProducer, base
from lagloss.kafka.commits import Taken
from lagloss.kafka.lane_proofs import LaneProofs
from lagloss.wire.format import decode_block, decode_report
from tests.support.kafka_log import wait_for
from tests.support.mock_kafka import mock_kafka

NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with mock_kafka() as address:
        yield address


@dataclass
class Observed:
    """A node that observes, and the topic that it reads."""

    bootstrap: str
    topic: str
    node: KafkaNode
    log: MemoryOutlet

    def put(self, *names: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for name in names:
            producer.produce(self.topic, name, partition=0, headers=Identity(name, NOW_MS).headers())
        assert producer.flush(10) == 0

    def consumer(self, **config: Any) -> NodeConsumer:
        shared = {"bootstrap.servers": self.bootstrap, "group.id": self.topic, "auto.offset.reset": "earliest"}
        consumer = self.node.consumer({**shared, "log_level": 0, **config})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        return consumer

    def transactional(self) -> NodeProducer:
        config = {"bootstrap.servers": self.bootstrap, "transactional.id": self.topic, "log_level": 0}
        producer = self.node.producer(config)
        producer.init_transactions(10)
        producer.begin_transaction()
        return producer

    def beacons(self) -> Counter[str]:
        assert self.node.emitter.flush()
        counts = Counter[str]()
        for block in map(decode_block, self.log.values(BEACONS)):
            counts[block.checkpoint] += block.count
        return counts

    def work(self) -> int:
        """How many messages are in flight."""
        return len(self.node.emitter._beacons.hand)


@pytest.fixture
def observed(bootstrap: str) -> Iterator[Observed]:
    log = MemoryOutlet()
    with KafkaNode("orders", "mid", "unused", observe=True, outlet=lambda: log) as node:
        yield Observed(bootstrap, f"t-{uuid.uuid4().hex[:8]}", node, log)


def polled(consumer: NodeConsumer) -> Message:
    deadline = time.monotonic() + 20
    while (message := consumer.poll(0.2)) is None:
        assert time.monotonic() < deadline
    assert message.error() is None
    return message


def record(offset: int) -> Message:
    return Message(topic="orders", partition=0, offset=offset, value=b"", headers=Identity("a", NOW_MS).headers())


def test_the_hosts_commits_are_made_as_they_are_and_nothing_else_is_committed(observed: Observed) -> None:
    observed.put("a", "b", "c")
    consumer = observed.consumer(**{"enable.auto.commit": False})
    first, *_ = (polled(consumer) for _ in range(3))
    partition = TopicPartition(observed.topic, 0)
    observed.node.sent(first)
    assert observed.beacons()["mid.out"] == 1
    consumer.poll(0)
    assert consumer.committed([partition], timeout=10)[0].offset < 0, "nothing was committed by the node"
    consumer.commit(offsets=[TopicPartition(observed.topic, 0, 2)], asynchronous=False)
    assert consumer.committed([partition], timeout=10)[0].offset == 2
    consumer.commit(message=first, asynchronous=False)
    assert consumer.committed([partition], timeout=10)[0].offset == 1
    consumer.commit(asynchronous=False)
    assert consumer.committed([partition], timeout=10)[0].offset == 3


def test_a_message_without_an_exit_stays_in_flight_whatever_the_host_polls_and_commits(observed: Observed) -> None:
    observed.put("a", "b", "c")
    consumer = observed.consumer()
    first, second, third = (polled(consumer) for _ in range(3))
    consumer.commit(message=third, asynchronous=False)
    consumer.poll(0)
    assert observed.work() == 3
    observed.node.sent(third)
    observed.node.filtered(second, "robot")
    consumer.close()
    assert observed.work() == 1
    observed.node.dead_lettered(first, "unreadable")
    assert observed.work() == 0


def test_it_does_not_report_that_it_resumes_and_ends_in_order_only_when_every_message_has_left(
    observed: Observed,
) -> None:
    observed.put("a", "b")
    consumer = observed.consumer()
    first, _ = polled(consumer), polled(consumer)
    observed.node.sent(first)
    observed.node.emitter.close()  # as at exit, or by a middleware that shares it
    reports = [decode_report(value) for value in observed.log.values(REPORTS)]
    assert not any(report.resumes for report in reports)
    assert (reports[-1].closed, reports[-1].unfinished) == (True, True)


def test_an_orderly_end_with_nothing_left_is_closed(observed: Observed) -> None:
    observed.put("a")
    observed.node.sent(polled(observed.consumer()))
    assert observed.node.close()
    last = decode_report(observed.log.values(REPORTS)[-1])
    assert (last.closed, last.unfinished) == (True, False)


def test_outputs_are_out_with_the_commit_of_their_transaction(observed: Observed) -> None:
    observed.put("a", "b")
    consumer, producer = observed.consumer(), observed.transactional()
    delivered: list[bytes | None] = []
    for _ in range(2):
        message = polled(consumer)
        producer.produce(
            f"{observed.topic}-out", message.value(), on_delivery=lambda _, at: delivered.append(at.value())
        )
    assert producer.flush(10) == 0
    assert sorted(map(bytes, filter(None, delivered))) == [b"a", b"b"]
    assert observed.beacons() == {"mid.in": 2}
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 10)
    producer.commit_transaction(10)
    assert observed.beacons() == {"mid.in": 2, "mid.out": 2}
    assert observed.work() == 1  # the last is handled until the next poll
    consumer.poll(0)
    assert observed.work() == 0


def test_outputs_of_an_aborted_transaction_are_not_out_and_stay_in_flight_until_they_are_sent_again(
    observed: Observed,
) -> None:
    observed.put("a")
    consumer, producer = observed.consumer(), observed.transactional()
    message = polled(consumer)
    producer.produce(f"{observed.topic}-out", b"")
    assert producer.flush(10) == 0
    producer.abort_transaction(10)
    consumer.poll(0)
    assert observed.beacons() == {"mid.in": 1}
    assert observed.work() == 1
    producer.begin_transaction()
    producer.produce(f"{observed.topic}-out", b"", source=message)
    producer.commit_transaction(10)
    assert observed.beacons() == {"mid.in": 1, "mid.out": 1}
    assert observed.work() == 0


def test_a_message_that_is_read_again_after_an_abort_is_in_flight_once(observed: Observed) -> None:
    observed.put("a")
    consumer, producer = observed.consumer(), observed.transactional()
    polled(consumer)
    producer.produce(f"{observed.topic}-out", b"")
    producer.abort_transaction(10)
    consumer.seek(TopicPartition(observed.topic, 0, 0))
    polled(consumer)
    assert observed.work() == 1
    producer.begin_transaction()
    producer.produce(f"{observed.topic}-out", b"")
    producer.commit_transaction(10)
    consumer.poll(0)
    assert observed.work() == 0


def test_what_a_first_node_makes_in_an_aborted_transaction_never_came_in(bootstrap: str) -> None:
    log = MemoryOutlet()
    with KafkaNode("orders", "src", "unused", first=True, observe=True, outlet=lambda: log) as node:
        source = Observed(bootstrap, f"t-{uuid.uuid4().hex[:8]}", node, log)
        producer = source.transactional()
        producer.produce(source.topic, b"", message_id="never")
        producer.abort_transaction(10)
        producer.begin_transaction()
        producer.produce(source.topic, b"", message_id="made")
        assert producer.flush(10) == 0
        assert source.beacons() == {}
        producer.commit_transaction(10)
        assert source.beacons() == {"src.in": 1, "src.out": 1}
        assert source.work() == 0


def test_a_transactional_producer_of_a_node_that_commits_is_refused_with_the_way_out(bootstrap: str) -> None:
    config = {"bootstrap.servers": bootstrap, "transactional.id": "t"}
    with (
        KafkaNode("orders", "mid", "unused", outlet=MemoryOutlet) as node,
        pytest.raises(ValueError, match="observe=True"),
    ):
        node.producer(config)


def test_messages_of_revoked_partitions_stay_in_flight_whatever_the_host_commits(observed: Observed) -> None:
    consumer = object()
    observed.node.take(record(7), Taken(7))
    observed.node.release_partitions([("orders", 0)], consumer)
    observed.node.end_handovers(consumer, {("orders", 0): 8})
    assert (observed.node.handed_over(consumer), observed.work()) == (set(), 1)


def test_memory_is_bounded_and_the_oldest_message_stands_for_those_that_are_forgotten(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_AWAITED", 100)
    oldest = observed.node.take(record(0), Taken(0))
    began = observed.node.emitter._beacons.in_flight_since()
    for offset in range(1, 1_000):
        observed.node.take(record(offset), Taken(offset))
    assert len(observed.node._in_flight) <= 100
    for offset in range(1_000):
        observed.node.sent(record(offset))
    for handling in list(observed.node._in_flight.values()):
        handling.end_handling()
    assert oldest is not None
    assert observed.work() == 1
    assert observed.node.emitter._beacons.in_flight_since() == began


def test_what_a_forward_seek_skips_holds_the_lane_back_until_the_host_goes_back(observed: Observed) -> None:
    observed.put(*"abcdef")
    consumer = observed.consumer()
    polled(consumer)
    lane = f"{observed.topic}/0"

    def until() -> dict[str, int]:
        return {progress.lane: progress.until for progress in consumer._lanes.snapshot()}

    consumer.seek(TopicPartition(observed.topic, 0, 5))
    polled(consumer)
    for _ in range(2):
        assert until().get(lane, 0) == 0
        assert until()[""] == 0
    consumer._lanes.seek(TopicPartition(observed.topic, 0, OFFSET_END))  # the client looks it up, and may be late
    assert until().get(lane, 0) == 0
    consumer.seek(TopicPartition(observed.topic, 0, 1))
    for _ in range(5):
        polled(consumer)
    wait_for(lambda: until().get(lane, 0) > 0, what="proof")
    snapshot = until()
    assert snapshot[""] == snapshot[lane]


@pytest.mark.parametrize("start", [0, None])
@pytest.mark.parametrize("taken", [True, False])
def test_records_that_a_seek_skips_hold_their_lane_back_even_before_the_first_is_received(
    taken: bool, start: int | None
) -> None:
    proofs = LaneProofs("mid.in", observe=True)
    proofs.hold(("orders", 0), start)
    if taken:
        proofs.take(("orders", 0), 0, None)
    proofs.seek(("orders", 0), 5)
    proofs.take(("orders", 0), 5, None)
    is_held_back = taken or start is not None
    assert proofs.taken().get(("orders", 0), (0, 0))[0] == (int(taken) if is_held_back else 6)

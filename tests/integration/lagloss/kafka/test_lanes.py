"""Lanes against a real consumer group: `until` never claims more than was taken in."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from lagloss import Emitter, KafkaLanes, MemoryOutlet
from lagloss.broker.topics import create_topics
from lagloss.kafka.lanes import Hook
from lagloss.sdk.flusher import LONGEST_S
from lagloss.wire.format import EmitterReport
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from tests.support.kafka_log import consumer_of, newest_tallies, reports_of, wait_for

MakeTopic = Callable[..., str]

TWO_CALLBACKS = """
import sys, time
from confluent_kafka import Consumer
from lagloss import KafkaLanes

bootstrap, topic = sys.argv[1:]
callbacks = []
config = {"bootstrap.servers": bootstrap, "group.id": topic, "statistics.interval.ms": 50}
consumer = Consumer({**config, "stats_cb": lambda _: callbacks.append("statistics")})
lanes = KafkaLanes(consumer, "mid.in", bootstrap)

def assigned(*_):
    callbacks.append("assigned")
    time.sleep(0.5)  # while statistics fall due, whose callback belongs to the same call of the client

lanes.subscribe([topic], on_assign=assigned)
while "assigned" not in callbacks:
    consumer.consume(1, timeout=1)
assert callbacks[-1] == "statistics", callbacks
assert lanes.last_error is None, lanes.last_error
consumer.close()
"""


@pytest.fixture
def make_topic(kafka_bootstrap: str) -> MakeTopic:
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})

    def make(partitions: int = 2, timestamps: str = "LogAppendTime") -> str:
        name = f"lanes-{uuid.uuid4().hex[:8]}"
        topic = NewTopic(name, partitions, 1, config={"message.timestamp.type": timestamps})
        admin.create_topics([topic])[name].result(20)
        return name

    return make


@pytest.fixture
def producer(kafka_bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": kafka_bootstrap, "linger.ms": 0, "log_level": 0})


def put(producer: Producer, topic: str, partition: int, count: int = 1, timestamp: int = 0) -> None:
    for i in range(count):
        producer.produce(topic, f"{i}", partition=partition, timestamp=timestamp)
    assert producer.flush(20) == 0


def poll(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` messages, end-of-partition ones left out."""
    found: list[Message] = []
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline, f"expected {count} messages, found {len(found)}"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
    return found


def join(consumer: Consumer, lanes: KafkaLanes, topic: str, partitions: int) -> None:
    consumer.subscribe([topic], on_assign=lanes.assigned, on_revoke=lanes.revoked)

    def has_them() -> bool:
        assert consumer.poll(0.05) is None
        return len(consumer.assignment()) == partitions

    wait_for(has_them, what="assignment")


def lanes_of(lanes: KafkaLanes) -> dict[int, int]:
    return {int(progress.lane.rsplit("/", 1)[1]): progress.until for progress in lanes.snapshot()}


def stands_still(lanes: KafkaLanes) -> bool:
    before, asked = lanes_of(lanes), now_ms()
    wait_for(lambda: now_ms() > asked + 5, what="the clock")
    return lanes_of(lanes) == before


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def in_thread(step: Callable[[], None]) -> Iterator[None]:
    """Takes this step again and again meanwhile."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def takes_in(consumer: Consumer, lanes: KafkaLanes, emitter: Emitter) -> Callable[[], None]:
    """A step of a host that waits in `poll`, up to a second at a time."""

    def step() -> None:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            emitter.received(f"{message.partition()}-{message.offset()}", now_ms())
            lanes.taken(message)

    return step


def test_a_lane_from_which_nothing_waits_is_taken_in_up_to_now(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=2)
    put(producer, topic, partition=0, count=5)
    with consumer_of(kafka_bootstrap) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        lanes.subscribe([topic])
        for message in poll(consumer, 5):
            lanes.taken(message)
        before = now_ms()
        found = lanes.snapshot()
        assert {(progress.checkpoint, progress.lane) for progress in found} == {
            ("mid.in", f"{topic}/0"),
            ("mid.in", f"{topic}/1"),
        }
        assert all(before <= progress.until <= now_ms() for progress in found)


def test_a_stuck_partition_stands_at_its_last_record_taken_in_while_the_other_moves_on(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=2)
    with consumer_of(kafka_bootstrap) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        consumer.subscribe([topic], on_assign=lanes.assigned, on_revoke=lanes.revoked)
        put(producer, topic, partition=0, count=2)
        put(producer, topic, partition=1, count=2)
        first = sorted(poll(consumer, 4), key=lambda message: (message.partition(), message.offset()))
        for message in (first[0], first[1], first[2]):
            lanes.taken(message)
        before = now_ms()
        found = lanes_of(lanes)
        assert found[0] >= before
        assert found[1] == first[2].timestamp()[1]

        put(producer, topic, partition=0)
        put(producer, topic, partition=1)
        (fresh,) = [message for message in poll(consumer, 2) if message.partition() == 0]
        lanes.taken(fresh)
        assert lanes_of(lanes) == {0: pytest.approx(now_ms(), abs=2_000), 1: first[2].timestamp()[1]}


def test_fetched_and_not_yet_taken_in_is_not_taken_in(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=1)
    put(producer, topic, partition=0, count=3)
    with consumer_of(kafka_bootstrap) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        lanes.subscribe([topic])
        messages = poll(consumer, 3)
        assert lanes_of(lanes) == {0: 0}  # a new group: nobody has taken anything in
        lanes.taken(messages[0])
        assert lanes_of(lanes) == {0: messages[0].timestamp()[1]}


def test_timestamps_set_by_producers_prove_nothing_but_reaching_a_former_end_does(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=1, timestamps="CreateTime")
    ahead = now_ms() + 600_000
    put(producer, topic, partition=0, count=2, timestamp=ahead)
    with consumer_of(kafka_bootstrap) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        lanes.subscribe([topic])
        first, second = poll(consumer, 2)
        lanes.taken(first)
        asked = now_ms()
        assert lanes_of(lanes) == {0: 0}
        put(producer, topic, partition=0, count=2, timestamp=ahead)
        lanes.taken(second)
        put_in = now_ms()
        until = lanes_of(lanes)[0]
        assert asked <= until <= put_in
        assert until < ahead


def test_after_a_restart_what_was_committed_counts_as_taken_in(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic, group = make_topic(partitions=2), f"g-{uuid.uuid4().hex}"
    put(producer, topic, partition=0, count=3)
    put(producer, topic, partition=1, count=3)
    with consumer_of(kafka_bootstrap, **{"group.id": group}) as consumer:
        consumer.subscribe([topic])
        poll(consumer, 6)
        consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 1)], asynchronous=False)
    with consumer_of(kafka_bootstrap, **{"group.id": group}) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        # So far that no message is fetched: what is known comes from the committed offsets alone.
        lanes.subscribe([topic], on_assign=lambda c, held: c.assign(held) or c.pause(held))
        wait_for(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2, what="assignment")
        before = now_ms()
        found = lanes_of(lanes)
        assert list(found) == [0]  # two wait in the other: it stands where its last owner left it
        assert found[0] >= before


def test_a_revoked_lane_is_reported_by_its_new_owner_only(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic, group = make_topic(partitions=2), f"g-{uuid.uuid4().hex}"
    config = {"group.id": group, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
    with consumer_of(kafka_bootstrap, **config) as one, consumer_of(kafka_bootstrap, **config) as two:
        lanes_one, lanes_two = (KafkaLanes(consumer, "mid.in", kafka_bootstrap) for consumer in (one, two))
        join(one, lanes_one, topic, partitions=2)
        assert sorted(lanes_of(lanes_one)) == [0, 1]
        two.subscribe([topic], on_assign=lanes_two.assigned, on_revoke=lanes_two.revoked)

        def shared() -> bool:
            one.poll(0.05)
            two.poll(0.05)
            return len(one.assignment()) == len(two.assignment()) == 1

        wait_for(shared, what="a rebalance")
        held_by_one, held_by_two = set(lanes_of(lanes_one)), set(lanes_of(lanes_two))
        assert held_by_one | held_by_two == {0, 1}
        assert held_by_one & held_by_two == set()
        lanes_one.close()
        assert list(lanes_one.snapshot()) == []


def test_the_lane_of_a_partition_that_a_topic_got_later_moves_on(kafka_bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=2), f"g-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    refresh = {"topic.metadata.refresh.interval.ms": 500}
    with consumer_of(kafka_bootstrap, **{"group.id": group, **refresh}) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        join(consumer, lanes, topic, partitions=2)
        assert sorted(lanes_of(lanes)) == [0, 1]
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)

        def is_wider() -> bool:
            consumer.poll(0.05)
            return len(consumer.assignment()) == 3

        wait_for(is_wider, what="the new partition")
        asked = now_ms()
        wait_for(lambda: lanes_of(lanes).get(2, 0) >= asked, what="its lane")


def test_a_lane_keeps_what_it_proved_while_the_broker_is_away(
    kafka: EmbeddedKafka, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=1)
    put(producer, topic, partition=0)
    with consumer_of(kafka.bootstrap) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka.bootstrap)
        lanes.subscribe([topic])
        lanes.taken(poll(consumer, 1)[0])
        broker = psutil.Process(kafka.processes[0].pid)
        victims = [broker, *broker.children(recursive=True)]
        for victim in victims:
            victim.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: stands_still(lanes), what="the end of the last threads' answers")
            proved = lanes_of(lanes)
            began = time.monotonic()
            assert lanes_of(lanes) == proved
            assert time.monotonic() - began < 4
            assert lanes.last_error is not None
        finally:
            for victim in victims:
                victim.send_signal(signal.SIGCONT)
        wait_for(lambda: lanes_of(lanes)[0] > proved[0], what="news")


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_record_of_an_open_transaction_waits_and_the_marker_at_its_end_does_not(
    kafka_bootstrap: str, make_topic: MakeTopic, isolation: str
) -> None:
    topic = make_topic(partitions=1)
    writer = Producer(
        {"bootstrap.servers": kafka_bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0, "log_level": 0}
    )
    writer.init_transactions(30)
    with consumer_of(kafka_bootstrap, **{"isolation.level": isolation, "enable.partition.eof": True}) as consumer:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        lanes.subscribe([topic])
        wait_for(lambda: (consumer.poll(0.1) or 0) != 0, what="the end of an empty partition")
        assert lanes_of(lanes)[0] > 0
        writer.begin_transaction()
        writer.produce(topic, "x")
        writer.flush(20)
        written = now_ms()
        assert stands_still(lanes)
        assert lanes_of(lanes)[0] <= written
        writer.commit_transaction(30)

        def takes_what_comes() -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                error = message.error()
                assert error is None or error.code() == KafkaError._PARTITION_EOF
                lanes.taken(message)
            return not stands_still(lanes)

        wait_for(takes_what_comes, what="nothing waiting")


def test_an_emitter_reports_the_lanes_it_follows(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    create_topics(kafka_bootstrap)
    topic = make_topic(partitions=1)
    put(producer, topic, partition=0)
    with consumer_of(kafka_bootstrap) as consumer, Emitter("it-clicks", "mid", kafka_bootstrap) as emitter:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        emitter.follow(lanes)
        lanes.subscribe([topic])
        (message,) = poll(consumer, 1)
        before = now_ms()
        emitter.received("m", before)
        lanes.taken(message)
        # brokers that are busy may not tell the lane's end in time for the first report
        wait_for(lambda: lanes_of(lanes)[0] >= before, what="the brokers' answer")
        assert emitter.flush()
        lanes.close()
        reports = reports_of(kafka_bootstrap, emitter.id)
        assert [(at.checkpoint, at.lane) for at in reports[-1].progress] == [("mid.in", f"{topic}/0")]
        assert reports[-1].progress[0].until >= before
        # a report names the tallies that changed: here the wait may have been longer than from one to the next
        assert sum(tally.beacons for tally in newest_tallies(reports).values()) == 1


@pytest.mark.parametrize("kind", ["idle", "busy"])
def test_each_flush_reports_and_lanes_are_near_now_while_the_host_waits_in_poll(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "idle":  # else each 10 s
        monkeypatch.setattr("lagloss.sdk.shipper.IDLE_REPORT_S", 0.0)
    create_topics(kafka_bootstrap)
    topic = make_topic(partitions=2)

    def put_some() -> None:
        time.sleep(0.02)
        if kind == "busy":
            for partition in range(2):
                producer.produce(topic, "x", partition=partition)
            producer.poll(0)

    with consumer_of(kafka_bootstrap) as consumer, Emitter("it-clicks", "mid", kafka_bootstrap) as emitter:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        emitter.follow(lanes)
        lanes.subscribe([topic])

        def telling() -> list[EmitterReport]:
            return [report for report in reports_of(kafka_bootstrap, emitter.id) if len(report.progress) == 2]

        with in_thread(put_some), in_thread(takes_in(consumer, lanes, emitter)):
            assert emitter.flush()  # the reports topic, just made perhaps, has its leaders
            wait_for(lambda: len(telling()) >= 6, what="six reports")
        told = telling()
        assert max(after.sent_at - before.sent_at for before, after in pairwise(told)) < 1_000 * LONGEST_S + 2_000
        late_ms = [report.sent_at - progress.until for report in told[1:] for progress in report.progress]
        assert max(late_ms) < 2_500
        beacons = max((tally.beacons for report in told for tally in report.tallies), default=0)
        assert beacons > 100 if kind == "busy" else beacons == 0


def test_a_paused_partition_stands_still_while_the_host_waits_in_poll_and_the_other_moves_on(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=2)
    with consumer_of(kafka_bootstrap) as consumer, Emitter("it-clicks", "mid", outlet=MemoryOutlet) as emitter:
        lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
        join(consumer, lanes, topic, partitions=2)
        consumer.pause([TopicPartition(topic, 1)])
        put(producer, topic, partition=0)
        put(producer, topic, partition=1)
        put_in = now_ms()
        with in_thread(takes_in(consumer, lanes, emitter)):
            wait_for(lambda: lanes_of(lanes)[0] > put_in, what="the partition that is read")
            stands_at = lanes_of(lanes)[1]
            assert stands_at <= put_in
            asked = now_ms()
            wait_for(lambda: lanes_of(lanes)[0] > asked, what="news")
            assert lanes_of(lanes)[1] == stands_at
        consumer.resume([TopicPartition(topic, 1)])
        with in_thread(takes_in(consumer, lanes, emitter)):
            wait_for(lambda: lanes_of(lanes)[1] > asked, what="the partition that is read again")


def test_without_hooks_a_lane_that_another_consumer_reads_does_not_move_on_and_is_left_to_it(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = make_topic(partitions=2), f"g-{uuid.uuid4().hex}"
    config = {"group.id": group, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
    for partition in range(2):
        put(producer, topic, partition=partition)
    with consumer_of(kafka_bootstrap, **config) as one, consumer_of(kafka_bootstrap, **config) as two:
        lanes = KafkaLanes(one, "mid.in", kafka_bootstrap)
        one.subscribe([topic])
        assert lanes_of(lanes) == {}
        for message in poll(one, 2):
            lanes.taken(message)
        before = now_ms()
        assert min(lanes_of(lanes).values()) >= before  # nothing waits
        one.commit(offsets=[TopicPartition(topic, partition, 1) for partition in range(2)], asynchronous=False)
        two.subscribe([topic])

        def shared() -> bool:
            assert one.poll(0.05) is None
            assert two.poll(0.05) is None
            return len(one.assignment()) == len(two.assignment()) == 1

        wait_for(shared, what="a rebalance")
        theirs = two.assignment()[0].partition
        put(producer, topic, partition=theirs)
        put_in = now_ms()
        poll(two, 1)
        found = lanes_of(lanes)
        assert found[theirs] <= put_in <= found[1 - theirs]
        assert lanes_of(lanes)[theirs] == found[theirs]
        monkeypatch.setattr("lagloss.kafka.lane_proofs.UNKNOWN_FOR_S", 0.001)
        assert theirs not in lanes_of(lanes)


def test_a_client_calls_back_again_after_an_assignment(kafka_bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    words = [sys.executable, "-c", TWO_CALLBACKS, kafka_bootstrap, topic]
    host = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert host.returncode == 0, host.stderr


def test_the_ends_of_another_cluster_prove_nothing(
    kafka_bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic(partitions=1)

    class Elsewhere:
        """The host's consumer, as far as lanes ask it; the rest would be an error."""

        def subscribe(self, topics: list[str], on_assign: Hook, **_: Hook) -> None:
            on_assign(self, [TopicPartition(topic, 0) for topic in topics])

        def assignment(self) -> list[TopicPartition]:
            return []

        def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
            return SimpleNamespace(cluster_id="elsewhere")

        def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            return partitions

    consumer = Elsewhere()
    lanes = KafkaLanes(consumer, "mid.in", kafka_bootstrap)
    lanes.subscribe([topic])
    assert lanes_of(lanes) == {0: 0}
    assert "expected cluster elsewhere" in (lanes.last_error or "")

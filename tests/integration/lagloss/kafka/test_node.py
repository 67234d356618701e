"""Consumers and producers of a node on a real broker: what they tell, and what they commit."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from opentelemetry.sdk.trace import TracerProvider

from lagloss import MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.identity import Carrier, Identity
from lagloss.kafka import KafkaNode, NodeConsumer, NodeProducer, handovers
from lagloss.wire.format import decode_block, hash_id
from lagloss.wire.positions import read_positions
from lagloss.wire.traces import TraceContext, find_traces
from tests.support.kafka_log import read_all, wait_for

NOW_MS = time.time_ns() // 1_000_000

END_IN_A_REPORT = """
import sys, time
from lagloss import MemoryOutlet
from lagloss.kafka import KafkaNode

bootstrap, topic = sys.argv[1:]
node = KafkaNode("it-orders", "mid", first=True, outlet=MemoryOutlet)
producer = node.producer({"bootstrap.servers": bootstrap})
consumer = node.consumer({"bootstrap.servers": bootstrap, "group.id": topic})
steps = [lambda: consumer.poll(0), lambda: producer.flush(0), consumer.close, node.close]
reports = []

def on_delivery(error, record):
    reports.append(error)
    steps[len(reports) - 1]()

for _ in steps:
    producer.produce(topic, b"", on_delivery=on_delivery)
deadline = time.monotonic() + 20
while len(reports) < len(steps) and time.monotonic() < deadline:
    time.sleep(1)  # one poll calls back for all of them
    producer.poll(0)
assert reports == [None] * len(steps), reports
"""


@dataclass
class Service:
    """A node whose beacons go to memory, and a topic of one partition with messages for it."""

    bootstrap: str
    topic: str
    node: KafkaNode
    log: MemoryOutlet

    def put(self, *names: str, replay: str | None = None) -> None:
        """Messages of these ids; one of the empty name has none."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for name in names:
            headers = Identity(name, NOW_MS, replay).headers() if name else []
            producer.produce(self.topic, f"value of {name}", partition=0, headers=headers)
        assert producer.flush(20) == 0

    def consumer(self, **options: Any) -> NodeConsumer:
        config = {"bootstrap.servers": self.bootstrap, "group.id": self.topic, "auto.offset.reset": "earliest"}
        consumer = self.node.consumer(config, **options)
        consumer.subscribe([self.topic])
        return consumer

    def producer(self, **options: Any) -> NodeProducer:
        config = {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0}
        return self.node.producer(config, **options)

    def committed(self, consumer: NodeConsumer) -> int:
        """After a commit of all that is safe; 0 for none."""
        consumer.commit(asynchronous=False)
        return max(0, consumer.committed([TopicPartition(self.topic, 0)], timeout=10)[0].offset)

    def beacons(self) -> Counter[str]:
        """Beacons so far, by checkpoint and reason."""
        assert self.node.emitter.flush()
        blocks = [decode_block(value) for value in self.log.values(BEACONS)]
        names = [block.checkpoint + (f" {block.reason}" if block.reason else "") for block in blocks]
        return sum((Counter({at: block.count}) for at, block in zip(names, blocks, strict=True)), Counter())

    def replays(self) -> Counter[tuple[str, str | None]]:
        """Beacons so far, by checkpoint and replay."""
        assert self.node.emitter.flush()
        found = Counter[tuple[str, str | None]]()
        for block in map(decode_block, self.log.values(BEACONS)):
            found[block.checkpoint, block.replay] += block.count
        return found


MakeService = Callable[..., Service]


@pytest.fixture
def make_service(kafka_bootstrap: str) -> Iterator[MakeService]:
    made: list[Service] = []

    def make(**options: Any) -> Service:
        topic, log = f"node-{uuid.uuid4().hex[:8]}", MemoryOutlet()
        admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
        wanted = [NewTopic(name, 1) for name in (topic, f"{topic}.out", f"{topic}.side")]
        for future in admin.create_topics(wanted).values():
            future.result(20)
        node = KafkaNode("it-orders", "mid", "unused", outlet=lambda: log, **options)
        made.append(Service(kafka_bootstrap, topic, node, log))
        return made[-1]

    yield make
    for service in made:
        service.node.close()


def polled(consumer: NodeConsumer) -> Message:
    deadline = time.monotonic() + 20
    while (message := consumer.poll(0.2)) is None:
        assert time.monotonic() < deadline, "no message came"
    assert message.error() is None
    return message


def consumed(consumer: NodeConsumer, count: int) -> list[Message]:
    """So many, read at once: the first call may come before there is an assignment."""
    found: list[Message] = []
    wait_for(lambda: bool(found.extend(consumer.consume(count, 0.5)) or found), what="messages")
    assert len(found) == count
    return found


def test_a_commit_never_passes_a_message_that_is_not_finished(make_service: MakeService) -> None:
    service = make_service()
    service.put("a", "b", "c")
    consumer = service.consumer(explicit_done=True)
    first, second = polled(consumer), polled(consumer)
    consumer.done(second)
    consumer.commit(message=second, asynchronous=False)
    assert service.committed(consumer) == 0
    consumer.done(first)
    assert service.committed(consumer) == 2


def test_a_message_is_over_with_the_next_poll_and_committed_once_its_output_is_acknowledged(
    make_service: MakeService,
) -> None:
    service = make_service()
    service.put("a", "b")
    consumer, producer = service.consumer(), service.producer()
    polled(consumer)
    producer.produce(f"{service.topic}.out", "of a")
    assert service.beacons() == {"mid.in": 1}  # the delivery report waits for a poll
    polled(consumer)
    wait_for(lambda: consumer.poll(0.1) is None and service.committed(consumer) == 2, what="a commit")
    assert service.beacons() == {"mid.in": 2, "mid.out": 1}


def test_headers_travel_and_the_hosts_own_stay(make_service: MakeService) -> None:
    service = make_service()
    service.put("a")
    consumer, producer = service.consumer(), service.producer()
    copied = polled(consumer).headers() or []
    producer.produce(f"{service.topic}.out", "of a", headers=[*copied, ("mine", "too")])
    assert producer.flush(20) == 0
    next_node = KafkaNode("it-orders", "next", "unused", outlet=MemoryOutlet)
    group = {"group.id": f"{service.topic}.next", "auto.offset.reset": "earliest"}
    reader = next_node.consumer({"bootstrap.servers": service.bootstrap, **group})
    reader.subscribe([f"{service.topic}.out"])
    message = polled(reader)
    expected = [("mine", b"too"), ("lagloss-id", b"a"), ("lagloss-event-time", str(NOW_MS).encode())]
    assert message.headers() == expected
    assert next_node.identity_of(message) == Identity("a", NOW_MS)
    next_node.close()


def test_a_replayed_message_is_told_and_sent_on_as_part_of_its_replay(make_service: MakeService) -> None:
    service = make_service()
    service.put("a")
    service.put("a", replay="again")
    service.put("b", replay="again")
    consumer, producer = service.consumer(), service.producer()
    live, again, bad = consumed(consumer, 3)
    producer.produce(f"{service.topic}.out", "of a", source=live)
    producer.produce(f"{service.topic}.out", "of a again", headers=Identity("a", NOW_MS, "again").headers())
    producer.produce(f"{service.topic}.side", "of b", source=Identity("b", NOW_MS), dead_lettered="bad")
    assert producer.flush(20) == 0
    assert service.committed(consumer) == 3
    expected = [("mid.in", None, 1), ("mid.in", "again", 2), ("mid.out", None, 1), ("mid.out", "again", 1)]
    assert service.replays() == {(at, why): n for at, why, n in [*expected, ("mid.dead", "again", 1)]}
    with KafkaNode("it-orders", "next", "unused", outlet=MemoryOutlet) as next_node:
        group = {"group.id": f"{service.topic}.next", "auto.offset.reset": "earliest"}
        reader = next_node.consumer({"bootstrap.servers": service.bootstrap, **group})
        reader.subscribe([f"{service.topic}.out", f"{service.topic}.side"])
        found = {message.value(): next_node.identity_of(message) for message in (polled(reader) for _ in range(3))}
    assert found == {
        b"of a": Identity("a", NOW_MS),
        b"of a again": Identity("a", NOW_MS, "again"),
        b"of b": Identity("b", NOW_MS, "again"),
    }
    assert service.node.identity_of(bad) == Identity("b", NOW_MS, "again")
    assert service.node.identity_of(again) == Identity("a", NOW_MS, "again")


@pytest.mark.parametrize("first", [True, False])
def test_the_first_node_sends_the_traces_of_what_it_takes_in_and_of_what_it_makes(
    first: bool, make_service: MakeService
) -> None:
    service = make_service(first=first)
    traceparents = {name: f"00-{at:032x}-{at:016x}-01" for at, name in enumerate(("taken", "made"), start=1)}
    plain = Producer({"bootstrap.servers": service.bootstrap, "log_level": 0})
    for name in ("taken", "untraced"):
        headers = [*Identity(name, NOW_MS).headers(), ("traceparent", traceparents.get(name, "nonsense"))]
        plain.produce(service.topic, name, headers=headers)
    assert plain.flush(20) == 0
    consumer, producer = service.consumer(), service.producer()
    assert {polled(consumer).value() for _ in range(2)} == {b"taken", b"untraced"}
    consumer.close()  # what is produced from now on is no output of theirs
    produced = {"message_id": "made", "headers": [("traceparent", traceparents["made"])]}
    producer.produce(f"{service.topic}.out", "made", **produced)
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        producer.produce(f"{service.topic}.out", "of a request", message_id="here")
    assert producer.flush(20) == 0
    expected = {hash_id(name): TraceContext(f"{at:032x}", f"{at:016x}") for at, name in ((1, "taken"), (2, "made"))}
    active = span.get_span_context()
    expected[hash_id("here")] = TraceContext(f"{active.trace_id:032x}", f"{active.span_id:016x}")
    assert service.node.emitter.flush()
    found = {}
    for block in map(decode_block, service.log.values(BEACONS)):
        for row, trace in find_traces(block.traces or b"", np.arange(block.count)).items():
            found[int(block.id_hash[row])] = trace
    assert found == (expected if first else {})


def test_a_first_node_may_send_a_replay_of_its_own(make_service: MakeService) -> None:
    service = make_service(first=True)
    producer = service.producer()
    replay: list[tuple[str, str | bytes]] = [("lagloss-replay", "again")]
    producer.produce(f"{service.topic}.out", "one", message_id="one", event_time_ms=NOW_MS, headers=replay)
    assert producer.flush(20) == 0
    assert service.replays() == {("mid.in", "again"): 1, ("mid.out", "again"): 1}


def test_a_failed_delivery_is_not_out_and_not_committed_until_it_is_sent_again(make_service: MakeService) -> None:
    service = make_service()
    service.put("a", "b")
    consumer, producer = service.consumer(), service.producer()
    failures: list[str] = []
    message = polled(consumer)
    producer.produce(
        f"{service.topic}.out", "of a", partition=99, on_delivery=lambda error, _: failures.append(error.str())
    )
    polled(consumer)
    producer.flush(20)
    assert len(failures) == 1
    assert service.committed(consumer) == 0
    producer.produce(f"{service.topic}.out", "of a", source=message)
    assert producer.flush(20) == 0
    assert service.committed(consumer) == 2
    assert service.beacons() == {"mid.in": 2, "mid.out": 1}


def test_a_dead_message_is_dead_once_its_queue_has_it_and_is_committed(make_service: MakeService) -> None:
    service = make_service()
    service.put("a")
    consumer, producer = service.consumer(), service.producer()
    polled(consumer)
    producer.produce(f"{service.topic}.side", "of a", dead_lettered="unreadable")
    assert service.beacons() == {"mid.in": 1}
    assert producer.flush(20) == 0
    assert service.committed(consumer) == 1
    assert service.beacons() == {"mid.in": 1, "mid.dead unreadable": 1}


def test_next_nodes_name_the_way_out_and_other_topics_are_none(make_service: MakeService) -> None:
    service = make_service()
    service.put("a")
    consumer, producer = service.consumer(), service.producer(next_nodes={f"{service.topic}.out": "mail"})
    polled(consumer)
    producer.produce(f"{service.topic}.out", "of a")
    producer.produce(f"{service.topic}.side", "a statistic")
    assert producer.flush(20) == 0
    assert service.beacons() == {"mid.in": 1, "mid.out:mail": 1}


def test_an_output_of_messages_read_at_once_is_that_of_its_source(make_service: MakeService) -> None:
    service = make_service()
    service.put("a", "b")
    consumer, producer = service.consumer(), service.producer()
    first, second = consumed(consumer, 2)
    with consumer.handling(first):
        producer.produce(f"{service.topic}.out", "of a")
    producer.produce(f"{service.topic}.out", "of b", source=second)
    producer.produce(f"{service.topic}.out", "of nobody knows whom")
    assert service.committed(consumer) == 0
    assert producer.flush(20) == 0
    assert service.committed(consumer) == 2
    assert service.beacons() == {"mid.in": 2, "mid.out": 2}
    assert service.node.skipped == 1
    out = [decode_block(value) for value in service.log.values(BEACONS)]
    ids = {at for block in out if block.checkpoint == "mid.out" for at in block.id_hash.tolist()}
    assert ids == {hash_id("a"), hash_id("b")}


def test_a_handler_or_batch_that_raises_leaves_its_messages_uncommitted(make_service: MakeService) -> None:
    service = make_service()
    service.put("a", "b")
    consumer = service.consumer()
    messages = consumed(consumer, 2)
    with pytest.raises(OSError, match="refused"), service.node.batch(messages):
        raise OSError("refused")
    with pytest.raises(ValueError, match="bad"), consumer.handling(messages[0]):
        raise ValueError("bad")
    assert service.committed(consumer) == 0
    assert service.beacons() == {"mid.in": 2}
    with service.node.batch(messages):
        pass
    assert service.committed(consumer) == 0
    service.node.dead_lettered(messages[0], "bad")
    assert service.committed(consumer) == 2
    assert service.beacons() == {"mid.in": 2, "mid.out": 2, "mid.dead bad": 1}


def test_a_message_without_identity_is_handled_and_committed_and_counted(make_service: MakeService) -> None:
    service = make_service()
    service.put("", "a")
    consumer, producer = service.consumer(), service.producer()
    for _ in range(2):
        polled(consumer)
        producer.produce(f"{service.topic}.out", "of it")
    assert producer.flush(20) == 0
    assert service.committed(consumer) == 2
    assert service.node.skipped >= 1
    assert service.beacons() == {"mid.in": 1, "mid.out": 1}


def test_a_function_may_put_messages_without_identity_into_a_dead_letter_queue(make_service: MakeService) -> None:
    def set_aside(carrier: Carrier) -> None:
        producer.produce(f"{service.topic}.side", carrier.body, dead_lettered="no identity")

    service = make_service(missing=set_aside)
    service.put("", "a")
    consumer, producer = service.consumer(), service.producer()
    assert polled(consumer).value() == b"value of a"
    assert producer.flush(20) == 0
    assert [value for *_, value in read_all(service.bootstrap, f"{service.topic}.side")] == [b"value of "]
    assert service.committed(consumer) == 2
    assert service.beacons() == {"mid.in": 1}


def test_a_first_node_takes_in_what_it_produces_and_what_fails_is_not_out(make_service: MakeService) -> None:
    service = make_service(first=True)
    producer = service.producer()
    producer.produce(f"{service.topic}.out", "one")
    producer.produce(f"{service.topic}.out", "two", message_id="two", event_time_ms=NOW_MS)
    producer.produce(f"{service.topic}.out", "three", partition=99)
    producer.flush(20)
    assert service.beacons() == {"mid.in": 3, "mid.out": 2}
    assert service.node.emitter._beacons.in_flight_since() is None


def test_a_thread_of_the_producers_own_waits_for_delivery_reports(make_service: MakeService) -> None:
    service = make_service(first=True)
    service.producer(polls=True).produce(f"{service.topic}.out", "one")
    wait_for(lambda: service.beacons() == {"mid.in": 1, "mid.out": 1}, what="out")


def test_a_host_may_poll_and_close_in_a_delivery_report(make_service: MakeService) -> None:
    service = make_service()
    words = [sys.executable, "-c", END_IN_A_REPORT, service.bootstrap, f"{service.topic}.out"]
    host = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert host.returncode == 0, host.stderr


def test_a_revoked_message_is_somebody_elses_to_commit(make_service: MakeService) -> None:
    service = make_service()
    service.put("a", "b")
    consumer = service.consumer(explicit_done=True)
    first, second = polled(consumer), polled(consumer)
    consumer.done(first)
    consumer.close()
    consumer.done(second)
    successor = service.consumer()
    assert polled(successor).value() == b"value of b"
    assert service.committed(successor) == 2


def test_a_message_that_was_given_up_is_in_flight_until_another_process_has_committed_it(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handovers, "ASK_EVERY_S", 0.1)
    service = make_service()
    service.put("a", "b")
    consumer = service.consumer(explicit_done=True)
    polled(consumer)
    consumer.close()
    beacons = service.node.emitter._beacons
    with KafkaNode("it-orders", "mid", "unused", outlet=MemoryOutlet) as other:
        config = {"bootstrap.servers": service.bootstrap, "group.id": service.topic, "auto.offset.reset": "earliest"}
        successor = other.consumer(config, explicit_done=True)
        successor.subscribe([service.topic])
        for name in ("a", "b"):
            message = polled(successor)
            assert (message.value(), service.node.emitter.flush()) == (f"value of {name}".encode(), True)
            assert (beacons.in_flight_since() is None) == (name == "b")
            other.filtered(message, "none")
            successor.done(message)
            successor.commit(asynchronous=False)
            wait_for(
                lambda: service.node.emitter.flush() and beacons.in_flight_since() is None,
                what="the end of the handover",
            )


@pytest.mark.parametrize("closes", ["node", "consumer"])
def test_a_message_whose_handling_raises_up_to_close_is_taken_in_again(make_service: MakeService, closes: str) -> None:
    service = make_service()
    service.put("a", "b")

    def handle_badly() -> None:
        consumer = service.consumer()
        with service.node if closes == "node" else consumer:
            polled(consumer)
            assert polled(consumer).value() == b"value of b"
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        handle_badly()
    with KafkaNode("it-orders", "mid", "unused", outlet=MemoryOutlet) as successor:
        config = {"bootstrap.servers": service.bootstrap, "group.id": service.topic, "auto.offset.reset": "earliest"}
        consumer = successor.consumer(config)
        consumer.subscribe([service.topic])
        assert polled(consumer).value() == b"value of b"


def test_transactions_and_batches_of_confluent_kafka_are_refused(make_service: MakeService) -> None:
    service = make_service()
    with pytest.raises(ValueError, match=r"transactional\.id"):
        service.node.producer({"bootstrap.servers": service.bootstrap, "transactional.id": "t"})
    with pytest.raises(NotImplementedError, match="headers"):
        service.producer().produce_batch(service.topic, [])


def test_what_is_sent_and_what_the_next_node_receives_have_the_same_checksum(make_service: MakeService) -> None:
    sender, receiver = make_service(first=True, checksum=True), make_service(checksum=True)
    producer = sender.producer()
    for value in ("a value", b"\x00\xff", None):
        producer.produce(receiver.topic, value, partition=0)
    assert producer.flush(20) == 0
    consumer = receiver.consumer()
    received = [polled(consumer) for _ in range(3)]
    assert [message.value() for message in received] == [b"a value", b"\x00\xff", None]

    def checksums(service: Service, checkpoint: str) -> list[int]:
        assert service.node.emitter.flush()
        blocks = [decode_block(value) for value in service.log.values(BEACONS)]
        found = [block.payload_crc for block in blocks if block.checkpoint == checkpoint]
        return sorted(crc for crcs in found if crcs is not None for crc in crcs.tolist())

    assert len(checksums(sender, "mid.out")) == 2  # a record without a value has none
    assert checksums(sender, "mid.out") == checksums(receiver, "mid.in")
    assert checksums(sender, "mid.in") == []


@pytest.mark.parametrize(("order", "late"), [("key", "c"), ("partition", "bc"), (None, "")])
def test_order_is_judged_of_what_comes_in_and_of_what_is_acknowledged(
    make_service: MakeService, order: str | None, late: str
) -> None:
    service = make_service(order=order)
    producer = Producer({"bootstrap.servers": service.bootstrap, "log_level": 0})
    for name, key, at_ms in (("a", "k", 9), ("b", "l", 5), ("c", "k", 4), ("d", None, 9)):
        producer.produce(service.topic, b"", key, 0, headers=Identity(name, NOW_MS + at_ms).headers())
    assert producer.flush(20) == 0
    consumer, out = service.consumer(), service.producer()
    for _ in range(4):
        message = polled(consumer)
        out.produce(f"{service.topic}.out", b"", message.key(), source=message)
        assert out.flush(20) == 0
    assert service.node.emitter.flush()
    found = {
        (block.checkpoint, int(block.id_hash[at]))
        for block in map(decode_block, service.log.values(BEACONS))
        for at in (read_positions(block.out_of_order) if block.out_of_order else ())
    }
    assert found == {(checkpoint, hash_id(name)) for checkpoint in ("mid.in", "mid.out") for name in late}

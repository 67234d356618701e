"""A stage: a source and sinks with real emitters, consumers and topics, and a clock that the test moves.

Nothing waits for real time. Topics are made with CreateTime, so a record's append time is the stage's clock; emitters,
work in hand and lanes read that clock, too, each host with its own error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark.sql import SparkSession

from lagloss import Emitter, KafkaLanes
from lagloss.broker.connection import KafkaConnection
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.outlets.kafka import KafkaOutlet, Outgoing
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.store.store import Store
from tests.support.closers import Driven, driven, wait_until
from tests.support.kafka_log import consumer_of
from tests.support.window_documents import documents
from tests.support.worlds_in_kafka import make_topics

PARTITIONS = 8
"""Of the topic that orders travel in."""
BLOCK_PARTITIONS = 2
"""Of lagloss's own topics: few, since every read and every batch of reports costs a little for each."""
PIPELINE = "shop"
SETTLED_MS = 6_000
"""How long after the last report the stage judges: longer than a window's first settle time."""
CHAIN = "[{name: src, to: [snk]}, {name: snk}]"


@dataclass
class Clock:
    """The true time, epoch ms, and by node how far its host's clock is ahead."""

    now_ms: int
    ahead_ms: Mapping[str, int] = field(default_factory=dict)

    def here_ms(self) -> int:
        """What the clock says on the host of the emitter whose thread this is; the true time on any other thread."""
        return self.now_ms + self.ahead_ms.get(threading.current_thread().name.removeprefix("lagloss-"), 0)


class TimedProducer:
    """A producer to the stage's topics, with its clock as append time."""

    def __init__(self, config: Mapping[str, Any], topics: Mapping[str, str], clock: Clock) -> None:
        self._producer, self._topics, self._clock = Producer(dict(config)), topics, clock
        self.poll, self.purge = self._producer.poll, self._producer.purge

    def produce(self, topic: str, **record: Any) -> None:
        self._producer.produce(self._topics[topic], timestamp=self._clock.now_ms, **record)


class TimedOutlet(KafkaOutlet):
    """Kafka, by way of such a producer."""

    def __init__(self, bootstrap: str, topics: Mapping[str, str], clock: Clock) -> None:
        super().__init__(bootstrap, {"log_level": 0})
        self._topics, self._clock = topics, clock

    def partitions(self) -> int | None:
        return BLOCK_PARTITIONS

    def _connected(self) -> Any:
        if self._producer is None:
            config = KafkaConnection.of(self._cluster).client(self._config)
            self._producer = TimedProducer(config, self._topics, self._clock)  # type: ignore[assignment]
        return self._producer


class MuteOutlet(TimedOutlet):
    """Sends blocks, and keeps reports to itself."""

    def send(self, record: Outgoing) -> None:
        if record.topic == REPORTS:
            record.done(0, 0)
        else:
            super().send(record)


@dataclass(frozen=True)
class Order:
    """A message."""

    id: str
    event_ms: int
    partition: int
    is_lost: bool


class Sink:
    """A process that takes orders in and delivers them: a consumer of the stage's group, its lanes, its emitter."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.emitter = stage.emitter("snk")
        self.consumer: Consumer = stage.opened.enter_context(
            consumer_of(stage.bootstrap, **{"group.id": stage.topic, "heartbeat.interval.ms": 100})
        )
        self.lanes = KafkaLanes(self.consumer, "snk.in", stage.bootstrap, now_ms=stage.clock.here_ms)
        self.emitter.follow(self.lanes)
        self.lanes.subscribe([stage.topic])
        self.in_hand: list[Message] = []
        self.taken = self.expected = 0
        wait_until(self._has_joined, what="for the group")

    def _has_joined(self) -> bool:
        message = self.consumer.poll(0.02)
        if message is not None:
            self._take(message)
        return len(self.consumer.assignment()) == PARTITIONS

    def take(self, count: int) -> None:
        """Takes so many more orders in; each is in hand until it is delivered."""
        self.expected += count
        deadline = time.monotonic() + 10
        while self.taken < self.expected:
            assert time.monotonic() < deadline, f"expected {self.expected} orders, found {self.taken}"
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._take(message)

    def _take(self, message: Message) -> None:
        order = self.stage.orders[(message.key() or b"").decode()]
        self.emitter.received(order.id, order.event_ms, observed_at=self.stage.seen_ms("snk"))
        self.lanes.taken(message)
        self.in_hand.append(message)
        self.taken += 1

    def deliver(self) -> None:
        """All that is in hand is delivered, and committed."""
        for message in self.in_hand:
            order = self.stage.orders[(message.key() or b"").decode()]
            self.emitter.sent(order.id, order.event_ms, observed_at=self.stage.seen_ms("snk"))
        if self.in_hand:
            self.consumer.commit(asynchronous=False)
        self.in_hand.clear()

    def work(self, count: int) -> None:
        self.take(count)
        self.deliver()

    def pause(self, partition: int) -> None:
        self.consumer.pause([TopicPartition(self.stage.topic, partition)])

    def resume(self, partition: int) -> None:
        self.consumer.resume([TopicPartition(self.stage.topic, partition)])

    def leave(self) -> None:
        """Leaves the group: its lanes are revoked."""
        self.consumer.unsubscribe()
        wait_until(lambda: self.consumer.poll(0.02) is None and not self.consumer.assignment(), what="to leave")
        assert self.lanes.snapshot() == []

    def end(self) -> None:
        """The process ends in good order."""
        assert self.emitter.close(10)
        self.leave()


@dataclass
class Stage:
    """Two windows of orders, `start_s` and the one after it; in the second, some orders are lost on the way in."""

    bootstrap: str
    parts: Driven
    topic: str
    topics: Mapping[str, str]
    clock: Clock
    start_s: int
    opened: ExitStack
    next_nodes: tuple[str | None, ...] = (None,)
    emitters: list[Emitter] = field(default_factory=list)
    orders: dict[str, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        self.source = self.emitter("src", first=True)

    @property
    def store(self) -> Store:
        return self.parts.store

    def emitter(self, node: str, outlet: type[TimedOutlet] = TimedOutlet, **options: Any) -> Emitter:
        made = Emitter(PIPELINE, node, outlet=lambda: outlet(self.bootstrap, self.topics, self.clock), **options)
        self.emitters.append(made)
        self.opened.callback(made.close)
        return made

    def seen_ms(self, node: str) -> int:
        """What the clock says on that node's host."""
        return self.clock.now_ms + self.clock.ahead_ms.get(node, 0)

    def at(self, second: float) -> None:
        """It is that long after the first window's start."""
        assert self.start_s * 1000 + second * 1000 >= self.clock.now_ms, "time does not go back"
        self.clock.now_ms = int((self.start_s + second) * 1000)

    def send(self, window: int, from_: int, to: int, lost: tuple[int, ...] = ()) -> int:
        """The orders `from_` to before `to` of a window, one each 600 ms, come in at the source and go out; the lost
        ones never reach the topic. How many others there are."""
        for at in range(from_, to):
            event_ms = (self.start_s + 60 * window) * 1000 + 600 * at
            order = Order(f"order-{window}-{at}", event_ms, at % PARTITIONS, at in lost)
            self.orders[order.id] = order
            seen = event_ms + 5 + self.clock.ahead_ms.get("src", 0)
            self.source.received(order.id, event_ms, observed_at=seen)
            if not order.is_lost:
                self._producer.produce(
                    self.topic, b"", order.id, partition=order.partition, timestamp=self.clock.now_ms
                )
            for to_node in self.next_nodes:
                self.source.sent(order.id, event_ms, to=to_node, observed_at=seen)
        assert self._producer.flush(10) == 0
        return to - from_ - sum(from_ <= at < to for at in lost)

    def judge(self) -> None:
        """Everybody reports; a little later the closer does what is to be done."""
        for emitter in self.emitters:
            assert emitter.flush(10)
        self.parts.follow_all()
        now_ms = self.clock.now_ms + SETTLED_MS
        while self.parts.closer.tick(now_ms, now_ms):
            pass

    def window(self, at: int) -> dict[str, Any]:
        start_s = self.start_s + 60 * at
        (found,) = documents(self.store.windows(PIPELINE, start_s, start_s + 60))
        return found

    def told(self, at: int) -> list[dict[str, Any]]:
        """Every result that the window ever had, oldest first."""
        return [*documents(self.store.revisions(PIPELINE, self.start_s + 60 * at)), self.window(at)]


def pipeline(nodes: str) -> Definition:
    return parse_definition(
        f"{{apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {PIPELINE}}}, spec: {{nodes: {nodes}}}}}"
    )


@contextmanager
def staged(
    spark: SparkSession,
    bootstrap: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    nodes: str = CHAIN,
    ahead_ms: Mapping[str, int] | None = None,
) -> Iterator[Stage]:
    """A stage some hours ago, its source ready, its topics and definition in place."""
    start_s = int(time.time()) // 60 * 60 - 6 * 3600
    clock = Clock(start_s * 1000 - 30_000, ahead_ms or {})
    for module in ("emitter", "flusher", "shipper"):
        monkeypatch.setattr(f"lagloss.sdk.{module}.now_ms", clock.here_ms)
    monkeypatch.setattr("lagloss.sdk.buffer.time_ns", lambda: clock.here_ms() * 1_000_000)
    monkeypatch.setattr("aggregator.reports.feed.BATCH_S", 0.1)
    definition = pipeline(nodes)
    store.apply(definition, 0)
    nexts = definition.spec.nodes[0].to
    (topic,) = make_topics(bootstrap, "orders", partitions=PARTITIONS)
    beacons, reports = make_topics(bootstrap, "beacons", "reports", partitions=BLOCK_PARTITIONS)
    with ExitStack() as opened:
        parts = opened.enter_context(driven(spark, bootstrap, store, beacons, reports))
        topics = {BEACONS: beacons, REPORTS: reports}
        stage = Stage(bootstrap, parts, topic, topics, clock, start_s, opened)
        stage.next_nodes = tuple(nexts) if len(nexts) > 1 else (None,)
        yield stage

"""Traffic straight into one node, and which of it is done: into its topic, or for col-service over HTTP.

It is an open loop: what is due is sent, however long the node takes for what was sent before.
"""

from __future__ import annotations

import itertools
import math
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx2
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lagloss.kafka.commits import Partition, place_of
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import packaged
from pipeline_under_test.stream.kafka.clients import producer_config
from pipeline_under_test.stream.kafka.positions import GroupWatcher
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_GA, GLOBAL_RETRIER, topic_of
from pipeline_under_test.stream.traffic.load import EventMaker, Mix

BODIES: Final = 1000
"""Different bodies, made beforehand: making them must not slow the load down."""
LOOK_EVERY_S: Final = 0.2
FLUSH_TIMEOUT_S: Final = 30.0
REQUESTS: Final = 64
"""Requests to col-service under way at a time; beyond that they wait, and their lag shows it."""
ALL_READABLE: Final = Mix(malformed=0)


@dataclass(frozen=True, slots=True)
class Done:
    """An event that was sent at `sent_s` (epoch; for a topic, its append time) and done so long after."""

    sent_s: float
    lag_s: float


class Traffic(Protocol):
    """Events into one node."""

    def send(self, count: int) -> None:
        """Send this many, without waiting for their acknowledgement."""

    def look(self) -> list[Done]:
        """Return those that were found to be done since the last look."""

    def oldest_s(self) -> float | None:
        """Return when the oldest that is not done was sent; None if all are."""

    def close(self) -> None:
        """Stop sending."""


class WaitingRequest:
    """Records of a topic from their append until their offsets are committed."""

    def __init__(self) -> None:
        self._by_partition: dict[Partition, deque[tuple[int, float]]] = defaultdict(deque)

    def appended(self, partition: Partition, offset: int, at_s: float) -> None:
        """Note a record that is in the log. Records of a partition come in the order of their offsets."""
        self._by_partition[partition].append((offset, at_s))

    def committed(self, offsets: Mapping[Partition, int], now_s: float) -> list[Done]:
        """Take out what lies before these offsets: it is done by now."""
        done = []
        for partition, waiting in self._by_partition.items():
            while waiting and waiting[0][0] < offsets.get(partition, 0):
                at_s = waiting.popleft()[1]
                done.append(Done(at_s, now_s - at_s))
        return done

    def oldest_s(self) -> float | None:
        return min((waiting[0][1] for waiting in self._by_partition.values() if waiting), default=None)


class TopicTraffic:
    """Events into the topic that a node reads, as the node before it would have written them; with `replay` as those of
    the past, brought back by a replay of that name."""

    def __init__(self, settings: ReferenceSettings, node: str, replay: str | None = None) -> None:
        self._node = node
        self._replay = replay
        self._topic = topic_of(settings.pipeline, node)
        self._watcher = GroupWatcher(settings.bootstrap, settings.pipeline)
        self._producer = Producer(producer_config(settings.bootstrap, "rating"))
        maker, now_ms = EventMaker(settings.seed, ALL_READABLE), time.time_ns() // 1_000_000
        bodies = [_body(maker.make(now_ms)) for _ in range(BODIES)]
        self._bodies = itertools.cycle(bodies)
        self._ids = (f"r-{uuid.uuid4().hex[:8]}-{number:08d}" for number in itertools.count())
        self._unreported = 0
        self._waiting = WaitingRequest()
        self._next_look = 0.0

    def send(self, count: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        for _ in range(count):
            event = Event(next(self._ids), now_ms, next(self._bodies), self._replay)
            if self._node == GLOBAL_RETRIER:
                event = event.set_aside(CONN_GA, "rating")
            self._unreported += 1
            self._producer.produce(
                self._topic, event.body, event.id.encode(), headers=event.headers(), on_delivery=self._reported
            )
        self._producer.poll(0)

    def _reported(self, error: KafkaError | None, record: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self._unreported -= 1
        partition, offset = place_of(record)
        self._waiting.appended(partition, offset, record.timestamp()[1] / 1000)

    def look(self) -> list[Done]:
        self._producer.poll(0)
        if time.monotonic() < self._next_look:
            return []
        committed = self._watcher.positions([self._node])[self._node].committed
        self._next_look = time.monotonic() + LOOK_EVERY_S
        return self._waiting.committed(committed, time.time())

    def oldest_s(self) -> float | None:
        oldest_s = self._waiting.oldest_s()
        return time.time() if oldest_s is None and self._unreported else oldest_s

    def close(self) -> None:
        self._producer.flush(FLUSH_TIMEOUT_S)
        self._watcher.close()


def _body(fields: Mapping[str, Any]) -> bytes:
    schema = packaged()
    names = {field["name"] for field in schema.parsed["fields"]}
    return schema.encode({name: value for name, value in fields.items() if name in names})


class HttpTraffic:
    """Events to col-service, those that are due together in one request; done when they are answered."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self._url = f"{settings.collector_url}/events"
        self._maker = EventMaker(settings.seed, ALL_READABLE)
        self._client = httpx2.Client(timeout=FLUSH_TIMEOUT_S, limits=httpx2.Limits(max_connections=REQUESTS))
        self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="rating")
        self._posted: list[tuple[float, int, Future[float]]] = []

    def send(self, count: int) -> None:
        now_s = time.time()
        events = [self._maker.make(int(now_s * 1000)) for _ in range(count)]
        self._posted.append((now_s, count, self._pool.submit(self._post, events)))

    def _post(self, events: list[dict[str, Any]]) -> float:
        """Post a request; return when it was accepted: never, if it was refused."""
        try:
            self._client.post(self._url, json=events).raise_for_status()
        except httpx2.HTTPError:
            return math.inf
        return time.time()

    def look(self) -> list[Done]:
        answered = [(sent_s, count, future.result()) for sent_s, count, future in self._posted if future.done()]
        self._posted = [posted for posted in self._posted if not posted[2].done()]
        return [Done(sent_s, at_s - sent_s) for sent_s, count, at_s in answered for _ in range(count)]

    def oldest_s(self) -> float | None:
        return min((sent_s for sent_s, _, _ in self._posted), default=None)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

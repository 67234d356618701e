"""The programs of traffic: `python -m tests.histories.nodes HOST LEDGERS`. Each ends by SIGTERM, and writes down in
LEDGERS what it does, before it does it, or once it was acknowledged."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx2
from confluent_kafka import Consumer, Message, Producer

from lagloss import Emitter
from lagloss.kafka import KafkaNode
from tests.histories import traffic
from tests.histories.ledger import ACKED, ENDED, SENT, path_of

BATCH: Final = 8
"""Messages that the JSON client posts at once."""
_CONSUMER: Final = {
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "topic.metadata.refresh.interval.ms": 30_000,
}
_FAST_GROUP: Final = {"session.timeout.ms": 8_000, "heartbeat.interval.ms": 2_000}
"""Of the services that are tapped; those with the SDK wait for librdkafka's 45 s after a kill."""
# of a new partition, whoever sends learns first
_PRODUCER: Final = {
    "topic.metadata.refresh.interval.ms": 3_000,
    "message.timeout.ms": 600_000,
    "linger.ms": 100,
    "topic.metadata.propagation.max.ms": 300_000,
}
"""No fault lasts that long: what was produced arrives."""

stopping = threading.Event()


class Book:
    """The ledger of one process: lines that a kill leaves whole."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, kind: str, message_id: str, event_ms: int) -> None:
        os.write(self._fd, f"{kind} {message_id} {event_ms} {time.monotonic():.3f}\n".encode())


def main() -> None:
    host, ledgers = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    book = Book(path_of(Path(ledgers), host))
    programs: dict[str, Callable[[Book, str], None]] = {
        "app1": _source,
        "app2": _worker,
        "app3": _sink,
        "app4": _plain_source,
        "app5": _plain_worker,
        "app6": _plain_sink,
        "app7": _over_http,
        "app8": _post_json,
    }
    programs[host](book, os.environ["LAGLOSS_KAFKA_BOOTSTRAP"])


def _messages(pipeline: str) -> Iterator[tuple[str, int]]:
    """Yield new messages at random moments until the end."""
    random = Random()
    prefix = uuid.uuid4().hex[:6]
    for number, pause_s in enumerate(traffic.pauses(random)):
        if stopping.wait(pause_s):
            return
        event_ms = time.time_ns() // 1_000_000
        yield traffic.draw_id(random, pipeline, f"{prefix}-{number}", event_ms), event_ms


def _source(book: Book, bootstrap: str) -> None:
    with KafkaNode(traffic.SDK, "src", bootstrap, first=True) as node:
        producer = node.producer({"bootstrap.servers": bootstrap, **_PRODUCER}, polls=True)
        for message_id, event_ms in _messages(traffic.SDK):
            book.note(SENT, message_id, event_ms)
            if traffic.fate_of(message_id) == traffic.LOST_ON_LINK:
                node.emitter.received(message_id, event_ms)
                node.emitter.sent(message_id, event_ms)
                book.note(ACKED, message_id, event_ms)
                continue
            producer.produce(
                "sdk-mid",
                b"",
                message_id=message_id,
                event_time_ms=event_ms,
                on_delivery=lambda error, _, name=message_id, at=event_ms: error or book.note(ACKED, name, at),
            )


def _worker(book: Book, bootstrap: str) -> None:
    with KafkaNode(traffic.SDK, "mid", bootstrap) as node:
        producer = node.producer({"bootstrap.servers": bootstrap, **_PRODUCER})
        for message, message_id, event_ms in _received(node, bootstrap, "sdk-mid"):
            match traffic.fate_of(message_id):
                case traffic.LOST_AT_WORKER:
                    pass
                case traffic.FILTERED:
                    book.note(ENDED, message_id, event_ms)
                    node.filtered(message, "robot")
                case _:
                    producer.produce("sdk-snk", message.value())


def _sink(book: Book, bootstrap: str) -> None:
    with KafkaNode(traffic.SDK, "snk", bootstrap) as node:
        for message, message_id, event_ms in _received(node, bootstrap, "sdk-snk"):
            if traffic.fate_of(message_id) != traffic.LOST_AT_SINK:
                book.note(ENDED, message_id, event_ms)
                node.sent(message)


def _received(node: KafkaNode, bootstrap: str, topic: str) -> Iterator[tuple[Message, str, int]]:
    consumer = node.consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{topic}", **_CONSUMER})
    consumer.subscribe([topic])
    while not stopping.is_set():
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        identity = node.identity_of(message)
        assert identity is not None
        yield message, identity.message_id, identity.event_time_ms


def _plain_source(book: Book, bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **_PRODUCER})
    for message_id, event_ms in _messages(traffic.TAPPED):
        book.note(SENT, message_id, event_ms)
        producer.produce(
            "tapped-in",
            json.dumps({"id": message_id, "at": event_ms}),
            on_delivery=lambda error, _, name=message_id, at=event_ms: error or book.note(ACKED, name, at),
        )
        producer.poll(0)
    producer.flush(10)


def _plain_worker(_: Book, bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **_PRODUCER})
    for records in _batches(bootstrap, "tapped-in", "t-work"):
        for record in records:
            if traffic.fate_of(json.loads(record)["id"]) != traffic.LOST_AT_WORKER:
                producer.produce("tapped-out", record)
        while producer.flush(1):
            if stopping.is_set():
                return


def _plain_sink(book: Book, bootstrap: str) -> None:
    for records in _batches(bootstrap, "tapped-out", "t-sink"):
        for record in records:
            message = json.loads(record)
            book.note(ENDED, message["id"], message["at"])


def _batches(bootstrap: str, topic: str, group: str) -> Iterator[list[bytes]]:
    """Yield values of records, which are committed once the next are asked for."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, **_CONSUMER, **_FAST_GROUP})
    consumer.subscribe([topic])
    while not stopping.is_set():
        records = [record for record in consumer.consume(50, 0.5) if record.error() is None]
        if records:
            yield [record.value() for record in records]
            consumer.commit(asynchronous=True)
    consumer.close()


def _over_http(book: Book, _: str) -> None:
    with Emitter(traffic.HTTP, "shop", first=True) as shop, Emitter(traffic.HTTP, "mail") as mail:
        for message_id, event_ms in _messages(traffic.HTTP):
            book.note(SENT, message_id, event_ms)
            fate = traffic.fate_of(message_id)
            with shop.processing():
                shop.received(message_id, event_ms)
                shop.sent(message_id, event_ms)
            book.note(ACKED, message_id, event_ms)
            if fate == traffic.LOST_ON_LINK:
                continue
            with mail.processing():
                mail.received(message_id, event_ms)
                if fate != traffic.LOST_AT_WORKER:
                    book.note(ENDED, message_id, event_ms)
                    mail.sent(message_id, event_ms)


def _post_json(book: Book, _: str) -> None:
    url = f"{os.environ['LAGLOSS_COLLECTOR_URL']}/v1/beacons"
    headers = {"Authorization": f"Bearer {os.environ['LAGLOSS_COLLECTOR_TOKEN']}"}
    client = httpx2.Client(headers=headers, timeout=15)
    waiting: list[tuple[str, int]] = []
    for message_id, event_ms in _messages(traffic.JSON):
        book.note(SENT, message_id, event_ms)
        waiting.append((message_id, event_ms))
        if len(waiting) < BATCH:
            continue
        beacons = [
            {"checkpoint": checkpoint, "message_id": name, "event_time": at, "observed_at": at}
            for name, at in waiting
            for checkpoint in ("in", "out")
        ]
        body = {"pipeline": traffic.JSON, "node": "post", "beacons": beacons}
        if _post(client, url, body):
            for acknowledged in waiting:
                book.note(ACKED, *acknowledged)
        waiting.clear()


def _post(client: httpx2.Client, url: str, body: dict[str, Any]) -> bool:
    """Post a batch until it is acknowledged; return False if the program ends before."""
    while not stopping.is_set():
        try:
            answer = client.post(url, json=body)
            if answer.status_code == 202:
                return True
            if answer.status_code < 500 and answer.status_code != 429:
                raise SystemExit(f"the collector answers {answer.status_code}: {answer.text}")
        except httpx2.HTTPError:
            pass
        stopping.wait(1)
    return False


if __name__ == "__main__":
    main()

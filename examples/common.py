"""Code that all examples share: arguments, topics, orders to handle, and the end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.broker.connection import KafkaConnection
from lagloss.broker.errors import kafka_error
from lagloss.broker.topics import create_topics
from lagloss.kafka import KafkaNode, NodeConsumer

BOOTSTRAP = os.environ.get("LAGLOSS_KAFKA_BOOTSTRAP", "")
STOPPING = threading.Event()


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    pipeline: str
    messages: int
    """Number of messages after which the example ends; 0: never, until Ctrl-C or SIGTERM."""
    feeds: bool

    @property
    def orders(self) -> str:
        """Topic of incoming orders."""
        return f"{self.pipeline}.orders"

    @property
    def enriched(self) -> str:
        """Topic of enriched orders."""
        return f"{self.pipeline}.enriched"

    @property
    def dead(self) -> str:
        """Dead-letter queue."""
        return f"{self.pipeline}.dead"


def options(about: str | None) -> Options:
    """Parse the command line, and stop at SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--pipeline", default="orders", help="name of the pipeline, and prefix of its topics and groups"
    )
    parser.add_argument("--messages", type=int, default=100, help="how many to handle; 0: until Ctrl-C or SIGTERM")
    parser.add_argument("--no-feed", action="store_true", help="the orders are in the topic already")
    given = parser.parse_args()
    if not BOOTSTRAP:
        parser.error("expected Kafka's address in LAGLOSS_KAFKA_BOOTSTRAP; `lagloss up` prints one")
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: STOPPING.set())
    return Options(given.pipeline, given.messages, not given.no_feed)


def make_topics(chosen: Options) -> None:
    """Create the topics of lagloss and of the example. Append times give the most exact progress of consumers."""
    create_topics(BOOTSTRAP)
    config = {"message.timestamp.type": "LogAppendTime"}
    topics = [NewTopic(name, 2, config=config) for name in (chosen.orders, chosen.enriched, chosen.dead)]
    admin = AdminClient(KafkaConnection.of(BOOTSTRAP).client())
    for made in admin.create_topics(topics).values():
        try:
            made.result(10)
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def feed(chosen: Options) -> None:
    """Create the topics, and send orders to handle as the pipeline's first node, `shop`."""
    make_topics(chosen)
    if chosen.feeds:
        with KafkaNode(chosen.pipeline, "shop", first=True) as node:
            producer = node.producer(KafkaConnection.of(BOOTSTRAP).client())
            for number in range(chosen.messages):
                producer.produce(chosen.orders, json.dumps({"number": number}))
                producer.poll(0)


def consumer_config(chosen: Options) -> dict[str, str | int]:
    """Configure a consumer that begins at the oldest order; if it is killed, another takes over after 6 s."""
    return KafkaConnection.of(BOOTSTRAP).client(
        {
            "group.id": chosen.pipeline,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
        }
    )


def polled(consumer: NodeConsumer, chosen: Options) -> Iterator[Message]:
    """Poll messages, and yield them one by one until the example ends."""
    count = 0
    while not STOPPING.is_set() and (not chosen.messages or count < chosen.messages):
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            count += 1
            yield message

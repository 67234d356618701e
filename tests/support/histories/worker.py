"""A process of the node mid, to be killed: `python -m tests.support.histories.worker BOOTSTRAP PIPELINE`."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time

from lagloss.kafka import KafkaNode
from tests.support.histories import fates

MOST_WORK_S = 0.1
"""For one message: some are in hand when the process is killed."""


def main() -> None:
    """Take messages in and treat each by its fate until SIGTERM."""
    bootstrap, pipeline = sys.argv[1:]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with KafkaNode(pipeline, "mid", bootstrap) as node:
        producer = node.producer({"bootstrap.servers": bootstrap, **fates.PRODUCER})
        consumer = node.consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{pipeline}-mid",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_500,
            }
        )
        consumer.subscribe([f"{pipeline}-mid"])
        while not stopping.is_set():
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            identity = node.identity_of(message)
            assert identity is not None
            time.sleep(random.uniform(0, MOST_WORK_S))
            match fates.fate_of(identity.message_id):
                case fates.LOST_AT_MID:
                    pass
                case fates.LOST_ON_MID_SNK:
                    node.sent(message)
                case fates.FILTERED:
                    node.filtered(message, "robot")
                case _:
                    producer.produce(f"{pipeline}-snk", message.value())


if __name__ == "__main__":
    main()

"""A last node that delivers its messages in batches: all of a batch are out once the one request is acknowledged.

The first half reads from Kafka, the second has rows of its own.
"""

import time

from common import STOPPING, consumer_config, feed, options

from lagloss import Emitter
from lagloss.kafka import KafkaNode
from lagloss.sink import batch


def post(rows: list[bytes]) -> None:
    """Stand in for one acknowledged request, to a warehouse, say."""
    print(f"posted {len(rows)} rows")


def main() -> None:
    chosen = options(__doc__)
    feed(chosen)
    with KafkaNode(chosen.pipeline, "warehouse") as node:
        consumer = node.consumer(consumer_config(chosen))
        consumer.subscribe([chosen.orders])
        count = 0
        while count < chosen.messages and not STOPPING.is_set():
            messages = [message for message in consumer.consume(50, timeout=0.5) if message.error() is None]
            with node.batch(messages):
                post([message.value() or b"" for message in messages])
            count += len(messages)

    with Emitter(f"{chosen.pipeline}-import", "import", first=True) as emitter, batch(emitter) as rows:
        for number in range(chosen.messages):
            rows.received(f"row-{number}", time.time_ns() // 1_000_000)
        post([message_id.encode() for message_id, *_ in rows.messages])
    print(f"warehouse: {node.emitter.stats()}\nimport: {emitter.stats()}")


if __name__ == "__main__":
    main()

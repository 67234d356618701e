"""A service between two topics: enriches orders, filters out those of robots, and sends unreadable ones to a DLQ."""

import json

from common import BOOTSTRAP, consumer_config, feed, options, polled

from lagloss.kafka import KafkaNode


def main() -> None:
    chosen = options(__doc__)
    feed(chosen)
    with KafkaNode(chosen.pipeline, "enrich") as node:
        consumer = node.consumer(consumer_config(chosen))
        producer = node.producer({"bootstrap.servers": BOOTSTRAP})
        consumer.subscribe([chosen.orders])
        for message in polled(consumer, chosen):
            try:
                order = json.loads(message.value() or b"")
                number = order["number"]
            except (ValueError, KeyError):
                producer.produce(chosen.dead, message.value(), dead_lettered="unreadable")
                continue
            if number % 10 == 7:
                node.filtered(message, "robot")
            else:
                producer.produce(chosen.enriched, json.dumps({**order, "price": 10 * number}))
            producer.poll(0)
    print(f"enrich: {node.emitter.stats()}")


if __name__ == "__main__":
    main()

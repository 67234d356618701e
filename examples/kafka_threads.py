"""A service that hands its messages to threads: `handling` marks the message of a thread, and when it is done."""

import json
from concurrent.futures import ThreadPoolExecutor

from common import BOOTSTRAP, consumer_config, feed, options, polled
from confluent_kafka import Message

from lagloss.kafka import KafkaNode


def main() -> None:
    chosen = options(__doc__)
    feed(chosen)
    with KafkaNode(chosen.pipeline, "enrich") as node, ThreadPoolExecutor(4) as threads:
        consumer = node.consumer(consumer_config(chosen), explicit_done=True)
        producer = node.producer({"bootstrap.servers": BOOTSTRAP})

        def enrich(message: Message) -> None:
            with consumer.handling(message):
                order = json.loads(message.value() or b"")
                producer.produce(chosen.enriched, json.dumps({**order, "price": 10}))

        consumer.subscribe([chosen.orders])
        for message in polled(consumer, chosen):
            threads.submit(enrich, message)
            producer.poll(0)
        threads.shutdown()
    print(f"enrich: {node.emitter.stats()}")


if __name__ == "__main__":
    main()

"""The first node of a pipeline: makes orders and sends them to a topic.

`produce` draws an id and takes the present as event time, unless they are given.
"""

import json

from common import BOOTSTRAP, make_topics, options

from lagloss.kafka import KafkaNode


def main() -> None:
    chosen = options(__doc__)
    make_topics(chosen)
    with KafkaNode(chosen.pipeline, "shop", first=True) as node:
        producer = node.producer({"bootstrap.servers": BOOTSTRAP})
        for number in range(chosen.messages):
            producer.produce(chosen.orders, json.dumps({"number": number}), message_id=f"order-{number}")
            producer.poll(0)
    print(f"shop: {node.emitter.stats()}")


if __name__ == "__main__":
    main()

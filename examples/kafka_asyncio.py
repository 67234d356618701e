"""A service that handles each message in a task of asyncio; polling waits in a thread."""

import asyncio
import json

from common import BOOTSTRAP, consumer_config, feed, options, polled
from confluent_kafka import Message

from lagloss.kafka import KafkaNode


async def serve() -> None:
    chosen = options(__doc__)
    feed(chosen)
    with KafkaNode(chosen.pipeline, "enrich") as node:
        consumer = node.consumer(consumer_config(chosen), explicit_done=True)
        producer = node.producer({"bootstrap.servers": BOOTSTRAP})

        async def enrich(message: Message) -> None:
            with consumer.handling(message):
                order = json.loads(message.value() or b"")
                await asyncio.sleep(0)  # stands in for a request for the price
                producer.produce(chosen.enriched, json.dumps({**order, "price": 10}))

        consumer.subscribe([chosen.orders])
        messages = polled(consumer, chosen)
        async with asyncio.TaskGroup() as tasks:
            while (message := await asyncio.to_thread(next, messages, None)) is not None:
                tasks.create_task(enrich(message))
                producer.poll(0)
    print(f"enrich: {node.emitter.stats()}")


if __name__ == "__main__":
    asyncio.run(serve())

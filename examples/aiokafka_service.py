"""A service between two topics with aiokafka: enriches orders, filters out those of robots, sends bad ones to a DLQ."""

import asyncio
import json

from common import BOOTSTRAP, STOPPING, feed, options

from lagloss.aiokafka import AIOKafkaNode


async def serve() -> None:
    chosen = options(__doc__)
    await asyncio.to_thread(feed, chosen)
    async with AIOKafkaNode(chosen.pipeline, "enrich") as node:
        consumer = node.consumer(
            chosen.orders,
            bootstrap_servers=BOOTSTRAP,
            group_id=chosen.pipeline,
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
        )
        producer = node.producer(bootstrap_servers=BOOTSTRAP)
        async with consumer, producer:
            count = 0
            while not STOPPING.is_set() and (not chosen.messages or count < chosen.messages):
                batches = await consumer.getmany(timeout_ms=500, max_records=50)
                for message in [message for messages in batches.values() for message in messages]:
                    with consumer.handling(message):
                        try:
                            number = json.loads(message.value)["number"]
                        except (ValueError, KeyError):
                            await producer.send(chosen.dead, message.value, dead_lettered="unreadable")
                            continue
                        if number % 10 == 7:
                            node.filtered(message, "robot")
                        else:
                            await producer.send(chosen.enriched, json.dumps({"number": number, "price": 10}).encode())
                    count += 1
    print(f"enrich: {node.emitter.stats()}")


if __name__ == "__main__":
    asyncio.run(serve())

"""Consumers and producers of an AIOKafkaNode on a real broker: what they report, and what they commit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss import MemoryOutlet
from lagloss.aiokafka import AIOKafkaNode, AIONodeConsumer
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.identity import Carrier, Identity
from lagloss.wire.format import decode_block, decode_report, hash_id
from tests.integration.repository.test_examples import left_by
from tests.support.kafka_log import read_all, wait_for

ROOT = Path(__file__).parents[4]
NOW_MS = time.time_ns() // 1_000_000
WORKER = """
import asyncio, sys
from lagloss.aiokafka import AIOKafkaNode

async def main(bootstrap, pipeline):
    async with AIOKafkaNode(pipeline, "mid", bootstrap) as node:
        consumer = node.consumer(
            f"{pipeline}-mid", bootstrap_servers=bootstrap, group_id=pipeline, auto_offset_reset="earliest",
            session_timeout_ms=6_000, heartbeat_interval_ms=1_000,
        )
        producer = node.producer(bootstrap_servers=bootstrap)
        async with consumer, producer:
            async for record in consumer:
                await asyncio.sleep(0.002)
                await producer.send(f"{pipeline}-snk", record.value)

asyncio.run(main(*sys.argv[1:]))
"""


class Service:
    """A node whose beacons go to memory, and a topic of one partition with messages for it."""

    def __init__(self, bootstrap: str, **options: Any) -> None:
        self.bootstrap, self.topic, self.log = bootstrap, f"aio-{uuid.uuid4().hex[:8]}", MemoryOutlet()
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        topics = [NewTopic(name, 1) for name in (self.topic, f"{self.topic}.out", f"{self.topic}.side")]
        for made in admin.create_topics(topics).values():
            made.result(20)
        self.node = AIOKafkaNode("it-orders", "mid", "unused", outlet=lambda: self.log, **options)

    async def put(self, *names: str) -> None:
        """Put messages of these ids; one of the empty name has none."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for name in names:
                identity = Identity(name, NOW_MS).headers() if name else []
                headers = [(key, str(value).encode()) for key, value in identity]
                await producer.send_and_wait(self.topic, f"value of {name}".encode(), partition=0, headers=headers)

    async def consumer(self, **options: Any) -> AIONodeConsumer:
        shared = {"group_id": self.topic, "auto_offset_reset": "earliest"}
        consumer = self.node.consumer(self.topic, bootstrap_servers=self.bootstrap, **{**shared, **options})
        await consumer.start()
        return consumer

    async def committed(self, consumer: AIONodeConsumer) -> int:
        """Return the committed offset after a commit of all that is safe; 0 for none."""
        await consumer.commit()
        return await consumer.committed(TopicPartition(self.topic, 0)) or 0

    async def beacons(self) -> Counter[str]:
        assert await asyncio.to_thread(self.node.emitter.flush)
        counts = Counter[str]()
        for block in map(decode_block, self.log.values(BEACONS)):
            counts[block.checkpoint + (f" {block.reason}" if block.reason else "")] += block.count
        return counts


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_messages_are_out_with_their_acknowledgement_and_committed_by_themselves(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap)
        await service.put("a", "b", "c")
        async with service.node as node:
            consumer = await service.consumer()
            async with node.producer(bootstrap_servers=kafka_bootstrap) as producer:
                first = await consumer.getone()
                arrival = await producer.send(f"{service.topic}.out", first.value, headers=[("mine", b"too")])
                arrival.cancel()  # the host need not wait, nor may it change what is reported
                second = await consumer.getone()
                node.filtered(second, "robot")
                await consumer.getone()
                await producer.send_and_wait(f"{service.topic}.side", b"", dead_lettered="unreadable")
                waiting = asyncio.create_task(consumer.getone())

                async def is_committed() -> bool:
                    return await consumer.committed(TopicPartition(service.topic, 0)) == 3

                await until(is_committed, "no commit")
                waiting.cancel()
            assert await service.beacons() == {
                "mid.in": 3,
                "mid.out": 1,
                "mid.filtered robot": 1,
                "mid.dead unreadable": 1,
            }
        assert decode_report(service.log.values(REPORTS)[-1]).closed
        reader = AIOKafkaNode("it-orders", "next", "unused", outlet=MemoryOutlet)
        async with reader:
            consumer = reader.consumer(
                f"{service.topic}.out", bootstrap_servers=kafka_bootstrap, group_id=f"{service.topic}.next",
                auto_offset_reset="earliest",
            )  # fmt: skip
            await consumer.start()
            record = await consumer.getone()
            expected = (("mine", b"too"), ("lagloss-id", b"a"), ("lagloss-event-time", str(NOW_MS).encode()))
            assert record.headers == expected

    run(test)


def test_a_commit_never_passes_a_message_that_is_not_finished(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap)
        await service.put("a", "b", "c")
        async with service.node:
            consumer = await service.consumer(explicit_done=True)
            first, second, third = [await consumer.getone() for _ in range(3)]
            consumer.done(second)
            with pytest.raises(ValueError, match="bad"), consumer.handling(third):
                raise ValueError("bad")
            assert await service.committed(consumer) == 0
            consumer.done(first)
            assert await service.committed(consumer) == 2
        assert decode_report(service.log.values(REPORTS)[-1]).unfinished
        successor = Service.__new__(Service)
        successor.__dict__.update(service.__dict__, log=MemoryOutlet())
        successor.node = AIOKafkaNode("it-orders", "mid", "unused", outlet=MemoryOutlet)
        async with successor.node:
            assert (await (await successor.consumer()).getone()).value == b"value of c"

    run(test)


def test_a_failed_output_keeps_its_message_in_flight_until_it_is_sent_again(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap)
        await service.put("a", "b")
        async with service.node as node:
            consumer = await service.consumer()
            async with node.producer(bootstrap_servers=kafka_bootstrap, max_request_size=1_000) as producer:
                message = await consumer.getone()
                with pytest.raises(Exception, match="larger"):
                    await producer.send(f"{service.topic}.out", b"x" * 2_000)
                arrival = asyncio.get_running_loop().create_future()
                output = producer._outputs.begin(f"{service.topic}.out", b"", None, source=message)
                output.accepted()
                arrival.set_exception(OSError("gone"))
                producer._report(output, f"{service.topic}.out", None, arrival)
                await consumer.getone()
                assert await service.committed(consumer) == 0
                await producer.send_and_wait(f"{service.topic}.out", b"", source=message)
                assert await service.committed(consumer) == 2
            assert await service.beacons() == {"mid.in": 2, "mid.out": 1}

    run(test)


def test_tasks_of_their_own_and_wait_for_name_their_messages(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap)
        await service.put("a", "b", "c")
        async with service.node as node:
            consumer = await service.consumer()
            async with node.producer(bootstrap_servers=kafka_bootstrap) as producer:
                await asyncio.wait_for(consumer.getone(), 20)  # reads in a task of its own in Python 3.11
                await producer.send_and_wait(f"{service.topic}.out", b"")
                batches = await consumer.getmany(timeout_ms=10_000)
                records = [record for batch in batches.values() for record in batch]

                async def handle(record: ConsumerRecord) -> None:
                    with consumer.handling(record):
                        await asyncio.sleep(0)
                        await producer.send_and_wait(f"{service.topic}.out", record.value)

                await asyncio.gather(*map(handle, reversed(records)))
                assert await service.committed(consumer) == 3
            assert node.skipped == 0
        blocks = [decode_block(value) for value in service.log.values(BEACONS)]
        out = [at for block in blocks if block.checkpoint == "mid.out" for at in block.id_hash.tolist()]
        assert sorted(out) == sorted(map(hash_id, "abc"))

    run(test)


def test_lanes_move_to_now_pass_markers_and_wait_for_open_transactions(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap)
        began_ms = time.time_ns() // 1_000_000
        async with service.node:
            consumer = await service.consumer(isolation_level="read_committed")
            async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=service.topic) as producer:
                async with producer.transaction():
                    await producer.send_and_wait(service.topic, b"")

                def lane_ms() -> int:
                    return {lane.lane: lane.until for lane in consumer._lanes.snapshot()}.get(f"{service.topic}/0", 0)

                async def is_past(moment_ms: int) -> bool:
                    waiting = asyncio.create_task(consumer.getone())
                    await asyncio.sleep(0.1)
                    waiting.cancel()
                    return lane_ms() > moment_ms

                await until(lambda: is_past(time.time_ns() // 1_000_000 - 3_000), "the lane stands before a marker")
                await producer.begin_transaction()
                await producer.send_and_wait(service.topic, b"")
                held_ms = time.time_ns() // 1_000_000
                before, proofs = lane_ms(), consumer._lanes
                for _ in range(3):
                    await proofs.prove()
                assert began_ms < before
                assert lane_ms() <= held_ms
                await producer.commit_transaction()
                await until(lambda: is_past(held_ms), "the lane stands after the commit")

    run(test)


def test_with_observe_commits_and_transactions_are_the_hosts(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap, observe=True)
        await service.put("a", "b")
        async with service.node as node:
            with pytest.raises(ValueError, match="observe=True"):
                AIOKafkaNode("it-orders", "mid", "unused", outlet=MemoryOutlet).producer(transactional_id="t")
            consumer = await service.consumer(enable_auto_commit=False)
            config = {"bootstrap_servers": kafka_bootstrap, "transactional_id": service.topic}
            async with node.producer(**config) as producer:
                record = await consumer.getone()
                await producer.begin_transaction()
                await producer.send_and_wait(f"{service.topic}.out", b"")
                await producer.abort_transaction()
                assert await service.beacons() == {"mid.in": 1}
                async with producer.transaction():
                    await producer.send_and_wait(f"{service.topic}.out", b"", source=record)
                    place = TopicPartition(service.topic, 0)
                    await producer.send_offsets_to_transaction({place: record.offset + 1}, service.topic)
                assert await service.beacons() == {"mid.in": 1, "mid.out": 1}
                await consumer.getone()

                async def is_committed() -> bool:
                    return await consumer.committed(place) == 1

                await until(is_committed, "the coordinator has the marker of the transaction")
                await consumer.commit({place: 2})
                assert await consumer.committed(place) == 2
        reports = [decode_report(value) for value in service.log.values(REPORTS)]
        assert not any(report.resumes for report in reports)
        assert reports[-1].unfinished  # b has no exit

    run(test)


def test_a_function_deals_with_messages_without_identity(kafka_bootstrap: str) -> None:
    async def test() -> None:
        seen: list[bytes] = []

        def deal_with(carrier: Carrier) -> None:
            seen.append(carrier.body)

        service = Service(kafka_bootstrap, missing=deal_with)
        await service.put("", "a")
        async with service.node:
            consumer = await service.consumer()
            assert (await consumer.getone()).value == b"value of a"
            assert await service.committed(consumer) == 2
        assert seen == [b"value of "]

    run(test)


def test_after_a_seek_nothing_past_it_is_committed_until_it_is_read_again(kafka_bootstrap: str) -> None:
    async def test() -> None:
        service = Service(kafka_bootstrap)
        await service.put("a", "b", "c")
        async with service.node:
            consumer = await service.consumer()
            for _ in range(3):
                await consumer.getone()
            consumer.seek(TopicPartition(service.topic, 0), 1)
            assert await service.committed(consumer) == 1
            for _ in range(2):
                await consumer.getone()
            assert await service.committed(consumer) == 3

    run(test)


def test_killed_consumers_and_rebalances_make_duplicates_and_no_holes(kafka_bootstrap: str) -> None:
    pipeline, count = f"aio-{uuid.uuid4().hex[:8]}", 3_000
    create_topics(kafka_bootstrap)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(f"{pipeline}-{node}", 3) for node in ("mid", "snk")]).values():
        made.result(20)

    async def feed() -> None:
        async with (
            AIOKafkaNode(pipeline, "src", kafka_bootstrap, first=True) as node,
            node.producer(bootstrap_servers=kafka_bootstrap) as producer,
        ):
            for number in range(count):
                await producer.send(f"{pipeline}-mid", b"%d" % number, message_id=f"m-{number}")

    def arrived() -> set[bytes]:
        return {value for *_, value in read_all(kafka_bootstrap, f"{pipeline}-snk")}

    run(feed)
    words = [sys.executable, "-c", WORKER, kafka_bootstrap, pipeline]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(words, env=environment)
    others = []
    try:
        wait_for(lambda: len(arrived()) > 100, 30, "outputs of the first")
        others.append(subprocess.Popen(words, env=environment))  # a rebalance, while the first works
        before = len(arrived())
        wait_for(lambda: len(arrived()) > before + 200, 30, "outputs of both")
        first.send_signal(signal.SIGKILL)
        others.append(subprocess.Popen(words, env=environment))
        wait_for(lambda: len(arrived()) == count, 60, "all outputs")
        left = left_by(kafka_bootstrap, pipeline)
        wait_for(lambda: left_by(kafka_bootstrap, pipeline).ids["mid.out"] == left.ids["src.out"], 20, "all beacons")
    finally:
        for process in (first, *others):
            process.kill()
            process.wait()
    left = left_by(kafka_bootstrap, pipeline)
    expected = {hash_id(f"m-{number}") for number in range(count)}
    assert left.ids["src.out"] == left.ids["mid.in"] == left.ids["mid.out"] == expected

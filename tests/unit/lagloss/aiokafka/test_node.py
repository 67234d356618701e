"""An AIOKafkaNode on a simulated cluster: what it reports while the host goes its own ways."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from lagloss import MemoryOutlet
from lagloss.aiokafka import AIOKafkaNode
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import decode_block, decode_report
from tests.support.mock_kafka import mock_kafka

MESSAGES = 5


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with mock_kafka() as address:
        yield address


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def beacons(log: MemoryOutlet) -> Counter[str]:
    counts = Counter[str]()
    for block in map(decode_block, log.values(BEACONS)):
        counts[block.checkpoint] += block.count
    return counts


async def feed(bootstrap: str, topic: str, messages: int = MESSAGES, headers: Sequence[tuple[str, bytes]] = ()) -> None:
    async with (
        AIOKafkaNode("orders", "src", "unused", first=True, outlet=MemoryOutlet) as node,
        node.producer(bootstrap_servers=bootstrap) as producer,
    ):
        for number in range(messages):
            await producer.send_and_wait(topic, b"%d" % number, headers=headers, message_id=f"m-{number}")


def config(bootstrap: str, topic: str) -> dict[str, Any]:
    return {"bootstrap_servers": bootstrap, "group_id": topic, "auto_offset_reset": "earliest"}


def test_a_relay_reports_each_message_in_and_out_and_ends_in_order(bootstrap: str) -> None:
    async def test() -> None:
        topic, log, count = f"t-{uuid.uuid4().hex[:8]}", MemoryOutlet(), 0
        await feed(bootstrap, topic)
        async with AIOKafkaNode("orders", "mid", "unused", outlet=lambda: log) as node:
            consumer = node.consumer(topic, **config(bootstrap, topic))
            async with consumer, node.producer(bootstrap_servers=bootstrap) as producer:
                async for record in consumer:
                    await producer.send(f"{topic}-out", record.value)
                    count += 1
                    if count == MESSAGES:
                        break
        assert beacons(log) == {"mid.in": MESSAGES, "mid.out": MESSAGES}
        last = decode_report(log.values(REPORTS)[-1])
        assert last.closed
        assert {lane.checkpoint for lane in last.progress} == {"mid.in", "mid.out"}

    run(test)


@pytest.mark.parametrize(("header", "replay"), [(b"june", "june"), (b"", "unnamed"), (b"x" * 501, "unnamed")])
def test_a_replay_is_named_by_the_beacons_and_handed_on(bootstrap: str, header: bytes, replay: str) -> None:
    async def test() -> None:
        topic, log = f"t-{uuid.uuid4().hex[:8]}", MemoryOutlet()
        more = [("lagloss-replay", b"earlier"), ("lagloss-replay", header)]
        await feed(bootstrap, topic, messages=1, headers=more)
        async with AIOKafkaNode("orders", "mid", "unused", outlet=lambda: log) as node:
            consumer = node.consumer(topic, **config(bootstrap, topic))
            async with consumer, node.producer(bootstrap_servers=bootstrap) as producer:
                record = await consumer.getone()
                await producer.send_and_wait(f"{topic}-out", record.value)
        blocks = [decode_block(value) for value in log.values(BEACONS)]
        assert {(block.checkpoint, block.replay) for block in blocks} == {("mid.in", replay), ("mid.out", replay)}
        async with AIOKafkaConsumer(f"{topic}-out", **config(bootstrap, topic)) as behind:
            sent = await behind.getone()
        assert dict(sent.headers)["lagloss-replay"] == replay.encode()

    run(test)


def test_progress_is_read_at_once_while_the_host_blocks_its_loop(bootstrap: str) -> None:
    async def test() -> None:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        await feed(bootstrap, topic)
        async with AIOKafkaNode("orders", "mid", "unused", outlet=MemoryOutlet) as node:
            consumer = node.consumer(topic, **config(bootstrap, topic))
            async with consumer:
                await consumer.getmany(timeout_ms=5_000)
                await consumer._lanes.prove()
                took_s: list[float] = []

                def read() -> None:
                    began = time.monotonic()
                    assert consumer._lanes.snapshot()
                    took_s.append(time.monotonic() - began)

                thread = threading.Thread(target=read)
                thread.start()
                thread.join(5)  # the loop does not run meanwhile
                assert took_s
                assert took_s[0] < 1

    run(test)


def test_brokers_that_do_not_answer_stop_neither_the_host_nor_its_end(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> dict[TopicPartition, int]:
        raise KafkaError("refused")

    async def test() -> None:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        await feed(bootstrap, topic)
        async with AIOKafkaNode("orders", "mid", "unused", outlet=MemoryOutlet) as node:
            consumer = node.consumer(topic, **config(bootstrap, topic))
            async with consumer:
                monkeypatch.setattr(consumer._lanes, "_read_ends", refuse)
                monkeypatch.setattr("aiokafka.AIOKafkaConsumer.commit", refuse)
                assert await consumer.getone()
                await consumer._lanes.prove()
                assert "refused" in (consumer._lanes.last_error or "")
                await consumer.commit()

    run(test)


def test_batches_without_headers_are_refused(bootstrap: str) -> None:
    async def test() -> None:
        async with AIOKafkaNode("orders", "mid", "unused", outlet=MemoryOutlet) as node:
            producer = node.producer(bootstrap_servers=bootstrap)
            with pytest.raises(NotImplementedError, match="headers"):
                await producer.send_batch(None, "t", partition=0)

    run(test)

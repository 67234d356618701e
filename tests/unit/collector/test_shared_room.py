"""What the collector holds is shared: a flood of one caller leaves room for others, and nothing is held for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from collector.batches import BeaconBatch, Seen
from collector.bodies import Bodies
from collector.emitters import MAX_EMITTERS, MAX_WAITING_BEACONS, Emitters
from collector.log_writer import MAX_RECORD_BYTES, MAX_WAITING_BYTES, RecordToWrite, Writer
from collector.shared_room import SharedRoom
from lagloss.sdk.outlets.kafka import Outgoing
from lagloss_server.net.problem_details import Problem


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), max_size=100))
def test_a_newcomer_finds_a_share_and_all_is_given_back(wants: list[tuple[str, int]]) -> None:
    room = SharedRoom(100)
    taken = [(holder, amount) for holder, amount in wants if room.take(holder, amount)]
    assert (
        room.taken == sum(amount for _, amount in taken) <= 87
    )  # 50, 25 and 12 where each comes when the one before has all it may
    assert room.take("newcomer", 6)
    room.give_back("newcomer", 6)
    for holder, amount in taken:
        room.give_back(holder, amount)
    assert room.take("a", 50)
    assert not room.take("a", 1)


class SilentBroker:
    """Takes records and acknowledges none. It is an outlet, and an emitter, of one."""

    last_error = None

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []

    def partitions(self) -> int:
        return 1

    def send(self, record: Outgoing) -> None:
        self.sent.append(record)

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def taken_in(self, *_: Any, **__: Any) -> None:
        """Take a beacon."""

    def mark(self) -> int:
        return 1

    def acknowledged(self, _: int) -> bool:
        return False

    def request_flush(self) -> None:
        """Send nothing."""

    def close(self, _: float = 0) -> None:
        for record in self.sent:
            record.done(0, 0)


async def is_refused_at_once(put: Any) -> bool:
    """Whether a request is answered 503 before it waits for the broker."""
    task = asyncio.ensure_future(put)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        return False
    with pytest.raises(Problem) as found:
        await task
    return found.value.status == 503


def test_records_of_one_pipeline_leave_room_for_anothers() -> None:
    async def go() -> None:
        broker: Any = SilentBroker()
        writer = Writer(lambda: broker, timeout_s=60)
        record = RecordToWrite("lagloss.beacons", b"", bytes(MAX_RECORD_BYTES), 0)
        puts = []
        for _ in range(2 * MAX_WAITING_BYTES // MAX_RECORD_BYTES):
            puts.append(asyncio.ensure_future(writer.put("flood", [record])))
            await asyncio.sleep(0)
        assert MAX_WAITING_BYTES * 0.4 < writer.waiting_bytes <= MAX_WAITING_BYTES / 2
        assert await is_refused_at_once(writer.put("flood", [record]))
        assert not await is_refused_at_once(writer.put("orders", [record]))
        for put in puts:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        while len(broker.sent) < writer.waiting_bytes // MAX_RECORD_BYTES:
            await asyncio.sleep(0.01)
        for sent in broker.sent:
            sent.done(0, 0)
        assert writer.waiting_bytes == 0
        writer.close(5)

    asyncio.run(go())


def _silent(*_: object) -> Any:
    return SilentBroker()


def test_beacons_and_nodes_of_one_pipeline_leave_room_for_anothers() -> None:
    async def go() -> None:
        emitters = Emitters(_silent, timeout_s=0.001)

        def batch(pipeline: str, node: str, beacons: int) -> BeaconBatch:
            return BeaconBatch(pipeline, node, False, [Seen("in", "m", 0.0)] * beacons)

        async def nodes_of(pipeline: str) -> int:
            for node in range(MAX_EMITTERS):
                with pytest.raises(Problem) as found:
                    await emitters.put(batch(pipeline, f"n-{node}", 1))
                if "as many nodes" in str(found.value):
                    return node
            return MAX_EMITTERS

        assert await nodes_of("flood") == MAX_EMITTERS / 2
        assert await nodes_of("orders") == MAX_EMITTERS / 4
        for _ in range(200):
            with pytest.raises(Problem):
                await emitters.put(batch("flood", "n-0", 1_000))
        assert MAX_WAITING_BEACONS * 0.45 < emitters.waiting_beacons <= MAX_WAITING_BEACONS / 2
        assert await is_refused_at_once(emitters.put(batch("flood", "n-0", 1_000)))
        assert not await is_refused_at_once(emitters.put(batch("orders", "n-0", 1_000)))
        held = emitters.waiting_beacons
        assert await is_refused_at_once(emitters.put(batch("orders", "another", 1)))
        assert emitters.waiting_beacons == held
        await emitters.close()

    asyncio.run(go())


def test_bodies_of_one_sender_leave_room_for_anothers() -> None:
    bodies = Bodies(max_held_bytes=1_000)

    @asynccontextmanager
    async def held(sender: str, size: int) -> AsyncIterator[None]:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * size}

        async with bodies.read(Request({"type": "http", "headers": []}, receive), 1_000, sender):
            yield

    async def go() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(5):
                await stack.enter_async_context(held("flood", 100))
            with pytest.raises(Problem):
                await stack.enter_async_context(held("flood", 100))
            await stack.enter_async_context(held("orders", 100))

    asyncio.run(go())

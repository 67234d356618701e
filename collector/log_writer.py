"""The way of clients' own records into Kafka: one idempotent producer, one thread, a queue that is bounded in bytes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from collector.fairness import SharedRoom
from lagloss.sdk.outlets.kafka import Outgoing, Outlet
from lagloss_server.net.problem_details import busy

log = structlog.get_logger()

MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Records that wait for the broker's acknowledgement, those whose clients gave up waiting among them; a pipeline gets
half of it at most."""
RECORD_BYTES: Final = 500
"""Memory of a record besides its key and value."""
MAX_RECORD_BYTES: Final = 980_000
"""Largest record for the producer: its limit of 1,000,000 less Kafka's overhead."""
POLL_S: Final = 0.005
LOOK_AGAIN_S: Final = 60.0
TRY_AGAIN_S: Final = 5.0
IDLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RecordToWrite:
    """A record and its destination; without a partition the key decides."""

    topic: str
    key: bytes
    value: bytes
    partition: int = -1

    @property
    def held_bytes(self) -> int:
        return len(self.key) + len(self.value) + RECORD_BYTES


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Position of a record in the log."""

    partition: int
    offset: int


@dataclass(slots=True)
class _Group:
    """Records that are acknowledged together, and who waits for that."""

    pipeline: str
    records: Sequence[RecordToWrite]
    report: Callable[[list[LogPosition | None]], None]
    left: int = 0
    positions: list[LogPosition | None] = field(default_factory=list)


class Writer:
    """Puts records on the log in the order in which they come.

    Args:
        make_outlet: called in the writer's thread, which alone uses the outlet.
        timeout_s: how long a client waits for the broker.
    """

    def __init__(
        self, make_outlet: Callable[[], Outlet], timeout_s: float, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.partitions: int | None = None
        """Number of partitions of the beacons topic, None while unknown."""
        self._make_outlet = make_outlet
        self._timeout_s = timeout_s
        self._room = SharedRoom(max_waiting_bytes)
        self._condition = threading.Condition()
        self._incoming: list[_Group] = []
        self._in_flight = 0
        self._closing = False
        self._look_at = 0.0
        self._thread = threading.Thread(target=self._run, name="lagloss-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        return self._room.used

    async def put(self, pipeline: str, records: Sequence[RecordToWrite]) -> list[LogPosition]:
        """Return once the broker has acknowledged all these records of a pipeline.

        Raises:
            Problem: 503 if there is no room and nothing was taken, or the broker was too slow: then the records may
                arrive all the same, which does no harm to those that name their emitter and seq.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[list[LogPosition | None]] = loop.create_future()

        def settle(positions: list[LogPosition | None]) -> None:
            if not waiter.done():
                waiter.set_result(positions)

        self._take(_Group(pipeline, records, lambda positions: _call(loop, settle, positions)))
        try:
            async with asyncio.timeout(self._timeout_s):
                acknowledged = await waiter
        except TimeoutError:
            raise busy("the broker did not acknowledge in time; send again later") from None
        positions = [position for position in acknowledged if position is not None]
        if len(positions) < len(records):
            raise busy("the broker did not accept all records; send again later")
        return positions

    def close(self, timeout_s: float) -> None:
        """Send what is waiting, for at most this long, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout_s)

    def _take(self, group: _Group) -> None:
        size = sum(record.held_bytes for record in group.records)
        with self._condition:
            if self._closing or not self._room.take(group.pipeline, size):
                raise busy("too many bytes are waiting for the broker; send again later")
            self._incoming.append(group)
            self._condition.notify()

    # -- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        outlet = self._make_outlet()
        is_over = False
        while not is_over:
            try:
                self._look_at_partitions(outlet)
                is_over = self._turn(outlet)
            except Exception:
                log.exception("writer failed")
        outlet.close()

    def _turn(self, outlet: Outlet) -> bool:
        """Send waiting records, and poll for delivery reports. True once it is closing and all records are done."""
        with self._condition:
            if not self._incoming and not self._in_flight and not self._closing:
                self._condition.wait(IDLE_S)
            groups, self._incoming = self._incoming, []
        for group in groups:
            self._send(outlet, group)
        if self._in_flight:
            outlet.poll(POLL_S)
        return self._closing and not groups and not self._in_flight

    def _send(self, outlet: Outlet, group: _Group) -> None:
        group.left = len(group.records)
        group.positions = [None] * group.left
        self._in_flight += group.left
        for index, record in enumerate(group.records):
            outlet.send(
                Outgoing(record.topic, record.key, record.value, self._listener(group, index), record.partition)
            )

    def _listener(self, group: _Group, number: int) -> Callable[[int | None, int], None]:
        def done(partition: int | None, offset: int) -> None:
            self._in_flight -= 1
            with self._condition:
                self._room.give_back(group.pipeline, group.records[number].held_bytes)
            if partition is not None:
                group.positions[number] = LogPosition(partition, offset)
            group.left -= 1
            if not group.left:
                group.report(group.positions)

        return done

    def _look_at_partitions(self, outlet: Outlet) -> None:
        """Read the number of partitions, since the topic may be created or widened at any time. This can take seconds
        while the broker is away."""
        if time.monotonic() >= self._look_at:
            self.partitions = outlet.partitions()
            self._look_at = time.monotonic() + (LOOK_AGAIN_S if self.partitions else TRY_AGAIN_S)


def _call(
    loop: asyncio.AbstractEventLoop,
    settle: Callable[[list[LogPosition | None]], None],
    positions: list[LogPosition | None],
) -> None:
    try:
        loop.call_soon_threadsafe(settle, positions)
    except RuntimeError:
        log.debug("requests gone", why="the server has ended")

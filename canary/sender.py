"""The sender: one process as the three nodes of the canary's pipeline, which does to each message what its plan says.

It keeps a record of itself: a minute that it did not send as planned (Kafka or the collector took no beacon of it, the
process was paused, the clock was set) says nothing of lagloss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

import psycopg
from confluent_kafka import KafkaError, KafkaException, Producer

from canary.plan import MINUTE_S, Message, MinutePlan
from canary.table import CanaryTable
from lagloss.broker.connection import KafkaConnection
from lagloss.sdk.buffer import Processing
from lagloss.sdk.emitter import Emitter
from lagloss.wire.format import Progress
from lagloss_server.model.canary import APP, CANARY, CANARY_TOPIC, NOT_TAKEN, RELAY, STORE, TABLE

LAG_LIMIT_S: Final = 2.0
"""A step that comes later than this is not as planned: with it, a message on time could be late."""
STEP_S: Final = 2.0
"""Between two looks at the clock while the sender waits."""
PAUSED_S: Final = 30.0
"""A loop of the canary that goes on after so long was paused, with its machine or container. What happened meanwhile is
as unknown as before a start."""
ACKNOWLEDGED_S: Final = 25.0
"""After the end of a minute: by then all of its beacons are to be acknowledged."""
LANE: Final = "canary"
"""Input lane of each node. The next process continues it, which shows that a killed one has a successor."""


class Disturbed(Exception):
    """The minute is not sent as planned; its text says why."""


class NotTaken(Disturbed):
    """Kafka, the collector or the table did not take all of the minute. Now and then that says nothing of lagloss."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{NOT_TAKEN}{what}")


def boot_s() -> float:
    """Return seconds of a clock that is never set, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """The wall clock, watched for being set. `limit_s`: a larger difference to the monotonic clock is a jump."""

    def __init__(self, limit_s: float = LAG_LIMIT_S / 2) -> None:
        self._limit_s = limit_s
        self._offset_s = time.time() - boot_s()

    def jump_s(self) -> float:
        """Return how far the clock was set since the last call; 0 if it was not. Slewing is not noticed."""
        offset_s = time.time() - boot_s()
        jump_s, self._offset_s = offset_s - self._offset_s, offset_s
        return jump_s if abs(jump_s) > self._limit_s else 0.0


@dataclass
class CanaryLane:
    """An input lane that has taken in everything up to the steps that are done."""

    node: str
    until_ms: int = 0

    def snapshot(self) -> Sequence[Progress]:
        """Return the lane's progress; none before the first step."""
        return [Progress(f"{self.node}.in", LANE, self.until_ms)] if self.until_ms else []


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A minute all of whose steps are done. `marks`: of each emitter; `limit_s`: when they have to be acknowledged, by
    `boot_s`."""

    start_s: int
    marks: tuple[int, ...]
    limit_s: float


@dataclass(frozen=True, slots=True)
class _Received:
    """A message that the last node has received."""

    message: Message
    event_ms: int
    work: Processing


@dataclass
class _Minute:
    """A minute that is being sent: its steps, the earliest first, by epoch ms, and the work of its last node."""

    plan: MinutePlan
    steps: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    works: list[Processing] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def at(self, time_ms: float, step: Callable[[], None]) -> None:
        heappush(self.steps, (time_ms, next(self._numbers), step))

    def due(self, now_ms: float) -> Iterator[Callable[[], None]]:
        """Yield the steps whose time has come. Raises Disturbed at one that comes too late."""
        while self.steps and self.steps[0][0] <= now_ms:
            time_ms, _, step = heappop(self.steps)
            if now_ms - time_ms > LAG_LIMIT_S * 1_000:
                raise Disturbed(f"the sender was paused for {(now_ms - time_ms) / 1_000:.0f} s")
            yield step

    def end(self) -> None:
        """End all of its work, also what a disturbed minute never delivers."""
        for work in self.works:
            work.done()


class CanarySender:
    """The emitters and the producer of the canary's nodes, made by `open`. Used by one thread.

    Args:
        bootstrap: Kafka of lagloss's own topics.
        collector, token: of the collector that takes the beacons of the last node.
        table: in which that node stores messages; None: it says by beacons that they have left.
        now_s: the wall clock, epoch s.
    """

    def __init__(
        self,
        bootstrap: str,
        collector: str,
        token: str,
        table: CanaryTable | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._app = Emitter(CANARY, APP, bootstrap, first=True, traces=False, labels={}, close_on_sigterm=False)
        self._relay = Emitter(CANARY, RELAY, bootstrap, labels={}, close_on_sigterm=False)
        self._store = Emitter(CANARY, STORE, collector=collector, token=token, labels={}, close_on_sigterm=False)
        self._emitters = (self._app, self._relay, self._store)
        self._lanes = [CanaryLane(emitter.node) for emitter in self._emitters]
        for emitter, lane in zip(self._emitters, self._lanes, strict=True):
            emitter.follow(lane)
        options = {"client.id": CANARY, "log_level": 0, "enable.idempotence": True, "message.timeout.ms": 10_000}
        self._options = KafkaConnection.of(bootstrap).client(options)
        self._producer = Producer(self._options)
        self._table = table
        self._now_s = now_s

    def send(self, plan: MinutePlan, tick: Callable[[float], None]) -> Unconfirmed:
        """Send a minute, until it is over. `tick` waits for so many seconds at most, and can end it.

        Raises:
            Disturbed: it is not sent as planned.
        """
        before = self._mishaps()
        minute = _Minute(plan)
        try:
            self._send(minute, tick)
        finally:
            minute.end()
        if self._mishaps() != before:
            raise NotTaken(f"an emitter dropped or refused beacons: {self._last_error()}")
        marks = tuple(emitter.mark() for emitter in self._emitters)
        return Unconfirmed(plan.start_s, marks, boot_s() + ACKNOWLEDGED_S)

    def _send(self, minute: _Minute, tick: Callable[[float], None]) -> None:
        plan = minute.plan
        last_ms = plan.start_s * 1_000 + plan.messages[-1].offset_ms
        minute.at(last_ms, lambda: self._send_burst(minute))
        end_ms = (plan.start_s + MINUTE_S) * 1_000
        while (now_ms := self._now_s() * 1_000) < end_ms or minute.steps:
            for step in minute.due(now_ms):
                step()
            self._progress(now_ms)
            next_ms = min((end_ms, *(step[0] for step in minute.steps[:1])))
            tick(min(STEP_S, max(0.0, next_ms / 1_000 - self._now_s())))

    def idle(self) -> None:
        """Report progress between two minutes."""
        self._progress(self._now_s() * 1_000)

    def is_confirmed(self, minute: Unconfirmed) -> bool:
        """Return whether all beacons of a minute are acknowledged. Raises NotTaken if they were not in time."""
        waiting = [
            emitter.node
            for emitter, mark in zip(self._emitters, minute.marks, strict=True)
            if not emitter.acknowledged(mark)
        ]
        if waiting and boot_s() > minute.limit_s:
            error = self._last_error() or "no answer"
            raise NotTaken(f"beacons of {', '.join(waiting)} are not acknowledged: {error}")
        return not waiting

    def close(self) -> None:
        """End the nodes: their accounts are closed, so that the next process's results are certain at once."""
        for emitter in self._emitters:
            emitter.close()
        if self._table is not None:
            self._table.close()

    def _send_burst(self, minute: _Minute) -> None:
        """Take the messages through app and relay, and through store those that the topic has."""
        start_ms = minute.plan.start_s * 1_000
        stored: list[Message] = []
        records, answers = 0, list[KafkaError | None]()
        for message in minute.plan.messages:
            event_ms = start_ms + message.offset_ms
            self._app.received(message.id, event_ms, payload_crc=message.checksum)
            self._app.sent(message.id, event_ms, payload_crc=message.checksum)
            if message.place == f"link {APP}->{RELAY}" and message.fate == "lost":
                continue
            crc = message.checksum ^ (message.fate == "corrupted")
            with self._relay.processing():
                for _ in range(1 + (message.place == f"{RELAY}.in")):
                    self._relay.received(message.id, event_ms, payload_crc=crc)
                if message.fate == "dead":
                    self._relay.dead_lettered(message.id, event_ms, "canary")
                elif message.place != f"node {RELAY}":
                    for _ in range(1 + (message.place == f"{RELAY}.out")):
                        self._produce(message.id, event_ms, answers)
                        records += 1
                    stored.append(message)
        self._await(records, answers)
        self._deliver([received for message in stored for received in self._receive(minute, message)])

    def _receive(self, minute: _Minute, message: Message) -> Iterator[_Received]:
        """Receive a message at the last node; yield it if it is to be delivered at once. A late one is delivered
        later."""
        event_ms = minute.plan.start_s * 1_000 + message.offset_ms
        if message.place == f"link {RELAY}->{STORE}":
            return
        received = _Received(message, event_ms, self._store.processing())
        minute.works.append(received.work)
        for _ in range(1 + (message.place == f"{STORE}.in")):
            self._store.received(message.id, event_ms)
        if message.place == f"node {STORE}":
            received.work.done()
        elif message.delay_ms:
            minute.at(event_ms + message.delay_ms, lambda: self._deliver([received]))
        else:
            yield received

    def _deliver(self, messages: Sequence[_Received]) -> None:
        """Let messages leave the last node. Raises NotTaken if its table does not take them."""
        try:
            if self._table is not None:
                self._table.store([(received.message.id, received.event_ms) for received in messages])
            else:
                for received in messages:
                    self._store.sent(received.message.id, received.event_ms)
        except psycopg.Error as error:
            raise NotTaken(f"table {TABLE}: {error}") from error
        for received in messages:
            received.work.done()

    def _produce(self, message_id: str, event_ms: int, answers: list[KafkaError | None]) -> None:
        try:
            self._producer.produce(
                CANARY_TOPIC, str(event_ms), message_id, on_delivery=lambda error, _record: answers.append(error)
            )
        except (BufferError, KafkaException) as error:
            raise self._failed(str(error)) from error

    def _await(self, records: int, answers: list[KafkaError | None]) -> None:
        """Wait for the broker's answers. Raises NotTaken."""
        self._producer.flush(LAG_LIMIT_S)
        failed = next((error for error in answers if error is not None), None)
        if failed is not None or len(answers) < records:
            raise self._failed(failed.str() if failed else "no acknowledgement")

    def _failed(self, why: str) -> NotTaken:
        """Return the error of a topic that does not take records, and replace the producer: an idempotent one sends
        nothing after some of its errors."""
        self._producer = Producer(self._options)
        return NotTaken(f"topic {CANARY_TOPIC}: {why}")

    def _progress(self, now_ms: float) -> None:
        for lane in self._lanes:
            lane.until_ms = int(now_ms)

    def _mishaps(self) -> list[tuple[int, ...]]:
        counts = (emitter.stats() for emitter in self._emitters)
        return [(stats.dropped, stats.refused, stats.unplaced) for stats in counts]

    def _last_error(self) -> str | None:
        return next((error for emitter in self._emitters if (error := emitter.stats().last_error)), None)

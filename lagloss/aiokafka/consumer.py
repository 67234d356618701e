"""The consumer of a node with aiokafka: sends `in` beacons, reports lane progress, and commits finished messages only.

Commits and proofs of progress are tasks of the event loop beside the host's: nothing here waits for a broker, or for
beacons, where the host waits for a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from lagloss.aiokafka.lanes import AIOKafkaLanes
from lagloss.broker.partition_bounds import QUERY_TIMEOUT_S, Key
from lagloss.kafka.commits import Partition, SafeOffsets, Taken
from lagloss.kafka.handovers import ASK_EVERY_S
from lagloss.kafka.in_flight import InFlightMessage, set_current

if TYPE_CHECKING:
    from lagloss.aiokafka.node import AIOKafkaNode

log = logging.getLogger("lagloss")

COMMIT_EVERY_S: Final = 0.25
FINISH_S: Final = 5.0
"""Longest wait, before partitions go or the consumer stops, for records in flight, their beacons and a commit."""
ACKNOWLEDGED_EVERY_S: Final = 0.01
LOG_APPEND_TIME: Final = 1
_CONNECTION: Final = ("bootstrap_servers", "security_protocol", "ssl_", "sasl_", "request_timeout_ms", "metadata_max_")
"""Prefixes of the options that the lanes' own connection to the same cluster needs."""


class AIONodeConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """An aiokafka AIOKafkaConsumer; made by `AIOKafkaNode.consumer`.

    Finished messages are committed by a task of its own. A message's own handling is over when the next is read, or at
    a `commit` (unless `explicit_done`). If the node observes, commits are the host's, as they are without lagloss.
    """

    def __init__(
        self, node: AIOKafkaNode, topics: Collection[str], config: Mapping[str, Any], *, explicit_done: bool
    ) -> None:
        super().__init__(**(config if node.observes else {**config, "enable_auto_commit": False}))
        self._node = node
        self._explicit_done = explicit_done
        self._commits = not node.observes and config.get("group_id") is not None
        self._offsets = SafeOffsets(node.emitter)
        self._commit_lock = asyncio.Lock()
        connection = {name: value for name, value in config.items() if name.startswith(_CONNECTION)}
        self._lanes = AIOKafkaLanes(f"{node.emitter.node}.in", connection, observe=node.observes)
        node.emitter.follow(self._lanes)
        self._next_offsets: dict[Key, int] = {}
        """The next offset of each partition from which something was read, or which has no more to read."""
        self._polled: tuple[InFlightMessage, ...] = ()
        self._reading_task: asyncio.Task[Any] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ask_at = 0.0
        self._is_ending = False
        if topics:
            self.subscribe(list(topics))

    async def start(self) -> None:
        """Start as aiokafka does."""
        await super().start()
        for run, name in ((self._lanes.run, "lanes"), (self._run_commits, "commits")):
            self._tasks.append(asyncio.create_task(run(), name=f"lagloss-{name}"))

    # -- taking in ------------------------------------------------------------------------------------------------

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """Get a message as aiokafka does; this task handles it until the next call."""
        self._end_polled()
        while True:
            record = await super().getone(*partitions)
            if self._take([record]):
                return record

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Get messages as aiokafka does.

        Among several messages, the one being handled is unknown: name it with `handling`, or as `source` of a record
        that is sent.
        """
        self._end_polled()
        batches = await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        taken = self._take([record for records in batches.values() for record in records])
        kept = {id(record) for record in taken}
        return {
            partition: rest
            for partition, records in batches.items()
            if (rest := [record for record in records if id(record) in kept])
        }

    def _take(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Take these records in; return those that the host is to handle. Waits for nothing, so that a record is never
        between the client's position and this node."""
        handled, handlings = [], []
        for record in records:
            key = record.topic, record.partition
            taken = self._offsets.track(key, record.offset) if self._commits else Taken(record.offset)
            handling = self._node.take(record, taken)
            is_appended = record.timestamp_type == LOG_APPEND_TIME
            self._lanes.proofs.take(key, record.offset, record.timestamp if is_appended else None)
            self._next_offsets[key] = record.offset + 1
            if handling is not None:
                handled.append(record)
                handlings.append(handling)
        if not self._explicit_done:
            self._polled = tuple(handlings)
            self._reading_task = asyncio.current_task()
            set_current(*handlings)
        return handled

    @property
    def polled_elsewhere(self) -> tuple[InFlightMessage, ...]:
        """The messages that were read last, if by a task that has ended: `asyncio.wait_for` reads in one, whose current
        message its caller does not see."""
        is_elsewhere = self._reading_task is not None and self._reading_task.done()
        return self._polled if is_elsewhere else ()

    # -- the end of a message's handling --------------------------------------------------------------------------

    def done(self, record: ConsumerRecord) -> None:
        """End the handling of this message. It is finished once its outputs are acknowledged."""
        handling = self._node.in_flight(record)
        if handling is not None:
            handling.end_handling()

    @contextlib.contextmanager
    def handling(self, record: ConsumerRecord) -> Iterator[None]:
        """Handle this message in this task: records sent within the block are its outputs.

        Its handling is over at the end of the block, unless the block raises: then it is not finished, and not
        committed.
        """
        with self._node.handling(record, ends=self._explicit_done):
            yield

    def _end_polled(self) -> None:
        polled, self._polled = self._polled, ()
        for handling in polled:
            handling.end_handling()

    def _end_polled_unless_raising(self) -> None:
        """End the handling of polled messages, unless an exception is being handled: then the last message may be half
        done.
        """
        if sys.exc_info()[0] is None:
            self._end_polled()

    # -- commits --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None = None) -> None:
        """End the handling of polled messages and commit finished ones, never more, whatever `offsets` say; wait for
        their beacons, 5 s at most. If the node observes, commit as aiokafka does.
        """
        if self._node.observes:
            await super().commit(offsets)
            return
        self._end_polled()
        await self._settle(time.monotonic() + FINISH_S)

    async def settle(self) -> None:
        """Commit finished messages, waiting for their beacons for 5 s at most."""
        if not self._is_ending:
            self._end_polled_unless_raising()
            await self._settle(time.monotonic() + FINISH_S)

    async def _run_commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            try:
                await self._commit_confirmed()
            except Exception:  # the next turn tries again
                log.warning("lagloss: cannot commit offsets", exc_info=True)

    async def _commit_confirmed(self) -> None:
        await self._end_handovers()
        self._reach_positions()
        if self._commits:
            self._offsets.mark()
            await self._commit(self._offsets.confirmed(), time.monotonic() + FINISH_S)

    async def _end_handovers(self) -> None:
        """End what the group has committed by now of the messages that were given up in flight."""
        partitions = self._node.handed_over(self)
        if not partitions or time.monotonic() < self._ask_at:
            return
        self._ask_at = time.monotonic() + ASK_EVERY_S
        committed = {key: await self._committed(TopicPartition(*key)) or 0 for key in partitions}
        self._node.end_handovers(self, committed)

    async def _settle(self, deadline: float) -> None:
        if not self._commits:
            return
        if self._offsets.mark(at_once=True):
            self._node.emitter.request_flush()
            while not self._offsets.are_confirmed and time.monotonic() < deadline:
                await asyncio.sleep(ACKNOWLEDGED_EVERY_S)
        await self._commit(self._offsets.confirmed(again=False), deadline)

    async def _commit(self, safe: Mapping[Partition, int], deadline: float) -> None:
        """Commit what is still this consumer's. A commit that fails is repeated; until then a crash only makes
        duplicates."""
        async with self._commit_lock:
            held = self.assignment()
            offsets = {place: offset for key, offset in safe.items() if (place := TopicPartition(*key)) in held}
            if not offsets:
                return
            try:
                await asyncio.wait_for(super().commit(offsets), max(0.1, deadline - time.monotonic()))
            except (KafkaError, TimeoutError) as error:
                log.warning("lagloss: cannot commit offsets: %s", str(error) or "the brokers did not respond in time")

    def _reach_positions(self) -> None:
        """Pass offsets that no record has, such as the markers of transactions: the client's position is behind them,
        and all records before it were taken in."""
        for place in self.assignment():
            state = self._subscription.subscription.assignment.state_value(place)
            if state is None or not state.has_valid_position:
                continue
            key, position = (place.topic, place.partition), state.position
            if position > self._next_offsets.get(key, 0):
                self._lanes.proofs.reach(key, position)
                if self._commits and key in self._next_offsets:
                    self._offsets.reach(key, position)
                self._next_offsets[key] = position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Seek as aiokafka does. What is read again is taken in again: nothing past this offset is committed before,
        and a message that was not finished stays in flight until then.
        """
        super().seek(partition, offset)
        self._note_seek(partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> Any:
        """Seek as aiokafka does; see `seek`."""
        for place in partitions or self.assignment():
            self._note_seek(place, 0)
        return await super().seek_to_beginning(*partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> Any:
        """Seek as aiokafka does; see `seek`."""
        for place in partitions or self.assignment():
            self._lanes.proofs.seek((place.topic, place.partition), sys.maxsize)
        return await super().seek_to_end(*partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Seek as aiokafka does; see `seek`."""
        committed: dict[TopicPartition, int | None] = await super().seek_to_committed(*partitions)
        for place, offset in committed.items():
            if offset:
                self._note_seek(place, offset)
        return committed

    def _note_seek(self, place: TopicPartition, offset: int) -> None:
        key = place.topic, place.partition
        self._offsets.go_back(key, offset)
        self._lanes.proofs.seek(key, offset)
        self._next_offsets[key] = offset

    # -- partitions -----------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe as aiokafka does; lanes and commits follow every rebalance.

        At a revocation the host's listener is called first, then finished messages are committed.
        """
        super().subscribe(list(topics), pattern, _Listener(self._assigned, self._revoked, listener))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign as aiokafka does; lanes and commits follow."""
        before, assigned = self.assignment(), list(partitions)
        super().assign(assigned)
        self._release(before - set(assigned))
        self._lanes.hold({(place.topic, place.partition): None for place in assigned})

    def unsubscribe(self) -> None:
        """Unsubscribe as aiokafka does."""
        before = self.assignment()
        super().unsubscribe()
        self._release(before)

    async def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._lanes.hold({(place.topic, place.partition): await self._committed(place) for place in partitions})

    async def _committed(self, place: TopicPartition) -> int | None:
        """Return the committed offset, -1 if there is none, None if it could not be read."""
        try:
            offset: int | None = await asyncio.wait_for(self.committed(place), QUERY_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            self._lanes.last_error = str(error)  # the lane stands until something is taken in
            return None
        return -1 if offset is None else offset

    async def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        try:
            await self._finish()
        finally:
            self._release(partitions)

    async def _finish(self) -> None:
        """Wait for records in flight and commit finished messages, for some seconds at most."""
        if not self._node.observes:
            deadline = time.monotonic() + FINISH_S
            await self._node.flush_producers(FINISH_S / 2)
            await self._settle(deadline)

    def _release(self, partitions: Collection[TopicPartition]) -> None:
        keys = [(place.topic, place.partition) for place in partitions]
        self._offsets.drop(partitions)
        self._node.release_partitions(keys, self)
        self._lanes.release(keys)
        for key in keys:
            self._next_offsets.pop(key, None)

    # -- closing ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Commit finished messages, then stop; waits for records in flight for some seconds at most. Idempotent.

        The emitter stays open until the node is closed, or until exit.
        """
        if self._is_ending:
            return
        self._end_polled_unless_raising()
        if self._tasks:
            await self._finish()
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assignment = self.assignment()
        await self._lanes.close()
        await super().stop()
        if not self._explicit_done:
            set_current()  # records sent after this are outputs of no message of ours
        self._node.release_partitions(((place.topic, place.partition) for place in assignment), self)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Passes changes of the assignment on: to the node's consumer, and to the host's own listener."""

    def __init__(
        self,
        assigned: Callable[[Collection[TopicPartition]], Any],
        revoked: Callable[[Collection[TopicPartition]], Any],
        host: ConsumerRebalanceListener | None,
    ) -> None:
        self._assigned = assigned
        self._revoked = revoked
        self._host = host

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._assigned(assigned)
        if self._host is not None:
            await _awaited(self._host.on_partitions_assigned(assigned))

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        try:
            if self._host is not None:
                await _awaited(self._host.on_partitions_revoked(revoked))
        finally:
            await self._revoked(revoked)


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result

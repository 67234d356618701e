"""The exactly-once loop of a relay: what a batch of records becomes is seen by the next hop together with the commit of
their offsets, or not at all.

A batch is read, decided on and sent on in one transaction. Its beacons are safe *before* it is committed: a process
that is killed in between makes doubled beacons, for the next one does the batch again, and never a hole in the account.
Until that one has taken over, the records of the open transaction hold its readers' lanes back, so what was beaconed
and cannot be read is late there and not lost. Dead letters are safe before, too, and outside of it: a batch that is
done again sends them twice.

Nothing is read while a batch is in hand, so a rebalance never comes in the middle of one. A process that loses its
partitions without noticing cannot commit: see `pipeline_under_test.transactional_producer`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from lagloss.commits import OffsetTracker, Partition, Taken, place_of
from lagloss.emitter import Processing
from pipeline_under_test.event import Event
from pipeline_under_test.nodes.decision import Decision
from pipeline_under_test.nodes.mischief import suffer
from pipeline_under_test.nodes.slot import Slot
from pipeline_under_test.nodes.worker import BUSY_WAIT_S, FINISH_TIMEOUT_S, IDLE_WAIT_S, MAX_BATCH, Job, Outlet, Worker
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import group_of
from pipeline_under_test.transactional_producer import Aborted, TransactionalProducer

log = logging.getLogger(__name__)

COMMITTED_TIMEOUT_S: Final = 10.0


class TransactionalLoop(Worker):
    """A worker that works in transactions; its outlet sends with the worker's producer and nothing else."""

    def __init__(
        self, node: str, settings: Settings, decide: Callable[[Event], Decision], *, source: str | None = None
    ) -> None:
        super().__init__(node, settings, decide, source=source)
        self._slot = Slot(settings.data_dir / "slots", node)
        transactional_id = f"{group_of(settings.pipeline, node)}.{self._slot.number}"
        self.producer: TransactionalProducer = TransactionalProducer(settings.bootstrap, node, transactional_id)
        self._tracker = OffsetTracker()
        self._read: list[Message] = []
        self._batch: list[Taken] = []
        self._undone: list[Processing] = []
        self._is_assigned = False
        self._has_taken_over = False
        self._end_by = math.inf

    def run(self, outlet: Outlet) -> None:
        self._lanes.subscribe([self._topic], self._on_assign, self._on_revoke)
        while not self._stopping:
            self._read_batch()
            if self._is_assigned and not self._has_taken_over:
                # Not before: until our partitions are ours, what our predecessor left open had better stay late.
                self.producer.take_over()
                self._has_taken_over = True
            try:
                self._do_batch(outlet)
                self._step()
            except Aborted as problem:
                log.warning("transaction aborted, its batch is read again: %s", problem)
                self._go_back()
        outlet.close()
        self._dead_letters.close()
        self._close()
        self._slot.close()

    def _read_batch(self) -> None:
        """One at a time: a rebalance, which comes within a poll, takes back what was read of partitions that go."""
        self._read = []
        record = self._consumer.poll(IDLE_WAIT_S)
        while record is not None:
            self._read.append(record)
            record = self._consumer.poll(0) if len(self._read) < MAX_BATCH else None

    def _do_batch(self, outlet: Outlet) -> None:
        self._batch = []
        jobs = self._taken_in(self._read)
        if not self._batch:
            return
        self._undone += [job.work for job in jobs]
        self._suffer(jobs)
        self.producer.begin()
        for job in jobs:
            self._carry_out(job, outlet)
        while not all(taken.is_done for taken in self._batch):
            self.producer.poll(BUSY_WAIT_S)
            self._step()
        self._await_beacons()
        moved = self._tracker.advance()
        self.producer.commit(
            [TopicPartition(*partition, offset) for partition, offset in moved.items()], self._consumer
        )
        self._end_work()

    def _suffer(self, jobs: Sequence[Job]) -> None:
        """Lets faults take their time, before the transaction begins to run out of its own. A delayed event delays its
        batch, which goes as a whole."""
        for job in jobs:
            suffer(job.plan)
        until = time.monotonic() + max((job.plan.delay_s for job in jobs), default=0.0)
        while time.monotonic() < until:
            self._step()
            time.sleep(BUSY_WAIT_S)

    def _await_beacons(self) -> None:
        mark = self.emitter.mark()
        self.emitter.nudge()
        while not self.emitter.acknowledged(mark):
            self.producer.poll(BUSY_WAIT_S)
            self._step()

    def _step(self) -> None:
        now = time.monotonic()
        self._end_by = min(self._end_by, now + FINISH_TIMEOUT_S) if self._stopping else math.inf
        if now > self._end_by:
            raise Aborted("told to end, and what it waits for does not come")
        self._refresh()
        self._dead_letters.step()
        self._beat.step()

    def _go_back(self) -> None:
        """To what is committed, with all partitions."""
        self.producer.abort()
        held = self._consumer.assignment()
        self._tracker.drop(_key(place) for place in held)
        for place in self._consumer.committed(held, COMMITTED_TIMEOUT_S) if held else []:
            offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            self._consumer.seek(TopicPartition(place.topic, place.partition, offset))

    # -- what became of a record ----------------------------------------------------------------------------------

    def _taken(self, record: Message) -> Taken:
        taken = self._tracker.taken(*place_of(record))
        self._batch.append(taken)
        return taken

    def _at_end(self, end: Message) -> None:
        """Nothing: what this loop reads is not written in transactions, and the lanes know."""

    def _all_done(self, job: Job) -> None:
        """Its work goes on until the commit: if that fails, it is late and not lost until it is taken in again."""
        job.taken.done()

    def _end_work(self) -> None:
        for work in self._undone:
            work.done()
        self._undone.clear()

    def _on_assign(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._is_assigned = True

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {_key(place) for place in partitions}
        self._tracker.drop(gone)
        self._read = [record for record in self._read if (record.topic(), record.partition()) not in gone]
        self._end_work()


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

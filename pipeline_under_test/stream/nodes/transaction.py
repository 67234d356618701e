"""The exactly-once loop of a relay: what a batch of records becomes is seen by the next hop together with the commit of
their offsets, or not at all.

A batch is read, decided on and sent on in one transaction. What was taken in, filtered or set aside is safe with
lagloss's broker *before* it is committed, and doubled if the process is killed in between, for the next one does the
batch again. What went out is reported *after*: until the commit it cannot be read, and an out-beacon of what is aborted
would show a loss that is none. Killed between the two, it has no out-beacon: it is late here, and not lost, until
the next hop takes it in. Dead letters are outside of the transaction: a batch that is done again sends them twice.

Nothing is read while a batch is in flight, so a rebalance never comes in the middle of one. A process that loses its
partitions without noticing cannot commit: see kafka/transactional_producer.py.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from lagloss.kafka.commits import OffsetTracker, Partition, Taken, place_of
from lagloss.kafka.handovers import ASK_EVERY_S
from lagloss.kafka.lanes import KafkaLanes
from lagloss.sdk.emitter import Processing
from pipeline_under_test.stream.event_faults import apply_delay, corrupted
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.kafka.clients import consumer_for
from pipeline_under_test.stream.kafka.transactional_producer import Aborted, Slot, TransactionalProducer
from pipeline_under_test.stream.nodes.decision import Decision
from pipeline_under_test.stream.nodes.loop import emitter_of
from pipeline_under_test.stream.nodes.worker import (
    BUSY_WAIT_S,
    CLOSE_TIMEOUT_S,
    FINISH_TIMEOUT_S,
    IDLE_WAIT_S,
    MAX_BATCH,
    EventOutlet,
    Job,
    OutboundEvent,
    Worker,
)
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import group_of

log = logging.getLogger(__name__)

COMMITTED_TIMEOUT_S: Final = 10.0


class TransactionalLoop(Worker):
    """A worker that works in transactions; its outlet sends with the worker's producer and nothing else.

    It has an emitter and lanes of its own: `KafkaNode` takes no transactional producer, since it reports what is out
    once it is acknowledged. What is committed is not read again, whether its out-beacons were safe or not.
    """

    def __init__(
        self, node: str, settings: ReferenceSettings, decide: Callable[[Event], Decision], *, source: str | None = None
    ) -> None:
        super().__init__(node, settings, decide, emitter_of(settings, node), source=source)
        group = group_of(settings.pipeline, node)
        self._consumer = consumer_for(settings.bootstrap, group, node)
        self._lanes = KafkaLanes(self._consumer, f"{node}.in", settings.bootstrap)
        self.emitter.follow(self._lanes)
        self._slot = Slot(settings.data_dir / "slots", node)
        self.producer = TransactionalProducer(settings.bootstrap, node, f"{group}.{self._slot.number}")
        self._tracker = OffsetTracker()
        self._read: list[Message] = []
        self._batch: dict[tuple[Partition, int], Taken] = {}
        self._sent: list[OutboundEvent] = []
        self._undone: dict[tuple[Partition, int], Processing] = {}
        self._handed_over: dict[tuple[Partition, int], Processing] = {}
        """Work that another process is to do again; it ends here once that has committed it: see
        `KafkaNode.release_partitions`."""
        self._ask_at = 0.0
        self._is_assigned = False
        self._has_taken_over = False
        self._end_by = math.inf

    # -- the fate of an event: for outlets ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Always: a transaction holds one batch."""
        return True

    def send(self, topic: str, event: Event, outbound: OutboundEvent) -> None:
        as_sent = corrupted(event) if outbound.is_corrupted else event
        self.producer.send(topic, as_sent, partial(self.passed_on, outbound), partial(self.rejected, outbound))

    def passed_on(self, outbound: OutboundEvent) -> None:
        """Note that the next topic has the event, which cannot be read yet: it is out once it is committed."""
        self._sent.append(outbound)
        self._one_done(outbound.job)

    def _report_sent(self, outbound: OutboundEvent) -> None:
        report = partial(self.emitter.sent, to=self._named(outbound.to), payload_crc=outbound.event.crc)
        outbound.event.identity.report(report)

    def _report_filtered(self, job: Job, reason: str) -> None:
        job.event.identity.report(self.emitter.filtered, reason=reason)

    def _report_dead(self, event: Event, reason: str, record: Message | None) -> None:
        event.identity.report(self.emitter.dead_lettered, reason=reason)

    # -- the loop -------------------------------------------------------------------------------------------------

    def _work(self, outlet: EventOutlet) -> None:
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
                log.warning("transaction aborted; reading its batch again: %s", problem)
                self._go_back()

    def _close(self) -> None:
        """Close the clients; each batch has committed what it finished."""
        self.emitter.close(CLOSE_TIMEOUT_S, finished=not self._undone and not self._handed_over)
        self._lanes.close()
        self._consumer.close()
        self._slot.close()

    def _read_batch(self) -> None:
        """Read a batch, one record at a time: a rebalance, which comes within a poll, takes back what was read of
        revoked partitions."""
        self._read = []
        record = self._consumer.poll(IDLE_WAIT_S)
        while record is not None:
            self._read.append(record)
            record = self._consumer.poll(0) if len(self._read) < MAX_BATCH else None

    def _do_batch(self, outlet: EventOutlet) -> None:
        self._batch, self._sent = {}, []
        jobs = self._taken_in(self._read)
        if not self._batch:
            return
        self._apply_delays(jobs)
        self.producer.begin()
        for job in jobs:
            self._carry_out(job, outlet)
        while not all(taken.is_done for taken in self._batch.values()):
            self.producer.poll(BUSY_WAIT_S)
            self._step()
        self._await_beacons()
        moved = self._tracker.advance()
        self.producer.commit(
            [TopicPartition(*partition, offset) for partition, offset in moved.items()], self._consumer
        )
        for outbound in self._sent:
            self._report_sent(outbound)
        _end_work(self._undone, moved)

    def _apply_delays(self, jobs: Sequence[Job]) -> None:
        """Wait out the delays of faults before the transaction's time begins to run. A delayed event delays its
        batch, which goes as a whole."""
        for job in jobs:
            apply_delay(job.plan)
        until = time.monotonic() + max((job.plan.delay_s for job in jobs), default=0.0)
        while time.monotonic() < until:
            self._step()
            time.sleep(BUSY_WAIT_S)

    def _await_beacons(self) -> None:
        """Return the offsets of this batch so far, and of what went out before."""
        mark = self.emitter.mark()
        self.emitter.request_flush()
        while not self.emitter.acknowledged(mark):
            self.producer.poll(BUSY_WAIT_S)
            self._step()

    def _step(self) -> None:
        now = time.monotonic()
        self._end_by = min(self._end_by, now + FINISH_TIMEOUT_S) if self._stopping else math.inf
        if now > self._end_by:
            raise Aborted("stopping, and the awaited result did not arrive in time")
        self._refresh()
        if self._handed_over and now >= self._ask_at:
            self._ask_at = now + ASK_EVERY_S
            self._end_handovers()
        self._dead_letters.step()
        self._beat.step()

    def _end_handovers(self) -> None:
        """End the work of others that they have committed by now."""
        gone = [TopicPartition(*partition) for partition in {partition for partition, _ in self._handed_over}]
        with contextlib.suppress(KafkaException):  # the next turn asks again
            committed = self._consumer.committed(gone, COMMITTED_TIMEOUT_S)
            before = {_key(place): place.offset for place in committed if place.error is None}
            _end_work(self._handed_over, before)

    def _go_back(self) -> None:
        """To what is committed, with all partitions."""
        self.producer.abort()
        assignment = self._consumer.assignment()
        self._tracker.drop(_key(place) for place in assignment)
        for place in self._consumer.committed(assignment, COMMITTED_TIMEOUT_S) if assignment else []:
            offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            self._consumer.seek(TopicPartition(place.topic, place.partition, offset))

    # -- what became of a record ----------------------------------------------------------------------------------

    def _opened(self, record: Message) -> Job | None:
        if record.error() is None:
            self._batch[place_of(record)] = self._tracker.taken(*place_of(record))
        job = super()._opened(record)
        if job is not None:
            if job.place not in self._undone:
                self._undone[job.place] = self.emitter.processing()
            job.event.identity.report(self.emitter.received, payload_crc=job.event.crc)
        self._lanes.taken(record)
        return job

    def _all_done(self, job: Job) -> None:
        """Count the work as in flight until it is committed: if that fails, it is late and not lost until it is done
        again, even in another batch."""
        self._batch[job.place].done()

    def _finish_nameless(self, record: Message) -> None:
        self._batch[place_of(record)].done()

    def _on_assign(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._is_assigned = True

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {_key(place) for place in partitions}
        self._tracker.drop(gone)
        self._read = [record for record in self._read if (record.topic(), record.partition()) not in gone]
        self._handed_over |= {key: self._undone.pop(key) for key in list(self._undone) if key[0] in gone}


def _end_work(work: dict[tuple[Partition, int], Processing], before: Mapping[Partition, int]) -> None:
    """End the work of records before these offsets in these partitions."""
    for partition, offset in list(work):
        if offset < before.get(partition, 0):
            work.pop((partition, offset)).done()


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

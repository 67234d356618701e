"""The loop of a consuming node: read, decide, send on, and commit only what is certain to be safe downstream.

An offset is committed when the next hop has acknowledged all that became of its record *and* lagloss's broker has
acknowledged the beacons that say so. A process that is killed therefore does its last second or so again: that makes
duplicates, never holes, neither in the stream nor in the account of it.

`lagloss.kafka.KafkaNode` does the same for services that are not to be broken on purpose; here the steps lie open, so
that faults can come between them.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from confluent_kafka import Consumer, Message, TopicPartition

from lagloss.kafka.commits import Commits, Partition, Taken
from pipeline_under_test.harness.ledger import LedgerEntry
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.kafka.producer import ReliableProducer
from pipeline_under_test.stream.nodes.decision import Decision
from pipeline_under_test.stream.nodes.fault_effects import apply_delay
from pipeline_under_test.stream.nodes.refusals import Refusals
from pipeline_under_test.stream.nodes.worker import (
    BUSY_WAIT_S,
    FINISH_TIMEOUT_S,
    IDLE_WAIT_S,
    MAX_BATCH,
    EventOutlet,
    Job,
    OutboundEvent,
    Worker,
)
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import GLOBAL_RETRIER, place_of_node, topic_of

log = logging.getLogger(__name__)

MAX_IN_HAND: Final = 10_000
"""Records in hand from which on nothing more is read, whatever they wait for."""


class Loop(Worker):
    """A worker that commits an offset once all that became of its record is acknowledged, at least once that is."""

    def __init__(
        self,
        node: str,
        settings: ReferenceSettings,
        decide: Callable[[Event], Decision],
        *,
        source: str | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(node, settings, decide, source=source, refresh=refresh)
        self.producer: ReliableProducer = ReliableProducer(settings.bootstrap, node)
        self._retry_topic = topic_of(settings.pipeline, GLOBAL_RETRIER)
        self._commits = Commits(self._consumer, self.emitter)
        self._held: list[tuple[float, int, Job]] = []
        self._held_number = itertools.count()
        self._in_hand: dict[Partition, set[Job]] = defaultdict(set)
        self._refusals = Refusals()
        self._paused = False

    def _work(self, outlet: EventOutlet) -> None:
        self._lanes.subscribe([self._topic], on_revoke=self._on_revoke, on_lost=self._on_lost)
        while not self._stopping:
            self._take_in(self._read(outlet), outlet)
            self._move_on(outlet)
        self._finish(outlet)

    # -- the fate of an event: for outlets ------------------------------------------------------------------------

    def kept(self, outbound: OutboundEvent) -> None:
        """Keep the event: it is safe, and this node is not finished with it."""
        self._one_done(outbound.job)

    def retry_later(self, outbound: OutboundEvent, reason: str) -> None:
        """Hand the event to the global retrier: the next hop does not take it now, and others continue."""
        event = outbound.event

        def acknowledged() -> None:
            self.emitter.sent(event.id, event.event_time_ms, to=GLOBAL_RETRIER, replay=event.replay)
            self._one_done(outbound.job)

        self._ledger.write([LedgerEntry("retried", event.id, event.event_time_ms, place_of_node(self._node), reason)])
        aside = event.set_aside(self._node, reason)
        self.producer.send(self._retry_topic, aside, acknowledged, partial(self.rejected, outbound))

    def refused(self, outbound: OutboundEvent) -> None:
        """NACK: it is to be read again, and with it all that stands behind it in its partition."""
        outbound.job.is_refused = True
        self._one_done(outbound.job)

    # -- the loop -------------------------------------------------------------------------------------------------

    def _read(self, outlet: EventOutlet) -> Sequence[Message]:
        in_hand = sum(map(len, self._in_hand.values()))
        if (outlet.ready and in_hand < MAX_IN_HAND) == self._paused:
            self._pause(not self._paused)
        if not self._paused:
            self._read_again()
        # `consume` with a timeout waits until the batch is full; a record that is there need not wait for others.
        first = self._consumer.poll(BUSY_WAIT_S if in_hand > len(self._held) else IDLE_WAIT_S)
        if first is None:
            return []
        records = [first, *self._consumer.consume(MAX_BATCH - 1, timeout=0)]
        if self._paused:
            self._pause(True)  # a partition that was assigned meanwhile: it is not paused yet
        return records

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        switch = self._consumer.pause if paused else self._consumer.resume
        switch([place for place in self._consumer.assignment() if _key(place) not in self._refusals])

    def _read_again(self) -> None:
        """Seek back to refused records in partitions that have rested."""
        for partition, offset in self._refusals.rested(self._in_hand):
            place = TopicPartition(*partition, offset)
            self._commits.drop([place])
            self._consumer.seek(place)
            self._consumer.resume([place])

    def _take_in(self, records: Sequence[Message], outlet: EventOutlet) -> None:
        for job in self._taken_in(records):
            self._beat.step()  # a slow batch is no hung process
            apply_delay(job.plan)
            if job.plan.delay_s:
                heapq.heappush(self._held, (time.monotonic() + job.plan.delay_s, next(self._held_number), job))
            else:
                self._carry_out(job, outlet)

    def _opened(self, record: Message) -> Job | None:
        if (record.topic(), record.partition()) in self._refusals:
            return None  # read before the partition was paused: it is read again, and so is the partition's end
        job = super()._opened(record)
        if job is not None:
            self._refusals.taken_again(job.partition, job.taken.offset)
            self._in_hand[job.partition].add(job)
        return job

    def _taken(self, record: Message) -> Taken | None:
        return self._commits.taken(record)

    def _at_end(self, end: Message) -> None:
        self._commits.at_end(end)

    def _all_done(self, job: Job) -> None:
        is_ours = job in self._in_hand[job.partition]
        self._in_hand[job.partition].discard(job)
        if job.is_refused and is_ours:
            self._consumer.pause([TopicPartition(*job.partition)])
            self._refusals.add(job.partition, job.taken.offset, job.work)
            return
        job.work.done()
        if not job.is_refused:
            job.taken.done()

    def _move_on(self, outlet: EventOutlet) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            self._carry_out(heapq.heappop(self._held)[2], outlet)
        self._refresh()
        self._refusals.step()
        outlet.step()
        self._dead_letters.step()
        self.producer.poll()
        self._commits.commit_confirmed()
        self._beat.step()

    def _finish(self, outlet: EventOutlet) -> None:
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while any(self._in_hand.values()) and time.monotonic() < deadline:
            self._move_on(outlet)
            self.producer.poll(BUSY_WAIT_S)
        if left := sum(map(len, self._in_hand.values())):
            log.warning("ended with %d records in hand; the next process does them again", left)

    def _settle(self) -> None:
        self._commits.settle()

    @property
    def _is_finished(self) -> bool:
        return not any(self._in_hand.values()) and not self._refusals.has_work

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.settle()
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.drop(partitions)
        gone = [_key(place) for place in partitions]
        self._refusals.drop(gone)
        for partition in gone:
            self._in_hand.pop(partition, None)  # what is in hand is finished, and is the next owner's all the same
        consumer.resume(partitions)  # librdkafka would have them paused still when they are assigned again


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

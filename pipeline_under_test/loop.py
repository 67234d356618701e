"""The loop of a consuming node: read, decide, send on, and commit only what is certain to be safe downstream.

An offset is committed when the next hop has acknowledged all that became of its record *and* lagloss's broker has
acknowledged the beacons that say so. A process that is killed therefore does its last second or so again: that makes
duplicates, never holes, neither in the stream nor in the account of it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from lagloss.commits import Commits, Taken
from lagloss.emitter import Emitter, Processing
from lagloss.lanes import KafkaLanes
from pipeline_under_test.decision import Dead, Decision, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.event import Event, NoIdentity
from pipeline_under_test.faults import Plan
from pipeline_under_test.kafka import ReliableProducer, consumer_for
from pipeline_under_test.ledger import Entry
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import NEXT, dead_topic, place_of_node, topic_of

log = logging.getLogger(__name__)

MAX_BATCH: Final = 500
IDLE_WAIT_S: Final = 0.1
BUSY_WAIT_S: Final = 0.005
"""How long to wait for a record; short while something is in hand, whose acknowledgements are handled in between."""
CLOSE_TIMEOUT_S: Final = 5.0
FINISH_TIMEOUT_S: Final = 15.0
"""How long a node that is told to stop goes on finishing what it has in hand."""


@dataclass(eq=False, slots=True)
class Job:
    """A record in hand, from its take-in until the last thing that became of it is acknowledged."""

    taken: Taken
    event: Event
    plan: Plan
    decision: Decision | Lost
    work: Processing
    outstanding: int = 0


@dataclass(frozen=True, slots=True)
class Parcel:
    """One copy of an event on its way to one next node (None: out of the pipeline)."""

    job: Job
    event: Event
    to: str | None


class Outlet(Protocol):
    """Where a node's events go out. What became of a parcel it tells by `Loop.sent_out` or `Loop.rejected`."""

    @property
    def ready(self) -> bool:
        """Whether it takes more; while not, the loop reads nothing: a slow next hop raises lag and not memory."""

    def send(self, parcel: Parcel) -> None:
        """Takes a parcel and returns at once."""

    def step(self) -> None:
        """Moves on what it has been given."""


class Loop:
    """One process of a consuming node: `run` until `stop` is called (from a signal handler, say)."""

    def __init__(self, node: str, settings: Settings, decide: Callable[[Event], Decision]) -> None:
        self.producer = ReliableProducer(settings.bootstrap, node)
        self._node = node
        self._decide = decide
        self._faults = settings.faults_of(node)
        self._ledger = settings.ledger_of(node)
        self._topic = topic_of(settings.pipeline, node)
        self._dead_topic = dead_topic(settings.pipeline)
        self._branches = len(NEXT[node]) > 1
        self._consumer = consumer_for(settings.bootstrap, settings.pipeline, node)
        self._emitter = Emitter(settings.pipeline, node, settings.bootstrap)
        self._lanes = KafkaLanes(self._consumer, f"{node}.in", settings.bootstrap)
        self._emitter.follow(self._lanes)
        self._commits = Commits(self._consumer, self._emitter)
        self._held: list[tuple[float, int, Job]] = []
        self._held_number = itertools.count()
        self._in_hand = 0
        self._paused = False
        self._stopping = False

    def stop(self) -> None:
        """Lets the loop finish what it has in hand and end."""
        self._stopping = True

    def run(self, outlet: Outlet) -> None:
        """Reads and passes on until stopped.

        Raises:
            KafkaException: where a client cannot go on; the next process takes up what was not committed.
        """
        self._lanes.subscribe([self._topic], on_revoke=self._on_revoke, on_lost=self._on_lost)
        while not self._stopping:
            self._take_in(self._read(outlet), outlet)
            self._move_on(outlet)
        self._finish(outlet)

    def sent_out(self, parcel: Parcel) -> None:
        """The next hop has acknowledged this copy."""
        self._beacon_out(parcel.event, parcel.to)
        self._one_done(parcel.job)

    def rejected(self, parcel: Parcel, reason: str) -> None:
        """The next hop will never take this copy: it goes to the dead-letter queue."""
        event = parcel.event
        self._ledger.write([Entry("dead", event.id, event.event_time_ms, place_of_node(self._node), reason)])
        self._set_aside(parcel.job, reason)

    def _read(self, outlet: Outlet) -> Sequence[Message]:
        if outlet.ready == self._paused:
            self._paused = not self._paused
            switch = self._consumer.pause if self._paused else self._consumer.resume
            switch(self._consumer.assignment())
        # `consume` with a timeout waits until the batch is full; a record that is there need not wait for others.
        first = self._consumer.poll(BUSY_WAIT_S if self._in_hand > len(self._held) else IDLE_WAIT_S)
        return [first, *self._consumer.consume(MAX_BATCH - 1, timeout=0)] if first is not None else []

    def _take_in(self, records: Sequence[Message], outlet: Outlet) -> None:
        jobs = [job for record in records if (job := self._opened(record)) is not None]
        self._ledger.write(
            entry for job in jobs for entry in ledger_entries(self._node, job.event, job.plan, job.decision)
        )
        for job in jobs:
            if job.plan.delay_s:
                heapq.heappush(self._held, (time.monotonic() + job.plan.delay_s, next(self._held_number), job))
            else:
                self._carry_out(job, outlet)

    def _opened(self, record: Message) -> Job | None:
        error = record.error()
        if error is not None:
            if error.fatal():
                raise KafkaException(error)
            log.warning("reading %s: %s", self._topic, error)
            return None
        taken = self._commits.taken(record)
        try:
            event = Event.from_record(record)
        except NoIdentity as problem:
            log.warning("no usable lagloss headers: %s", problem)
            self._lanes.taken(record)
            nameless = Event("", 0, record.value() or b"")
            self.producer.send(self._dead_topic, nameless, taken.done, "no-identity")
            return None
        work = self._emitter.processing()
        self._emitter.taken_in(event.id, event.event_time_ms)
        self._lanes.taken(record)
        self._in_hand += 1
        plan = self._faults.plan(event.id)
        return Job(taken, event, plan, decided(event, plan, self._decide), work)

    def _carry_out(self, job: Job, outlet: Outlet) -> None:
        job.outstanding = 1  # this call itself, so that the job cannot end in the middle of it
        match job.decision:
            case Filtered(reason):
                self._emitter.filtered(job.event.id, job.event.event_time_ms, reason)
            case Dead(reason):
                job.outstanding += 1
                self._set_aside(job, reason)
            case Pass(event, to):
                for receiver in to or (None,):
                    if receiver in job.plan.lost_links:
                        self._beacon_out(event, receiver)
                        continue
                    for _ in range(job.plan.copies):
                        job.outstanding += 1
                        outlet.send(Parcel(job, event, receiver))
            case Lost():
                pass
        self._one_done(job)

    def _beacon_out(self, event: Event, to: str | None) -> None:
        self._emitter.sent_out(event.id, event.event_time_ms, to=to if self._branches else None)

    def _set_aside(self, job: Job, reason: str) -> None:
        def acknowledged() -> None:
            self._emitter.dead(job.event.id, job.event.event_time_ms, reason)
            self._one_done(job)

        self.producer.send(self._dead_topic, job.event, acknowledged, reason)

    def _one_done(self, job: Job) -> None:
        job.outstanding -= 1
        if job.outstanding == 0:
            job.work.done()
            self._in_hand -= 1
            job.taken.done()

    def _move_on(self, outlet: Outlet) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            self._carry_out(heapq.heappop(self._held)[2], outlet)
        outlet.step()
        self.producer.poll()
        self._commits.commit_confirmed()

    def _finish(self, outlet: Outlet) -> None:
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while self._in_hand and time.monotonic() < deadline:
            self._move_on(outlet)
            self.producer.poll(BUSY_WAIT_S)
        if self._in_hand:
            log.warning("ended with %d records in hand; the next process does them again", self._in_hand)
        self._commits.settle()
        self._emitter.close(CLOSE_TIMEOUT_S)
        self._lanes.close()
        self._consumer.close()
        self._ledger.close()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.settle()
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.drop(partitions)

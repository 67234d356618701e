"""A record in hand: its fate, faults included, reported to the ledger, to lagloss and to the dead-letter queue.

How records are read and when their offsets are committed is another matter: see loop.py for the one way (at
least once), transaction.py for the other (exactly once).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message

from lagloss.kafka.commits import Partition, Taken, place_of
from lagloss.kafka.lanes import KafkaLanes
from lagloss.sdk.emitter import Processing
from pipeline_under_test.harness.beat import Beat
from pipeline_under_test.harness.ledger import LedgerEntry
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.kafka.consumer import consumer_for
from pipeline_under_test.stream.kafka.producer import Acknowledged, Rejected
from pipeline_under_test.stream.nodes.dead_letters import DeadLetters
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.stream.nodes.fault_effects import corrupted
from pipeline_under_test.stream.nodes.observation import emitter_of
from pipeline_under_test.stream.plan import Plan
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import NEXT, dead_topic, filtered_topic, group_of, place_of_node, topic_of

log = logging.getLogger(__name__)

MAX_BATCH: Final = 500
IDLE_WAIT_S: Final = 0.1
BUSY_WAIT_S: Final = 0.005
"""How long to wait for a record; short while something is in hand, whose acknowledgements are handled in between."""
CLOSE_TIMEOUT_S: Final = 5.0
FINISH_TIMEOUT_S: Final = 15.0
"""Time in which a node that is asked to stop finishes what it has in hand."""


@dataclass(eq=False, slots=True)
class Job:
    """A record in hand, from its take-in until the last thing that became of it is acknowledged."""

    partition: Partition
    taken: Taken
    event: Event
    plan: Plan
    decision: Decision | Lost
    work: Processing
    outstanding: int = 0
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class OutboundEvent:
    """One copy of an event on its way to one next node (None: out of the pipeline)."""

    job: Job
    event: Event
    to: str | None

    @property
    def as_sent(self) -> Event:
        """The event as the next hop will find it: changed, where a fault says so."""
        return corrupted(self.event) if self.to in self.job.plan.corrupted_links else self.event


class EventSender(Protocol):
    """A producer of events: see `pipeline_under_test.stream.kafka.producer.ReliableProducer`."""

    @property
    def ready(self) -> bool:
        """Whether it takes more."""

    def send(self, topic: str, event: Event, acknowledged: Acknowledged, rejected: Rejected) -> None:
        """Send an event; one of the two is called once it is known what became of it."""


class EventOutlet(Protocol):
    """Outlet of a node's events. It reports the fate of each by the worker's `sent` or `rejected`, or by the
    loop's `kept`, `retry_later` or `refused`."""

    @property
    def ready(self) -> bool:
        """Whether it takes more; while not, the loop reads nothing: a slow next hop raises lag and not memory."""

    def send(self, outbound: OutboundEvent) -> None:
        """Take an event, and return at once."""

    def step(self) -> None:
        """Move on what it has been given."""

    def close(self) -> None:
        """Close at the end of the worker."""


class Worker(ABC):
    """One process of a consuming node: `run` until `stop` is called (from a signal handler, say).

    Args:
        node: which one.
        settings: the pipeline's.
        decide: what the node makes of an event.
        source: the topic to read, if it is not the node's own.
        refresh: updates the data of `decide`; called often, never waits.
    """

    producer: EventSender
    resumes: ClassVar[bool] = True
    """Whether what a killed process had observed, and lagloss's broker had not acknowledged, is observed again."""

    def __init__(
        self,
        node: str,
        settings: ReferenceSettings,
        decide: Callable[[Event], Decision],
        *,
        source: str | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        pipeline = settings.pipeline
        self.emitter = emitter_of(settings, node, resumes=self.resumes)
        self._node = node
        self._decide = decide
        self._refresh = refresh
        self._faults = settings.faults_of(node)
        self._ledger = settings.ledger_of(node)
        self._topic = source or topic_of(pipeline, node)
        self._filtered_topic = filtered_topic(pipeline) if settings.taps else None
        self._dead_letters = DeadLetters(
            settings.bootstrap, dead_topic(pipeline), settings.data_dir / "dead-letters", node
        )
        self._branches = len(NEXT.get(node, ())) > 1
        self._consumer = consumer_for(settings.bootstrap, group_of(pipeline, node), node)
        self._lanes = KafkaLanes(self._consumer, f"{node}.in", settings.bootstrap)
        self.emitter.follow(self._lanes)
        self._beat = Beat(settings.beats_dir)
        self._stopping = False

    def run(self, outlet: EventOutlet) -> None:
        """Read events and pass them on until stopped.

        Raises:
            KafkaException: if a client cannot continue; the next process takes up what was not committed.
        """
        try:
            self._work(outlet)
        except BaseException:
            # at exit it would be closed as if nothing were in flight
            self.emitter.close(CLOSE_TIMEOUT_S, finished=False)
            raise
        outlet.close()
        self._dead_letters.close()
        self._settle()
        self._close()

    def stop(self) -> None:
        """Ask the worker to finish what it has in hand and to end."""
        self._stopping = True

    # -- the fate of an event: for outlets ------------------------------------------------------------------------

    def sent_out(self, outbound: OutboundEvent) -> None:
        """Note that the next hop has acknowledged the event."""
        self._beacon_out(outbound.event, outbound.to)
        self._one_done(outbound.job)

    def rejected(self, outbound: OutboundEvent, reason: str) -> None:
        """Send the event to the dead-letter queue: the next hop will never take it."""
        self.send_to_dlq(outbound.event, reason, partial(self._one_done, outbound.job))

    def send_to_dlq(self, event: Event, reason: str, done: Callable[[], None]) -> None:
        """Put an event into the dead-letter queue; `done` is called once it is safe there."""
        self._ledger.write([LedgerEntry("dead", event.id, event.event_time_ms, place_of_node(self._node), reason)])
        self._set_aside(event, reason, done)

    # -- the way of working ---------------------------------------------------------------------------------------

    @abstractmethod
    def _work(self, outlet: EventOutlet) -> None:
        """Read events and pass them on until stopped and, if that is possible in time, finished."""

    @abstractmethod
    def _settle(self) -> None:
        """Commit what is finished by now; nothing more will be."""

    @property
    @abstractmethod
    def _is_finished(self) -> bool:
        """Whether nothing that was taken in is left for another process to do again."""

    # -- what became of a record ----------------------------------------------------------------------------------

    @abstractmethod
    def _taken(self, record: Message) -> Taken | None:
        """Note a record as read, its offset waiting; return None if it is to be read another time."""

    @abstractmethod
    def _at_end(self, end: Message) -> None:
        """Note the end of a partition: transactions leave markers in the log, which take up offsets and are never
        read."""

    def _one_done(self, job: Job) -> None:
        """Note that one of the outputs that a job waits for is acknowledged."""
        job.outstanding -= 1
        if not job.outstanding:
            self._all_done(job)

    def _all_done(self, job: Job) -> None:
        job.work.done()
        job.taken.done()

    def _taken_in(self, records: Sequence[Message]) -> list[Job]:
        """Return a job for each of these records, once the ledger has their fates."""
        jobs = [job for record in records if (job := self._opened(record)) is not None]
        self._ledger.write(
            entry for job in jobs for entry in ledger_entries(self._node, job.event, job.plan, job.decision)
        )
        return jobs

    def _opened(self, record: Message) -> Job | None:
        error = record.error()
        if error is not None:
            if error.fatal():
                raise KafkaException(error)
            if error.code() == KafkaError._PARTITION_EOF:
                self._lanes.taken(record)
                self._at_end(record)
            else:
                log.warning("reading %s: %s", self._topic, error)
            return None
        taken = self._taken(record)
        if taken is None:
            return None
        try:
            event = Event.from_record(record)
        except NoIdentity as problem:
            log.warning("no usable lagloss headers: %s", problem)
            self._lanes.taken(record)
            nameless = Event("", 0, record.value() or b"").set_aside(self._node, "no identity")
            self._dead_letters.send(nameless, taken.done)
            return None
        work = self.emitter.processing()
        self.emitter.received(event.id, event.event_time_ms, replay=event.replay, payload_crc=event.crc)
        self._lanes.taken(record)
        plan = self._faults.plan(event)
        partition, _ = place_of(record)
        return Job(partition, taken, event, plan, decided(event, plan, self._decide), work)

    def _carry_out(self, job: Job, outlet: EventOutlet) -> None:
        job.outstanding = 1  # this call itself, so that the job cannot end in the middle of it
        match job.decision:
            case Filtered(reason):
                event = job.event
                self.emitter.filtered(event.id, event.event_time_ms, reason, replay=event.replay)
                if self._filtered_topic is not None:
                    job.outstanding += 1
                    aside = OutboundEvent(job, event.set_aside(self._node, reason), None)
                    done = partial(self._one_done, job)
                    self.producer.send(self._filtered_topic, aside.event, done, partial(self.rejected, aside))
            case Dead(reason):
                job.outstanding += 1
                self._set_aside(job.event, reason, partial(self._one_done, job))
            case Pass(event, to):
                for receiver in to or (None,):
                    if receiver in job.plan.lost_links:
                        self._beacon_out(event, receiver)
                        continue
                    for _ in range(job.plan.copies):
                        job.outstanding += 1
                        outlet.send(OutboundEvent(job, event, receiver))
            case Lost():
                pass
        self._one_done(job)

    def _beacon_out(self, event: Event, to: str | None) -> None:
        named = to if self._branches else None
        self.emitter.sent(event.id, event.event_time_ms, to=named, replay=event.replay, payload_crc=event.crc)

    def _set_aside(self, event: Event, reason: str, done: Callable[[], None]) -> None:
        def safe() -> None:
            self.emitter.dead_lettered(event.id, event.event_time_ms, reason, replay=event.replay)
            done()

        self._dead_letters.send(event.set_aside(event.back_to or self._node, reason, self._node), safe)

    def _close(self) -> None:
        if self._is_finished:
            self.emitter.close(CLOSE_TIMEOUT_S)
        else:  # what is left is late, not lost
            self.emitter.close(CLOSE_TIMEOUT_S, finished=False)
        self._lanes.close()
        self._consumer.close()
        self._ledger.close()
        self._beat.close()

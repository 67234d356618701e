"""A record in flight: its fate, faults included, reported to the ledger, to lagloss and to the dead-letter queue.

How records are read and when their offsets are committed is another matter: see loop.py for the one way (at least
once), transaction.py for the other (exactly once).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message

from lagloss.kafka.commits import Partition, place_of
from lagloss.sdk.emitter import Emitter
from pipeline_under_test.harness.beat import Beat
from pipeline_under_test.harness.ledger import LedgerEntry, place_of_node
from pipeline_under_test.stream.event_faults import Plan
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.nodes.dead_letters import DeadLetters
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import NEXT, dead_topic, filtered_topic, topic_of

log = logging.getLogger(__name__)

MAX_BATCH: Final = 500
IDLE_WAIT_S: Final = 0.1
BUSY_WAIT_S: Final = 0.005
"""How long to wait for a record; short while something is in flight, whose acknowledgements are handled in between."""
CLOSE_TIMEOUT_S: Final = 5.0
FINISH_TIMEOUT_S: Final = 15.0
"""Time in which a node that is asked to stop finishes what it has in flight."""


@dataclass(eq=False, slots=True)
class Job:
    """A record in flight, until the last thing that became of it is acknowledged."""

    record: Message
    event: Event
    plan: Plan
    decision: Decision | Lost
    outstanding: int = 0
    is_refused: bool = False

    @property
    def place(self) -> tuple[Partition, int]:
        """Partition and offset."""
        return place_of(self.record)


@dataclass(frozen=True, slots=True)
class OutboundEvent:
    """One copy of an event on its way to one next node (None: out of the pipeline)."""

    job: Job
    event: Event
    to: str | None

    @property
    def is_corrupted(self) -> bool:
        """Whether a fault changes it on its way."""
        return self.to in self.job.plan.corrupted_links


class EventOutlet(Protocol):
    """Outlet of a node's events. It reports the fate of each by the worker's `passed_on` or `rejected`, or by the
    loop's `delivered`, `retry_later` or `refused`."""

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
        emitter: of this process.
        source: the topic to read, if it is not the node's own.
        refresh: updates the data of `decide`; called often, never waits.
    """

    def __init__(
        self,
        node: str,
        settings: ReferenceSettings,
        decide: Callable[[Event], Decision],
        emitter: Emitter,
        *,
        source: str | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        pipeline = settings.pipeline
        self.emitter = emitter
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
        self._close()
        self._ledger.close()
        self._beat.close()

    def stop(self) -> None:
        """Ask the worker to finish what it has in flight and to end."""
        self._stopping = True

    # -- the fate of an event: for outlets ------------------------------------------------------------------------

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether the producer takes more."""

    @abstractmethod
    def send(self, topic: str, event: Event, outbound: OutboundEvent) -> None:
        """Produce a record for an outbound event, which is passed on once all in-sync replicas have it, or rejected."""

    @abstractmethod
    def passed_on(self, outbound: OutboundEvent) -> None:
        """Note that the record produced for the event is acknowledged."""

    def rejected(self, outbound: OutboundEvent, reason: str) -> None:
        """Send the event to the dead-letter queue: the next hop will never take it."""
        self.send_to_dlq(outbound.event, reason, partial(self._one_done, outbound.job), outbound.job.record)

    def send_to_dlq(self, event: Event, reason: str, done: Callable[[], None], record: Message | None = None) -> None:
        """Put an event into the dead-letter queue; `done` is called once it is safe there. `record`: as it was read."""
        self._ledger.write([LedgerEntry("dead", event.id, event.event_time_ms, place_of_node(self._node), reason)])
        self._set_aside(event, reason, done, record)

    # -- the way of working ---------------------------------------------------------------------------------------

    @abstractmethod
    def _work(self, outlet: EventOutlet) -> None:
        """Read events and pass them on until stopped and, if that is possible in time, finished."""

    @abstractmethod
    def _close(self) -> None:
        """Commit what is finished by now, and close the clients; what is left is late, not lost."""

    @abstractmethod
    def _all_done(self, job: Job) -> None:
        """Note that all outputs of a job are acknowledged."""

    @abstractmethod
    def _finish_nameless(self, record: Message) -> None:
        """Note that a record without an identity is safe in the dead-letter queue."""

    @abstractmethod
    def _report_sent(self, outbound: OutboundEvent) -> None: ...

    @abstractmethod
    def _report_filtered(self, job: Job, reason: str) -> None: ...

    @abstractmethod
    def _report_dead(self, event: Event, reason: str, record: Message | None) -> None: ...

    # -- what became of a record ----------------------------------------------------------------------------------

    def _one_done(self, job: Job) -> None:
        """Note that one of the outputs that a job waits for is acknowledged."""
        job.outstanding -= 1
        if not job.outstanding:
            self._all_done(job)

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
            if error.code() != KafkaError._PARTITION_EOF:
                log.warning("reading %s: %s", self._topic, error)
            return None
        try:
            event = Event.from_record(record)
        except NoIdentity as problem:
            log.warning("record without usable lagloss headers: %s", problem)
            nameless = Event("", 0, record.value() or b"").set_aside(self._node, "no identity")
            self._dead_letters.send(nameless, partial(self._finish_nameless, record))
            return None
        plan = self._faults.plan(event)
        return Job(record, event, plan, decided(event, plan, self._decide))

    def _carry_out(self, job: Job, outlet: EventOutlet) -> None:
        job.outstanding = 1  # this call itself, so that the job cannot end in the middle of it
        match job.decision:
            case Filtered(reason):
                self._report_filtered(job, reason)
                if self._filtered_topic is not None:
                    job.outstanding += 1
                    aside = job.event.set_aside(self._node, reason)
                    self.send(self._filtered_topic, aside, OutboundEvent(job, aside, None))
            case Dead(reason):
                job.outstanding += 1
                self._set_aside(job.event, reason, partial(self._one_done, job), job.record)
            case Pass(event, to):
                for receiver in to or (None,):
                    outbound = OutboundEvent(job, event, receiver)
                    if receiver in job.plan.lost_links:
                        self._report_sent(outbound)
                        continue
                    for _ in range(job.plan.copies):
                        job.outstanding += 1
                        outlet.send(outbound)
            case Lost():
                pass
        self._one_done(job)

    def _named(self, to: str | None) -> str | None:
        """Return the next node as beacons name it: not at all where there is only one."""
        return to if self._branches else None

    def _set_aside(self, event: Event, reason: str, done: Callable[[], None], record: Message | None) -> None:
        def safe() -> None:
            self._report_dead(event, reason, record)
            done()

        self._dead_letters.send(event.set_aside(event.back_to or self._node, reason, self._node), safe)

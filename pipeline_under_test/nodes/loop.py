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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from lagloss.commits import Commits, Partition, Taken, place_of
from lagloss.emitter import Emitter, Processing
from lagloss.lanes import KafkaLanes
from pipeline_under_test.event import Event, NoIdentity
from pipeline_under_test.faults import Plan
from pipeline_under_test.kafka import ReliableProducer, consumer_for
from pipeline_under_test.ledger import Entry
from pipeline_under_test.nodes.beat import Beat
from pipeline_under_test.nodes.dead_letters import DeadLetters
from pipeline_under_test.nodes.decision import Dead, Decision, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.nodes.mischief import corrupted, suffer
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import GLOBAL_RETRIER, NEXT, dead_topic, group_of, place_of_node, topic_of

log = logging.getLogger(__name__)

MAX_BATCH: Final = 500
IDLE_WAIT_S: Final = 0.1
BUSY_WAIT_S: Final = 0.005
"""How long to wait for a record; short while something is in hand, whose acknowledgements are handled in between."""
CLOSE_TIMEOUT_S: Final = 5.0
FINISH_TIMEOUT_S: Final = 15.0
"""How long a node that is told to stop goes on finishing what it has in hand."""
NACK_PAUSE_S: Final = 2.0
"""How long a partition rests before it is read again from where it was refused."""


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
class Parcel:
    """One copy of an event on its way to one next node (None: out of the pipeline)."""

    job: Job
    event: Event
    to: str | None

    @property
    def as_sent(self) -> Event:
        """The event as the next hop will find it: changed, where a fault says so."""
        return corrupted(self.event) if self.to in self.job.plan.corrupted_links else self.event


class Outlet(Protocol):
    """Where a node's events go out. What became of a parcel it tells by one of the loop's `sent_out`, `kept`,
    `retry_later`, `rejected` and `refused`."""

    @property
    def ready(self) -> bool:
        """Whether it takes more; while not, the loop reads nothing: a slow next hop raises lag and not memory."""

    def send(self, parcel: Parcel) -> None:
        """Takes a parcel and returns at once."""

    def step(self) -> None:
        """Moves on what it has been given."""

    def close(self) -> None:
        """The loop has ended."""


class Loop:
    """One process of a consuming node: `run` until `stop` is called (from a signal handler, say).

    Args:
        node: which one.
        settings: the pipeline's.
        decide: what the node makes of an event.
        refresh: brings up to date what `decide` goes by; called often, never waits.
    """

    def __init__(
        self,
        node: str,
        settings: Settings,
        decide: Callable[[Event], Decision],
        *,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        pipeline = settings.pipeline
        self.producer = ReliableProducer(settings.bootstrap, node)
        self.emitter = Emitter(pipeline, node, settings.bootstrap, resumes=True)
        self._node = node
        self._decide = decide
        self._refresh = refresh
        self._faults = settings.faults_of(node)
        self._ledger = settings.ledger_of(node)
        self._topic = topic_of(pipeline, node)
        self._retry_topic = topic_of(pipeline, GLOBAL_RETRIER)
        self._dead_letters = DeadLetters(
            settings.bootstrap, dead_topic(pipeline), settings.data_dir / "dead-letters", node
        )
        self._branches = len(NEXT.get(node, ())) > 1
        self._consumer = consumer_for(settings.bootstrap, group_of(pipeline, node), node)
        self._lanes = KafkaLanes(self._consumer, f"{node}.in", settings.bootstrap)
        self.emitter.follow(self._lanes)
        self._commits = Commits(self._consumer, self.emitter)
        self._beat = Beat(settings.beats_dir)
        self._held: list[tuple[float, int, Job]] = []
        self._held_number = itertools.count()
        self._in_hand = 0
        self._paused = False
        self._resting: dict[Partition, tuple[float, int]] = {}
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

    # -- what became of a parcel: for outlets ---------------------------------------------------------------------

    def sent_out(self, parcel: Parcel) -> None:
        """ACK: the next hop has it."""
        self._beacon_out(parcel.event, parcel.to)
        self._one_done(parcel.job)

    def kept(self, parcel: Parcel) -> None:
        """It is safe, and this node is not finished with it."""
        self._one_done(parcel.job)

    def retry_later(self, parcel: Parcel, reason: str) -> None:
        """The next hop does not take it now: it goes to the global retrier, and others go on."""

        def acknowledged() -> None:
            event = parcel.event
            self.emitter.sent_out(event.id, event.event_time_ms, to=GLOBAL_RETRIER, replay=event.replay)
            self._one_done(parcel.job)

        self.producer.send(self._retry_topic, parcel.event.set_aside(self._node, reason), acknowledged)

    def rejected(self, parcel: Parcel, reason: str) -> None:
        """The next hop will never take it: it goes to the dead-letter queue."""
        event = parcel.event
        self._ledger.write([Entry("dead", event.id, event.event_time_ms, place_of_node(self._node), reason)])
        self._set_aside(parcel.job, parcel.event, reason)

    def refused(self, parcel: Parcel) -> None:
        """NACK: it is to be read again, and with it all of its partition that is not committed."""
        partition, offset = parcel.job.partition, parcel.job.taken.offset
        rests_until, since = self._resting.get(partition, (time.monotonic() + NACK_PAUSE_S, offset))
        self._resting[partition] = (rests_until, min(offset, since))
        self._consumer.pause([TopicPartition(*partition)])
        parcel.job.is_refused = True
        self._one_done(parcel.job)

    # -- the loop -------------------------------------------------------------------------------------------------

    def _read(self, outlet: Outlet) -> Sequence[Message]:
        if outlet.ready == self._paused:
            self._paused = not self._paused
            switch = self._consumer.pause if self._paused else self._consumer.resume
            switch([place for place in self._consumer.assignment() if _key(place) not in self._resting])
        self._read_again()
        # `consume` with a timeout waits until the batch is full; a record that is there need not wait for others.
        first = self._consumer.poll(BUSY_WAIT_S if self._in_hand > len(self._held) else IDLE_WAIT_S)
        return [first, *self._consumer.consume(MAX_BATCH - 1, timeout=0)] if first is not None else []

    def _read_again(self) -> None:
        """Goes back to what was refused, once its partition has rested."""
        now = time.monotonic()
        for partition, (until, offset) in list(self._resting.items()):
            if now >= until:
                del self._resting[partition]
                place = TopicPartition(*partition, offset)
                self._commits.drop([place])
                self._consumer.seek(place)
                if not self._paused:
                    self._consumer.resume([place])

    def _take_in(self, records: Sequence[Message], outlet: Outlet) -> None:
        jobs = [job for record in records if (job := self._opened(record)) is not None]
        self._ledger.write(
            entry for job in jobs for entry in ledger_entries(self._node, job.event, job.plan, job.decision)
        )
        for job in jobs:
            self._beat.step()  # a slow batch is no hung process
            suffer(job.plan)
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
        partition, _ = place_of(record)
        if partition in self._resting:
            return None  # read before the partition was paused; it is read again
        taken = self._commits.taken(record)
        try:
            event = Event.from_record(record)
        except NoIdentity as problem:
            log.warning("no usable lagloss headers: %s", problem)
            self._lanes.taken(record)
            nameless = Event("", 0, record.value() or b"").set_aside(self._node, "no identity")
            self._dead_letters.send(nameless, taken.done)
            return None
        work = self.emitter.processing()
        self.emitter.taken_in(event.id, event.event_time_ms, replay=event.replay, payload_crc=event.crc)
        self._lanes.taken(record)
        self._in_hand += 1
        plan = self._faults.plan(event)
        return Job(partition, taken, event, plan, decided(event, plan, self._decide), work)

    def _carry_out(self, job: Job, outlet: Outlet) -> None:
        job.outstanding = 1  # this call itself, so that the job cannot end in the middle of it
        match job.decision:
            case Filtered(reason):
                event = job.event
                self.emitter.filtered(event.id, event.event_time_ms, reason, replay=event.replay)
            case Dead(reason):
                job.outstanding += 1
                self._set_aside(job, job.event, reason)
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
        named = to if self._branches else None
        self.emitter.sent_out(event.id, event.event_time_ms, to=named, replay=event.replay, payload_crc=event.crc)

    def _set_aside(self, job: Job, event: Event, reason: str) -> None:
        def safe() -> None:
            self.emitter.dead(event.id, event.event_time_ms, reason, replay=event.replay)
            self._one_done(job)

        self._dead_letters.send(event.set_aside(event.back_to or self._node, reason), safe)

    def _one_done(self, job: Job) -> None:
        job.outstanding -= 1
        if job.outstanding == 0:
            job.work.done()
            self._in_hand -= 1
            if not job.is_refused:
                job.taken.done()

    def _move_on(self, outlet: Outlet) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            self._carry_out(heapq.heappop(self._held)[2], outlet)
        self._refresh()
        outlet.step()
        self._dead_letters.step()
        self.producer.poll()
        self._commits.commit_confirmed()
        self._beat.step()

    def _finish(self, outlet: Outlet) -> None:
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while self._in_hand and time.monotonic() < deadline:
            self._move_on(outlet)
            self.producer.poll(BUSY_WAIT_S)
        if self._in_hand:
            log.warning("ended with %d records in hand; the next process does them again", self._in_hand)
        outlet.close()
        self._dead_letters.close()
        self._commits.settle()
        self.emitter.close(CLOSE_TIMEOUT_S)
        self._lanes.close()
        self._consumer.close()
        self._ledger.close()
        self._beat.close()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.settle()
        self._on_lost(consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.drop(partitions)
        for place in partitions:
            self._resting.pop(_key(place), None)


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

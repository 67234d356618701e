"""The loop of a consuming node: read, decide, send on, and commit only what is certain to be safe downstream.

`KafkaNode` commits an offset when the next hop has acknowledged all that became of its record *and* lagloss's broker
has acknowledged the beacons that say so. A process that is killed therefore does its last second or so again: that
makes duplicates, never holes, neither in the stream nor in the account of it. The loop tells it when a record is done.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from confluent_kafka import Consumer, Message, TopicPartition

from lagloss.broker.connection import BOOTSTRAP_VARIABLE
from lagloss.checksums import Payload
from lagloss.kafka import KafkaNode
from lagloss.kafka.commits import Partition
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.outlets.choice import COLLECTOR_VARIABLE
from pipeline_under_test.harness.ledger import LedgerEntry, place_of_node
from pipeline_under_test.stream.event_faults import apply_delay, corrupted
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.kafka.clients import ReliableProducer, consumer_config, producer_config
from pipeline_under_test.stream.nodes.decision import Decision
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
from pipeline_under_test.stream.topology import ALL_NEXT, GLOBAL_RETRIER, RETRIED, group_of, topic_of

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 10_000
"""Records in flight from which on nothing more is read, whatever they wait for; and changed bodies to remember."""
REST_S: Final = 2.0
"""How long a partition rests before a refused record is read again."""


def emitter_of(settings: ReferenceSettings, node: str, *, first: bool = False, resumes: bool = False) -> Emitter:
    """Return the emitter of this process of a node; with `taps`, one without an address, which does nothing."""
    if not settings.taps:
        return Emitter(settings.pipeline, node, settings.bootstrap, first=first, resumes=resumes)
    for variable in (BOOTSTRAP_VARIABLE, COLLECTOR_VARIABLE):
        os.environ.pop(variable, None)
    return Emitter(settings.pipeline, node)


class ReferenceNode(KafkaNode):
    """A process of a node for lagloss, as any service makes one; with the hook of the faults that corrupt events.

    Checksums are CRC-32: all nodes are of this pipeline, and it must run without the SDK's extras.
    """

    def __init__(self, settings: ReferenceSettings, node: str, *, first: bool = False) -> None:
        emitter = emitter_of(settings, node, first=first, resumes=not first)
        super().__init__(settings.pipeline, node, emitter=emitter)
        self._originals: dict[bytes, bytes] = {}

    def corrupted(self, event: Event) -> Event:
        """Return the event as the link will have changed it; what is reported as sent is the original's checksum."""
        changed = corrupted(event)
        self._originals[changed.body] = event.body
        if len(self._originals) > MAX_IN_FLIGHT:
            del self._originals[next(iter(self._originals))]
        return changed

    def payload_of(self, value: str | bytes | None) -> Payload:
        body = value.encode() if isinstance(value, str) else value or b""
        return {"payload_crc": zlib.crc32(self._originals.get(body, body))}


@dataclass(slots=True)
class Rest:
    """A partition's rest; `until_s` is on the monotonic clock, `since` is the first offset that was refused."""

    until_s: float
    since: int


class Refusals:
    """NACK: partitions that rest, to be read again from a refused record on.

    They rest for a while, and until nothing of them is in flight any more. So nothing before the refused record is left
    unfinished when its partition is read again from there, and nothing behind it is under way twice.
    """

    def __init__(self) -> None:
        self._resting: dict[Partition, Rest] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._resting

    def add(self, partition: Partition, offset: int) -> None:
        """Note that this record was refused: its partition rests, unless it already does."""
        rest = self._resting.setdefault(partition, Rest(time.monotonic() + REST_S, offset))
        rest.since = min(rest.since, offset)

    def rested(self, in_flight: Mapping[Partition, Collection[object]]) -> Iterator[tuple[Partition, int]]:
        """Yield the partitions that have rested, each with the offset from which to read it again."""
        now = time.monotonic()
        for partition, rest in list(self._resting.items()):
            if rest.until_s <= now and not in_flight.get(partition):
                del self._resting[partition]
                yield partition, rest.since

    def drop(self, partition: Partition) -> None:
        """Forget a partition: another process takes its records in again."""
        self._resting.pop(partition, None)


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
        self.node = ReferenceNode(settings, node)
        super().__init__(node, settings, decide, self.node.emitter, source=source, refresh=refresh)
        pipeline = settings.pipeline
        config = consumer_config(settings.bootstrap, group_of(pipeline, node), node)
        self._consumer = self.node.consumer(config, explicit_done=True)
        next_nodes = next_nodes_of(node)
        self.producer = ReliableProducer(
            self.node.producer(
                producer_config(settings.bootstrap, node),
                next_nodes=None if next_nodes is None else {topic_of(pipeline, to): to for to in next_nodes},
            )
        )
        self._retry_topic = topic_of(pipeline, GLOBAL_RETRIER)
        self._delayed: list[tuple[float, int, Job]] = []
        self._delayed_number = itertools.count()
        self._in_flight: dict[Partition, set[Job]] = defaultdict(set)
        self._refusals = Refusals()
        self._paused = False

    def _work(self, outlet: EventOutlet) -> None:
        self._consumer.subscribe([self._topic], on_revoke=self._on_revoke)
        while not self._stopping:
            self._take_in(self._read(outlet), outlet)
            self._move_on(outlet)
        self._finish(outlet)

    # -- the fate of an event: for outlets ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.producer.ready

    def send(self, topic: str, event: Event, outbound: OutboundEvent) -> None:
        if outbound.is_corrupted:
            event = self.node.corrupted(event)
        passed_on, rejected = partial(self.passed_on, outbound), partial(self.rejected, outbound)
        self.producer.send(topic, event, passed_on, rejected, source=outbound.job.record)

    def passed_on(self, outbound: OutboundEvent) -> None:
        """Note that the record produced for the event is acknowledged, as its producer has reported to lagloss."""
        self._one_done(outbound.job)

    def delivered(self, outbound: OutboundEvent) -> None:
        """Note that the event is out of the pipeline."""
        self._report_sent(outbound)
        self._one_done(outbound.job)

    def retry_later(self, outbound: OutboundEvent, reason: str) -> None:
        """Hand the event to the global retrier: the next hop does not take it now, and others continue."""
        event = outbound.event
        self._ledger.write([LedgerEntry("retried", event.id, event.event_time_ms, place_of_node(self._node), reason)])
        self.send(self._retry_topic, event.set_aside(self._node, reason), outbound)

    def refused(self, outbound: OutboundEvent) -> None:
        """NACK: it is to be read again, and with it all that stands behind it in its partition."""
        outbound.job.is_refused = True
        self._one_done(outbound.job)

    def _report_sent(self, outbound: OutboundEvent) -> None:
        self.node.sent(outbound.job.record, self._named(outbound.to), payload=outbound.event.body)

    def _report_filtered(self, job: Job, reason: str) -> None:
        self.node.filtered(job.record, reason)

    def _report_dead(self, event: Event, reason: str, record: Message | None) -> None:
        self.node.dead_lettered(event.identity if record is None else record, reason)

    # -- the loop -------------------------------------------------------------------------------------------------

    def _read(self, outlet: EventOutlet) -> Sequence[Message]:
        count = sum(map(len, self._in_flight.values()))
        if (outlet.ready and count < MAX_IN_FLIGHT) == self._paused:
            self._pause(not self._paused)
        if not self._paused:
            self._read_again()
        # `consume` with a timeout waits until the batch is full; a record that is there need not wait for others.
        first = self._consumer.poll(BUSY_WAIT_S if count > len(self._delayed) else IDLE_WAIT_S)
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
        for partition, offset in self._refusals.rested(self._in_flight):
            place = TopicPartition(*partition, offset)
            self._consumer.seek(place)
            self._consumer.resume([place])

    def _take_in(self, records: Sequence[Message], outlet: EventOutlet) -> None:
        for job in self._taken_in(records):
            self._beat.step()  # a slow batch is no hung process
            apply_delay(job.plan)
            if job.plan.delay_s:
                heapq.heappush(self._delayed, (time.monotonic() + job.plan.delay_s, next(self._delayed_number), job))
            else:
                self._carry_out(job, outlet)

    def _opened(self, record: Message) -> Job | None:
        if (record.topic(), record.partition()) in self._refusals:
            return None  # read before the partition was paused: it is read again, and stays in flight until then
        job = super()._opened(record)
        if job is not None:
            self._in_flight[job.place[0]].add(job)
        return job

    def _all_done(self, job: Job) -> None:
        partition, offset = job.place
        is_ours = job in self._in_flight[partition]
        self._in_flight[partition].discard(job)
        if not job.is_refused:
            self._consumer.done(job.record)
        elif is_ours:
            self._consumer.pause([TopicPartition(*partition)])
            self._refusals.add(partition, offset)

    def _finish_nameless(self, record: Message) -> None:
        self._consumer.done(record)

    def _move_on(self, outlet: EventOutlet) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            self._carry_out(heapq.heappop(self._delayed)[2], outlet)
        self._refresh()
        outlet.step()
        self._dead_letters.step()
        self.producer.poll()
        self._beat.step()

    def _finish(self, outlet: EventOutlet) -> None:
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while any(self._in_flight.values()) and time.monotonic() < deadline:
            self._move_on(outlet)
            self.producer.poll(BUSY_WAIT_S)
        if in_flight := sum(map(len, self._in_flight.values())):
            log.warning("stopped with %d records in flight; the next process repeats them", in_flight)

    def _close(self) -> None:
        self.node.close(CLOSE_TIMEOUT_S)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._refusals.drop(_key(place))
            self._in_flight.pop(_key(place), None)  # it is finished here, and is the next owner's all the same
        consumer.resume(partitions)  # librdkafka would have them paused still when they are assigned again


class AtMostOnceLoop(Loop):
    """The bad example: an offset is committed before anything is done with its record.

    A process that is killed leaves holes: what it had in flight is not read again.
    """

    def _read(self, outlet: EventOutlet) -> Sequence[Message]:
        records = super()._read(outlet)
        for record in records:
            if record.error() is None:
                self._consumer.done(record)
        if records:
            self._consumer.commit(asynchronous=False)
        return records


def next_nodes_of(node: str) -> Sequence[str] | None:
    """Return the nodes that a record of this one can be out to; None where each is, to the one next node."""
    if node == GLOBAL_RETRIER:
        return RETRIED
    if node in RETRIED:
        return (GLOBAL_RETRIER,)
    return ALL_NEXT[node] if len(ALL_NEXT[node]) > 1 else None


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

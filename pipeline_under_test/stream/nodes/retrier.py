"""The global retrier: keeps what a connector could not deliver, and brings it back later, so that no event waits.

Events come in by the retrier's own topic and go to the topic of a tier: 10 s, 60 s or 300 s by default, the longer the
more often they have been back. All records of a tier wait equally long, so each partition is read in order, and paused
while its first record is not due: the topic is the waiting room, not this process's memory. From the last tier an event
comes back once; if it fails again, it is dead, with the reason.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from lagloss.kafka.commits import Commits, Partition, Taken, place_of
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.kafka.clients import consumer_for
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Pass
from pipeline_under_test.stream.nodes.loop import Loop
from pipeline_under_test.stream.nodes.worker import OutboundEvent
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import GLOBAL_RETRIER, RETRIED, tier_topic, tiers_group, topic_of

log = logging.getLogger(__name__)

MAX_BATCH: Final = 200


class TierChoice:
    """Which tier an event waits in, by how often it has been back; after the last one it is dead."""

    def __init__(self, pipeline: str, tiers_s: tuple[float, ...]) -> None:
        self._topics = [tier_topic(pipeline, seconds) for seconds in tiers_s]

    def __call__(self, event: Event) -> Decision:
        if event.back_to not in RETRIED:
            return Dead(f"no node to return it to: {event.back_to or 'not specified'}")
        if event.tries >= len(self._topics):
            return Dead(f"{event.reason}, after {event.tries} returns")
        return Pass(event, (self._topics[event.tries],))


@dataclass(frozen=True, slots=True)
class WaitingEvent:
    """A record of a tier in hand; `due_s` is on the wall clock, epoch seconds."""

    due_s: float
    event: Event | None
    taken: Taken


class TierOutlet:
    """Puts events into tiers, and brings back those that have waited."""

    def __init__(self, settings: ReferenceSettings, loop: Loop) -> None:
        pipeline = settings.pipeline
        self._pipeline = pipeline
        self._loop = loop
        self._delays = {tier_topic(pipeline, seconds): seconds for seconds in settings.tiers_s}
        self._consumer = consumer_for(settings.bootstrap, tiers_group(pipeline), f"{GLOBAL_RETRIER}-tiers")
        self._commits = Commits(self._consumer, loop.emitter)
        self._consumer.subscribe(list(self._delays), on_revoke=self._on_revoke, on_lost=self._on_lost)
        self._rooms: dict[Partition, deque[WaitingEvent]] = {}

    @property
    def ready(self) -> bool:
        return self._loop.ready

    def send(self, outbound: OutboundEvent) -> None:
        if outbound.to is None:
            raise ValueError("expected a tier, since the retrier delivers nothing itself")
        self._loop.send(outbound.to, outbound.event, outbound)

    def step(self) -> None:
        """Read what came into the tiers, and bring back what is due."""
        for record in self._consumer.consume(MAX_BATCH, timeout=0):
            error = record.error()
            if error is None:
                self._seat(record)
            elif error.fatal():
                raise KafkaException(error)
        self._bring_back()
        self._commits.commit_confirmed()

    def close(self) -> None:
        """Close; the next process reads waiting events again."""
        self._commits.settle()
        self._consumer.close()

    def _seat(self, record: Message) -> None:
        partition, _ = place_of(record)
        try:
            event = Event.from_record(record)
        except NoIdentity as problem:
            log.warning("a record in a tier belongs to no node: %s", problem)
            event = None
        _, appended_ms = record.timestamp()
        due_s = appended_ms / 1000 + self._delays[partition[0]]
        room = self._rooms.setdefault(partition, deque())
        if not room:
            self._consumer.pause([TopicPartition(*partition)])
        room.append(WaitingEvent(due_s, event, self._commits.taken(record)))

    def _bring_back(self) -> None:
        now = time.time()
        for partition, room in list(self._rooms.items()):
            while room and room[0].due_s <= now and self.ready:
                self._return(room.popleft())
            if not room:
                del self._rooms[partition]
                self._consumer.resume([TopicPartition(*partition)])

    def _return(self, waiting: WaitingEvent) -> None:
        event = waiting.event
        if event is None:
            waiting.taken.done()
            return

        def rejected(reason: str) -> None:
            self._loop.send_to_dlq(event, reason, waiting.taken.done)

        topic = topic_of(self._pipeline, event.back_to)
        self._loop.producer.send(topic, replace(event, back_to="", tries=event.tries + 1), waiting.taken.done, rejected)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.settle()
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.drop(partitions)
        for place in partitions:
            self._rooms.pop((place.topic, place.partition), None)
        consumer.resume(partitions)  # librdkafka would have them paused still when they are assigned again


def retrier(settings: ReferenceSettings) -> tuple[Loop, TierOutlet]:
    """Return the retrier's loop, with the outlet to run it with."""
    loop = Loop(GLOBAL_RETRIER, settings, TierChoice(settings.pipeline, settings.tiers_s))
    return loop, TierOutlet(settings, loop)

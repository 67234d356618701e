"""Redrive: letters go back from the dead-letter queue to the nodes that set them aside, once the cause is mended.

The queue is read by a consumer group of its own, up to where it ended at the start. A letter that is asked for goes to
its node's topic, with no tries behind it; one that is not, and lies before one that is, is put back at the queue's end.
The offset is committed once both are acknowledged: a redrive that is killed leaves some letters in both places, none in
neither. So the group's lag is how many letters wait; records before its offset are history.

A redriven event says so in the header `lagloss-replay`, for it is a replay of one event: if it is delivered now, it
counts as delivered and no longer as dead, and neither its second visit to the node nor the hours in the queue show as a
duplicate and a lag of live traffic.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Message

from lagloss.kafka.commits import OffsetTracker, place_of
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.kafka.clients import ReliableProducer
from pipeline_under_test.stream.kafka.offset_range_reader import OffsetRangeReader, Offsets
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import ALL_CONSUMERS, dead_topic, redrive_group, topic_of

REDRIVE: Final = "redrive"
POLL_S: Final = 0.05
PROGRESS_EVERY_S: Final = 1.0


class Busy(RuntimeError):
    """Another redrive of this pipeline is running."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters go back: those that `node` set aside (None: any) for a reason that holds `reason`, `most` of them
    at most (None: all)."""

    node: str | None = None
    reason: str = ""
    most: int | None = None

    def event(self, record: Message) -> Event | None:
        """Return the event in a record of the queue, if it is wanted and there is a node to send it to."""
        try:
            event = Event.from_record(record)
        except NoIdentity:
            return None
        fits = event.back_to in ALL_CONSUMERS and self.node in (None, event.back_to) and self.reason in event.reason
        return event if fits else None


def redriven(settings: ReferenceSettings, name: str, selection: Wanted) -> Iterator[dict[str, Any]]:
    """Send the letters that are wanted back to their nodes; gives progress about once a second, and at the end a
    summary: `events` were sent back to nodes, `skipped` were put back into the queue.

    Raises:
        Busy: if another redrive is under way here.
        KafkaException: if the broker cannot be reached or refuses.
    """
    queue_topic = dead_topic(settings.pipeline)
    began, events, skipped, shown = time.monotonic(), 0, 0, 0.0
    producer, tracker = ReliableProducer.of(settings.bootstrap, REDRIVE), OffsetTracker()
    with (
        _alone(settings),
        OffsetRangeReader(settings.bootstrap, queue_topic, redrive_group(settings.pipeline)) as queue,
    ):
        begin = queue.committed()
        batches = queue.read(begin, _end(queue, begin, selection))
        while (records := next(batches, None)) is not None or producer.in_flight:
            for record in records or ():
                acknowledged = tracker.taken(*place_of(record)).done
                event = selection.event(record)
                if event is None:
                    producer.forward(queue_topic, record, acknowledged)
                    skipped += 1
                else:
                    producer.send(topic_of(settings.pipeline, event.back_to), _again(event, name), acknowledged)
                    events += 1
            producer.poll(0.0 if records else POLL_S)
            while not producer.ready:
                producer.poll(POLL_S)
            if time.monotonic() >= shown + PROGRESS_EVERY_S:
                shown = time.monotonic()
                _commit(queue, tracker)
                yield {"redrive": name, "events": events, "kept": skipped}
        _commit(queue, tracker)
    yield {"redrive": name, "events": events, "kept": skipped, "seconds": round(time.monotonic() - began, 3)}


def _again(event: Event, name: str) -> Event:
    return replace(event, replay=event.replay or name, back_to="", tries=0, reason="")


def _end(queue: OffsetRangeReader, begin: Offsets, selection: Wanted) -> Offsets:
    """Return where to end in each partition: past the last letter that is wanted, so that those behind it are not
    moved."""
    end, count = dict(begin), 0
    for records in queue.read(begin, queue.ends()):
        for record in records:
            if count == selection.most:
                return end
            if selection.event(record) is not None:
                (_, number), offset = place_of(record)
                end[number] = offset + 1
                count += 1
    return end


def _commit(queue: OffsetRangeReader, tracker: OffsetTracker) -> None:
    queue.commit({number: offset for (_, number), offset in tracker.advance().items()})


@contextmanager
def _alone(settings: ReferenceSettings) -> Iterator[None]:
    """Refuse a second redrive: both would send the same letters."""
    with (settings.data_dir / "redrive.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"expected to be the only redrive in {settings.data_dir}, found another; wait for it") from None
        yield

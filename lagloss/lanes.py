"""How far a Kafka consumer has taken its partitions in, as progress that never claims more than is true.

For a lane (TOPIC/PARTITION), `until` promises that all that was put into it before has been taken in. Two things prove
that:

- The lane's end was asked for at time T and found at offset E, and the position has reached E since. This needs no
  record timestamp and no common clock, so it holds for topics with CreateTime too. Ends once asked for are remembered,
  so a consumer that is never quite caught up still moves on.
- In a topic with LogAppendTime, the append time of the last record taken in.

The position that counts is what `taken` was told, not what the client fetched: between a poll and its beacon, nothing
is proved.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from lagloss.wire import Progress

QUERY_TIMEOUT_S: Final = 1.0
Key = tuple[str, int]
"""Topic and partition."""
UNKNOWN_FOR_S: Final = 30.0
"""How long a lane with a committed offset, of which nothing can be said yet, is left out (and so stands where its last
owner left it) before it is reported as standing at 0. Shorter than the grace of a window, so that no window is judged
without it."""
MAX_ENDS: Final = 1_024
"""Ends remembered for a lane; thinned beyond that, which only makes a far-behind lane move in larger steps."""


@dataclass(slots=True)
class Lane:
    """What is known of one partition. Times in epoch ms, `since` in monotonic seconds."""

    since: float
    position: int | None = None
    """Where it starts: the next offset to be taken in while nothing was; None until something shows it."""
    asked: bool = False
    """Its committed offset was asked for."""
    until: int = 0
    is_new: bool = False
    """Nobody has committed an offset of it, so nobody before us has taken anything in."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """(end offset, when asked), both ascending, of ends that the position has not reached."""

    def saw_end(self, end: int, asked_ms: int) -> None:
        """The lane ended at `end` at some moment after `asked_ms`."""
        if self.ends and self.ends[-1][0] == end:
            self.ends[-1] = (end, max(asked_ms, self.ends[-1][1]))
            return
        self.ends.append((end, asked_ms))
        if len(self.ends) > MAX_ENDS:
            del self.ends[1::2]

    def advance(self, position: int, appended_ms: int) -> None:
        """Moves `until` as far as this position proves, which was copied before the last end was asked for."""
        reached = 0
        while reached < len(self.ends) and self.ends[reached][0] <= position:
            self.until = max(self.until, self.ends[reached][1])
            reached += 1
        del self.ends[:reached]
        self.until = max(self.until, appended_ms)


class KafkaLanes:
    """The input lanes of a confluent_kafka Consumer, for `Emitter.follow`.

    Call `taken(message)` right after `emitter.taken_in` for it. `assigned` and `revoked` fit `Consumer.subscribe` as
    on_assign and on_revoke (also on_lost); they are optional, since each snapshot looks at the consumer's assignment,
    but make a rebalance known at once. Close the emitter, or these lanes, before the consumer: a snapshot uses it from
    the emitter's thread.

    A record without a beacon of its own (a poison message, say) is passed by the next `taken` of its partition. Where a
    producer uses transactions, its markers take up offsets: set `enable.partition.eof` on the consumer and hand the
    end-of-partition messages to `taken` too, or an idle lane stands just before the last marker, which makes what is
    missing there pending, never lost.

    A snapshot asks the broker once, twice while a lane is new, each time for 1 s at most.

    Args:
        consumer: asked for its assignment, committed offsets and the ends of its partitions, never for messages.
        checkpoint: the checkpoint whose progress this is, `NODE.in`.
    """

    def __init__(self, consumer: Consumer, checkpoint: str, *, now_ms: Callable[[], int] | None = None) -> None:
        self._consumer = consumer
        self._checkpoint = checkpoint
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._taken: dict[Key, tuple[int, int]] = {}
        self._starts: dict[Key, int] = {}
        self._gone: deque[Key] = deque()
        self._lanes: dict[Key, Lane] = {}
        self._guard = threading.Lock()  # between snapshot and close; the consumer's own thread never takes it
        self._closed = False
        self.last_error: str | None = None

    def taken(self, message: Message) -> None:
        """Its beacon is with the emitter (or nothing is to be said of it): the lane has passed it. An end-of-partition
        message will do, too."""
        error = message.error()
        at = message.offset()
        if at is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
            return
        key = (message.topic() or "", message.partition() or 0)
        known = self._taken.get(key)
        if error is not None:
            self._taken[key] = (max(at, known[0] if known else 0), known[1] if known else 0)
            return
        if known is not None and at < known[0]:
            return  # read again after a rebalance or a seek; what was taken in stays taken in
        kind, appended_ms = message.timestamp()
        self._taken[key] = (at + 1, appended_ms if kind == TIMESTAMP_LOG_APPEND_TIME else known[1] if known else 0)

    def assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are this consumer's from now on, from their offset where they name one."""
        for partition in partitions:
            if partition.offset >= 0:
                self._starts[partition.topic, partition.partition] = partition.offset

    def revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are somebody else's: not reported any more, they stand where they are until their next owner
        speaks."""
        self._gone.extend((partition.topic, partition.partition) for partition in partitions)

    def close(self) -> None:
        """Touches the consumer no more. Waits for a snapshot under way, 2 s at most."""
        if self._guard.acquire(timeout=2 * QUERY_TIMEOUT_S):
            self._closed = True
            self._lanes.clear()
            self._guard.release()
        self._closed = True

    def snapshot(self) -> Sequence[Progress]:
        """How far each lane is; what the broker cannot be asked keeps its last `until`."""
        with self._guard:
            if self._closed:
                return ()
            try:
                self._forget_revoked()
                self._look_at_assignment()
                if self._lanes:
                    self._look_at_ends()
            except (KafkaException, RuntimeError) as error:
                self.last_error = str(
                    error
                )  # broker away, or the consumer closed under us: lanes keep what they proved
            self._forget_revoked()
            return [
                Progress(self._checkpoint, f"{topic}/{partition}", lane.until)
                for (topic, partition), lane in sorted(self._lanes.items())
                if self._can_tell(lane)
            ]

    @staticmethod
    def _can_tell(lane: Lane) -> bool:
        """A lane nobody has read before stands at 0, truly; one that somebody has keeps its owner's word for a
        while."""
        return lane.until > 0 or lane.is_new or time.monotonic() - lane.since > UNKNOWN_FOR_S

    def _forget_revoked(self) -> None:
        while self._gone:
            key = self._gone.popleft()
            self._lanes.pop(key, None)
            self._starts.pop(key, None)

    def _look_at_assignment(self) -> None:
        """Follows the consumer's assignment, and learns where lanes start of which nothing was taken in yet."""
        held = {(partition.topic, partition.partition) for partition in self._consumer.assignment()}
        for gone in self._lanes.keys() - held:
            del self._lanes[gone]
        for key in held - self._lanes.keys():
            self._lanes[key] = Lane(since=time.monotonic(), position=self._starts.get(key))
        fresh = [
            key
            for key, lane in self._lanes.items()
            if lane.position is None and not (lane.asked and key in self._taken)
        ]
        if not fresh:
            return
        for found in self._consumer.committed([TopicPartition(*key) for key in fresh], timeout=QUERY_TIMEOUT_S):
            if found.error is None:
                lane = self._lanes[found.topic, found.partition]
                lane.asked, lane.is_new = True, found.offset < 0
                lane.position = found.offset if found.offset >= 0 else None
        # What was never committed starts at one end or the other: the same, where the partition holds nothing.
        new = [key for key in fresh if self._lanes[key].is_new]
        begins = self._offsets(new, OFFSET_BEGINNING) if new else {}
        ends = self._offsets(new, OFFSET_END) if new else {}
        for key in new:
            if begins.get(key) is not None and begins.get(key) == ends.get(key):
                self._lanes[key].position = ends[key]

    def _look_at_ends(self) -> None:
        """One question to the broker for the ends of all lanes; positions are copied before, so that reaching an end is
        a proof."""
        taken = dict(self._taken)
        asked_ms = self._now_ms()
        # The client's cached watermark would do for a graph, but not for a promise.
        for key, end in self._offsets(self._lanes, OFFSET_END).items():
            lane = self._lanes[key]
            # A read_committed consumer is told the end of what is committed; records of open transactions wait, too.
            end = max(end, self._high_watermark(key))
            # Where it was taken over, somebody else may have come further than we had.
            position, appended_ms = taken.get(key, (None, 0))
            position = max((at for at in (position, lane.position) if at is not None), default=None)
            if position is not None and position > end:
                # The topic was made anew (or lost its tail): offsets of the old one say nothing about it.
                self._taken.pop(key, None)
                self._starts.pop(key, None)
                self._lanes[key] = Lane(since=lane.since, until=lane.until)
                continue
            lane.saw_end(end, asked_ms)
            if position is not None:
                lane.advance(position, appended_ms)

    def _offsets(self, keys: Iterable[Key], at: int) -> dict[Key, int]:
        """OFFSET_BEGINNING or OFFSET_END of each, as the brokers have it now; left out where they did not say."""
        question = [TopicPartition(*key, at) for key in keys]
        answers = self._consumer.offsets_for_times(question, timeout=QUERY_TIMEOUT_S)
        found = {(place.topic, place.partition): place.offset for place in answers if not place.error}
        return {key: offset for key, offset in found.items() if offset >= 0}

    def _high_watermark(self, key: Key) -> int:
        """As of the last fetch, at most half a second ago on a consumer that fetches; below 0 where there was none."""
        _, high = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        return high

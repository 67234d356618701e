"""How far a Kafka consumer has taken its partitions in, as progress that never claims more than is true.

For a lane (TOPIC/PARTITION), `until` promises that all that was put into it before has been taken in. Two things prove
that:

- The lane's end was asked for at time T and found at offset E, and the position has reached E since. This needs no
  record timestamp and no common clock, so it holds for topics with CreateTime too. Ends once asked for are remembered,
  so a consumer that is never quite caught up still moves on.
- In a topic with LogAppendTime, the append time of the last record taken in.

The position that counts is what `taken` was given, not what the client fetched: between a poll and its beacon, nothing
is proved.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from lagloss.broker.partition_bounds import ANSWER_TIMEOUT_S, QUERY_TIMEOUT_S, Key, LogBounds
from lagloss.sdk.outlets.choice import BOOTSTRAP_VARIABLE
from lagloss.wire.format import Progress

log = logging.getLogger("lagloss")

Hook = Callable[[Consumer, list[TopicPartition]], Any]
UNKNOWN_FOR_S: Final = 30.0
"""How long a lane with a committed offset, of which nothing is known yet, is left out (and so stands where its last
owner left it) before it is reported as standing at 0. Shorter than the grace of a window, so that no window is judged
without it. It is also how long a lane known from `taken` alone goes on being reported where it stands."""
MAX_ENDS: Final = 1_024
"""Ends remembered for a lane; thinned beyond that, which only makes a far-behind lane move in larger steps."""


@dataclass(slots=True)
class Lane:
    """What is known of one partition. Offsets, epoch ms, and monotonic seconds for `since` and `moved_at`."""

    since: float
    position: int | None = None
    """Where it starts: the next offset to be taken in while nothing was; None until something shows it."""
    until: int = 0
    is_new: bool = False
    """No offset of it was ever committed, so nothing was taken in before."""
    is_hearsay: bool = False
    """Known from `taken` alone: it may be another consumer's by now."""
    moved_at: float = field(default_factory=time.monotonic)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """(end offset, when asked) of ends that the position has not reached, in the order they were asked for."""

    def saw_end(self, end: int, asked_ms: int) -> None:
        """Note that the lane ended at `end` at some moment after `asked_ms`."""
        if self.ends and self.ends[-1][0] == end:
            self.ends[-1] = (end, asked_ms)
            return
        self.ends.append((end, asked_ms))
        if len(self.ends) > MAX_ENDS:
            del self.ends[1::2]

    def advance(self, position: int, appended_ms: int) -> None:
        """Advance `until` as far as this position proves; it was copied before the last end was asked for.

        Where the clock was set back, so is `until`: kept ahead of the clock it would stand still until that came by.
        """
        before, reached = self.until, 0
        while reached < len(self.ends) and self.ends[reached][0] <= position:
            self.until = self.ends[reached][1]
            reached += 1
        del self.ends[:reached]
        self.until = max(self.until, appended_ms)
        if self.until != before:
            self.moved_at = time.monotonic()

    def is_reportable(self) -> bool:
        """Return whether to report the lane. A lane that was never read stands at 0, truly; one that was read is
        reported for a while on its last owner's word, and left out after that until a new owner reports it."""
        now = time.monotonic()
        if self.is_hearsay:
            return now - self.moved_at <= UNKNOWN_FOR_S
        return self.until > 0 or self.is_new or now - self.since > UNKNOWN_FOR_S


class KafkaLanes:
    """The input lanes of a confluent_kafka Consumer, for `Emitter.follow`.

    Call `taken(message)` right after `emitter.taken_in` for it, and have the consumer report which partitions it holds:
    `lanes.subscribe(topics)` instead of `consumer.subscribe(topics)`; or hand `assigned` and `revoked` to the latter as
    on_assign and on_revoke (also on_lost), or call them from hooks of your own; after a `consumer.assign`, call
    `assigned` yourself. Without that, lanes are known from `taken` alone: one of which nothing was taken in is not
    reported, and so holds nothing back, and one that waits is reported for 30 s, since it may be another consumer's.

    The consumer is used inside `subscribe`, `assigned`, `revoked` and the first `taken`, on the thread that calls them,
    and nowhere else: it may wait in `poll` as long as it likes. The brokers are asked on a handle of the lanes' own,
    from the emitter's thread: once a snapshot, twice while the start of a lane is unknown, each time for 1.5 s at most.

    A record without a beacon of its own (a poison message, say) is passed by the next `taken` of its partition. Where a
    producer uses transactions, its markers take up offsets: set `enable.partition.eof` on the consumer and hand the
    end-of-partition messages to `taken` too, or an idle lane stands just before the last marker, which makes what is
    missing there pending, never lost. Records of an open transaction wait, whatever the consumer's isolation level.

    Args:
        consumer: the host's.
        checkpoint: the checkpoint whose progress this is, `NODE.in`.
        bootstrap: HOST:PORT,... of the cluster that the consumer reads from; by default what `kafka_config` says, else
            LAGLOSS_KAFKA_BOOTSTRAP. Where that is another cluster than the consumer's, lanes stand still; the two are
            compared from `subscribe` on, without it from the first `taken`.
        kafka_config: further librdkafka properties of the lanes' own handle, for security mostly.
    """

    def __init__(
        self,
        consumer: Consumer,
        checkpoint: str,
        bootstrap: str | None = None,
        *,
        kafka_config: Mapping[str, Any] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._consumer = consumer
        self._checkpoint = checkpoint
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        config = dict(kafka_config or {})
        address = bootstrap or config.get("bootstrap.servers") or os.environ.get(BOOTSTRAP_VARIABLE)
        self._bounds = LogBounds({**config, "bootstrap.servers": address}) if address else None
        self.last_error: str | None = None
        if not address:
            self._note(f"lanes stand still: expected bootstrap, or an address of Kafka in {BOOTSTRAP_VARIABLE}")
        # The host's thread writes these; the deque hands changes of the assignment over in their order.
        self._taken: dict[Key, tuple[int, int]] = {}
        self._held: set[Key] = set()
        self._has_hooks = False
        self._cluster_id: str | None = None
        self._changes: deque[tuple[Key, Lane | None]] = deque()
        # And these are the snapshot's, under a lock that the host's thread takes in `close` only.
        self._lanes: dict[Key, Lane] = {}
        self._guard = threading.Lock()
        self._closed = False

    # -- on the host's thread -------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Hook | None = None,
        on_revoke: Hook | None = None,
        on_lost: Hook | None = None,
    ) -> None:
        """Call `consumer.subscribe`, and follow every change of its partitions; the host's own hooks are called as
        ever, and the lanes change before its on_assign, and after its on_revoke and on_lost (by default on_revoke, as
        in the client)."""

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self.assigned(consumer, partitions)
            if on_assign is not None:
                on_assign(consumer, partitions)

        def then_revoked(hook: Hook | None) -> Hook:
            def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
                try:
                    if hook is not None:
                        hook(consumer, partitions)
                finally:
                    self.revoked(consumer, partitions)

            return revoked

        self._has_hooks = True
        if topics:
            self._learn_cluster(topics[0])
        lost = then_revoked(on_lost or on_revoke)
        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=then_revoked(on_revoke), on_lost=lost)

    def taken(self, message: Message) -> None:
        """Note that the lane has passed this record: its beacon is with the emitter, or it has none. Accepts
        end-of-partition messages."""
        error = message.error()
        at = message.offset()
        if at is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
            return
        key = (message.topic() or "", message.partition() or 0)
        if not self._has_hooks and key not in self._held:
            self._hear_of(key)
        if not self._taken:
            self._learn_cluster(key[0])
        known = self._taken.get(key)
        if error is not None:
            self._taken[key] = (max(at, known[0] if known else 0), known[1] if known else 0)
            return
        if known is not None and at < known[0]:
            return  # read again after a rebalance or a seek; what was taken in stays taken in
        kind, appended_ms = message.timestamp()
        self._taken[key] = (at + 1, appended_ms if kind == TIMESTAMP_LOG_APPEND_TIME else known[1] if known else 0)

    def assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions that this consumer owns from now on, from their offset where they name one, else from the
        committed one, which is read here: 1 s at most. Raises nothing."""
        self._has_hooks = True
        keys = [(partition.topic, partition.partition) for partition in partitions]
        starts: dict[Key, int] = {}
        try:
            # What the consumer holds no longer, in case no revocation was seen.
            still = {(partition.topic, partition.partition) for partition in consumer.assignment()}
            self._let_go(self._held - still.union(keys))
            starts = self._committed(consumer, [place for place in partitions if place.offset < 0])
        except Exception as error:
            self.last_error = str(error)  # lanes with unknown starts stand until something is taken in
        named = {(place.topic, place.partition): place.offset for place in partitions if place.offset >= 0}
        for key in keys:
            start = named.get(key, starts.get(key))
            position = start if start is not None and start >= 0 else None
            is_new = start is not None and start < 0
            self._changes.append((key, Lane(time.monotonic(), position, is_new=is_new)))
            self._held.add(key)

    def revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Remove partitions that another consumer owns now; they are no longer reported, and stand until their next
        owner reports them."""
        self._let_go((partition.topic, partition.partition) for partition in partitions)

    def _learn_cluster(self, topic: str) -> None:
        """Asks which cluster the consumer reads from, unless that is known: 1 s at most. Raises nothing.

        Not for a rebalance callback: `list_topics` there clears the state that the client keeps for the `poll`,
        `consume` or `close` which runs the callback, and at that call's next callback the client aborts the process.
        """
        if self._cluster_id is None:
            try:
                self._cluster_id = self._consumer.list_topics(topic, timeout=QUERY_TIMEOUT_S).cluster_id
            except Exception as error:
                self.last_error = str(error)  # any cluster will do then

    @staticmethod
    def _committed(consumer: Consumer, partitions: list[TopicPartition]) -> dict[Key, int]:
        """Return the committed offset of each partition, below 0 if there is none; without those that could not be
        read."""
        question = [TopicPartition(place.topic, place.partition) for place in partitions]
        answers = consumer.committed(question, timeout=QUERY_TIMEOUT_S) if question else []
        return {(found.topic, found.partition): found.offset for found in answers if found.error is None}

    def _hear_of(self, key: Key) -> None:
        if not self._held:
            log.warning("lagloss: the held partitions are not known; use lanes.subscribe, or hand over its hooks")
        self._changes.append((key, Lane(time.monotonic(), is_hearsay=True)))
        self._held.add(key)

    def _let_go(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._changes.append((key, None))
            self._held.discard(key)

    def close(self) -> None:
        """Says and asks nothing any more. Waits for a snapshot under way, 3 s at most."""
        self._closed = True
        if self._guard.acquire(timeout=2 * ANSWER_TIMEOUT_S):
            self._lanes.clear()
            if self._bounds is not None:
                self._bounds.close()
            self._guard.release()

    # -- on the emitter's thread ----------------------------------------------------------------------------------

    def snapshot(self) -> Sequence[Progress]:
        """Return the progress of each lane; one whose end the brokers do not give keeps its last `until`."""
        with self._guard:
            if self._closed:
                return ()
            self._follow_assignment()
            try:
                if self._lanes and self._bounds is not None and self._is_right_cluster(self._bounds):
                    self._look_at_ends(self._bounds, self._begins_where_start_is_unknown(self._bounds))
                    self.last_error = self._bounds.trouble or self.last_error
            except (KafkaException, TimeoutError) as error:  # brokers away: lanes keep what they proved
                self.last_error = str(error) or "the brokers did not answer in time"
            self._follow_assignment()  # what was revoked while we asked is not ours to report
            return [
                Progress(self._checkpoint, f"{topic}/{partition}", lane.until)
                for (topic, partition), lane in sorted(self._lanes.items())
                if lane.is_reportable()
            ]

    def _follow_assignment(self) -> None:
        while self._changes:
            key, lane = self._changes.popleft()
            before = self._lanes.pop(key, None)
            if lane is not None:
                self._lanes[key] = lane
                lane.until = before.until if before else 0

    def _is_right_cluster(self, bounds: LogBounds) -> bool:
        """Return whether the brokers belong to the consumer's cluster: the ends of a topic of the same name elsewhere
        prove nothing."""
        expected = self._cluster_id
        if expected is None or expected == bounds.cluster_id():
            return True
        self._note(
            f"lanes stand still: expected cluster {expected}, which the consumer reads from, found "
            f"{bounds.cluster_id()}; hand KafkaLanes the bootstrap of the former"
        )
        return False

    def _begins_where_start_is_unknown(self, bounds: LogBounds) -> dict[Key, int]:
        unknown = [key for key, lane in self._lanes.items() if lane.position is None and key not in self._taken]
        return bounds.begins(unknown) if unknown else {}

    def _look_at_ends(self, bounds: LogBounds, begins: Mapping[Key, int]) -> None:
        """Ask the brokers once for the ends of all lanes; positions are copied before, so that reaching an end is a
        proof."""
        taken = dict(self._taken)
        asked_ms = self._now_ms()
        # The client's cached watermark would do for a graph, but not for a promise.
        for key, end in bounds.ends(self._lanes).items():
            lane = self._lanes[key]
            if begins.get(key) == end:
                # It holds nothing: at whichever end it starts, it starts here.
                lane.position = end
            # Where it was taken over, another consumer may have come further than we had.
            position, appended_ms = taken.get(key, (None, 0))
            position = max((at for at in (position, lane.position) if at is not None), default=None)
            if position is not None and position > end:
                # The topic was made anew (or lost its tail): offsets of the old one say nothing about it.
                self._taken.pop(key, None)
                self._lanes[key] = Lane(lane.since, until=lane.until, is_hearsay=lane.is_hearsay)
                continue
            lane.saw_end(end, asked_ms)
            if position is not None:
                lane.advance(position, appended_ms)

    def _note(self, error: str) -> None:
        """Keep the error as `last_error`, and log it if it is new."""
        if error != self.last_error:
            log.warning("lagloss: %s", error)
        self.last_error = error

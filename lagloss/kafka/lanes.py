"""Progress of a Kafka consumer: how far it has taken its partitions in, never overstated.

For a lane (TOPIC/PARTITION), `until` promises that all that was put into it before has been taken in. Two things prove
that:

- The lane's end was asked for at time T and found at offset E, and the position has reached E since. This needs no
  record timestamp and no common clock, so it holds for topics with CreateTime too. Known ends are remembered, so a
  consumer that is never quite caught up still makes progress.
- In a topic with LogAppendTime, the append time of the last record taken in.

The position that counts is the one passed to `taken`, not the client's fetch position: between a poll and its beacon,
nothing is proved.
"""

from __future__ import annotations

import logging
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

from lagloss.broker.connection import BOOTSTRAP_VARIABLE, Cluster, KafkaConnection
from lagloss.broker.errors import kafka_error
from lagloss.broker.partition_bounds import ANSWER_TIMEOUT_S, QUERY_TIMEOUT_S, Key, PartitionBounds
from lagloss.wire.format import Progress

log = logging.getLogger("lagloss")

Hook = Callable[[Consumer, list[TopicPartition]], Any]
UNKNOWN_FOR_S: Final = 30.0
"""How long a lane with a committed offset but an unknown position is left out (and so stands where its last owner left
it) before it is reported as standing at 0. Shorter than the grace of a window, so that no window is judged without it.
It is also how long a lane known from `taken` alone is still reported while it stands."""
MAX_ENDS: Final = 1_024
"""Ends remembered per lane; thinned beyond that, which only makes a far-behind lane move in larger steps."""


@dataclass(slots=True)
class Lane:
    """State of one partition. Offsets, epoch ms, and monotonic seconds for `since` and `moved_at`."""

    since: float
    position: int | None = None
    """Next offset to take in; None until it is known."""
    until: int = 0
    is_new: bool = False
    """No offset of it was ever committed, so no consumer of the group has taken anything in."""
    is_inferred: bool = False
    """Known from `taken` alone: another consumer may hold it by now."""
    moved_at: float = field(default_factory=time.monotonic)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """(end offset, when asked) of ends that the position has not reached, in the order of asking."""

    def add_end(self, end: int, asked_ms: int) -> None:
        """Record that the lane ended at `end` at some moment after `asked_ms`."""
        if self.ends and self.ends[-1][0] == end:
            self.ends[-1] = (end, asked_ms)
            return
        self.ends.append((end, asked_ms))
        if len(self.ends) > MAX_ENDS:
            del self.ends[1::2]

    def advance(self, position: int, appended_ms: int) -> None:
        """Move `until` as far as this position proves, which was copied before the last end was asked for.

        If the clock was set back, so is `until`: kept ahead of the clock it would stand still until the clock caught
        up.
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
        """Return True if the lane's `until` is to be reported.

        A lane without any earlier reader truly stands at 0; one with a committed offset is left to its last owner's
        report for `UNKNOWN_FOR_S`. An inferred lane that stands still is left out after that time: its new owner
        reports it.
        """
        now = time.monotonic()
        if self.is_inferred:
            return now - self.moved_at <= UNKNOWN_FOR_S
        return self.until > 0 or self.is_new or now - self.since > UNKNOWN_FOR_S


class KafkaLanes:
    """The input lanes of a confluent_kafka Consumer, for `Emitter.follow`.

    Call `taken(message)` right after `emitter.received` for it, and pass changes of the assignment on: call
    `lanes.subscribe(topics)` instead of `consumer.subscribe(topics)`; or hand `assigned` and `revoked` to the latter as
    on_assign and on_revoke (also on_lost), or call them from hooks of your own; after a `consumer.assign`, call
    `assigned` yourself. Without that, lanes are known from `taken` alone: one of which nothing was taken in is not
    reported, and so holds nothing back, and one that waits is reported for 30 s, since another consumer may hold it.

    The consumer is used inside `subscribe`, `assigned`, `revoked` and the first `taken`, on the thread that calls them,
    and nowhere else: it can wait in `poll` indefinitely. The brokers are asked on a connection of the lanes' own, from
    the emitter's thread: once per snapshot, twice while the start of a lane is unknown, each time for 1.5 s at most.

    A record without a beacon of its own (a poison message, for example) is passed by the next `taken` of its partition.
    Markers of a transactional producer take up offsets: set `enable.partition.eof` on the consumer and hand the
    end-of-partition messages to `taken` too, or an idle lane stands just before the last marker, and messages missing
    there are pending, never lost. Records of an open transaction wait, whatever the consumer's isolation level.

    Args:
        consumer: the host's.
        checkpoint: the checkpoint that reports this progress, `NODE.in`.
        bootstrap: HOST:PORT,... of the cluster that the consumer reads from, to which the environment's properties
            apply, or a connection; by default that of `kafka_config`, else LAGLOSS_KAFKA_BOOTSTRAP. If it names another
            cluster than the consumer's, lanes stand still;
            the two are compared from `subscribe` on, without it from the first `taken`.
        kafka_config: further librdkafka properties of the lanes' own connection, for security mostly.
    """

    def __init__(
        self,
        consumer: Consumer,
        checkpoint: str,
        bootstrap: Cluster | None = None,
        *,
        kafka_config: Mapping[str, Any] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._consumer = consumer
        self._checkpoint = checkpoint
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        config = dict(kafka_config or {})
        if bootstrap or "bootstrap.servers" not in config:
            cluster = KafkaConnection.of(bootstrap) if bootstrap else KafkaConnection.of_environment()
            config = cluster.client(config) | {"bootstrap.servers": cluster.bootstrap} if cluster else {}
        self._bounds = PartitionBounds(config) if config else None
        self.last_error: str | None = None
        if not config:
            self._note(f"lanes are not tracked: pass bootstrap, or set {BOOTSTRAP_VARIABLE} to the address of Kafka")
        # The host's thread writes these; the deque passes changes of the assignment on in their order.
        self._taken: dict[Key, tuple[int, int]] = {}
        self._held: set[Key] = set()
        self._has_hooks = False
        self._cluster_id: str | None = None
        self._changes: deque[tuple[Key, Lane | None]] = deque()
        # These belong to the snapshot, under a lock that the host's thread takes only in `close`.
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
        """Call `consumer.subscribe`, with hooks that pass every change of the assignment to these lanes.

        The host's own hooks are called as ever: on_assign after the lanes' hook, on_revoke and on_lost (by default
        on_revoke, as in the client) before it.
        """

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
        """Move the lane past this message, whose beacon is with the emitter, or which has none.

        An end-of-partition message is accepted, too.
        """
        error = message.error()
        offset = message.offset()
        if offset is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
            return
        key = (message.topic() or "", message.partition() or 0)
        if not self._has_hooks and key not in self._held:
            self._add_inferred(key)
        if not self._taken:
            self._learn_cluster(key[0])
        lane = self._taken.get(key)
        if error is not None:
            self._taken[key] = (max(offset, lane[0] if lane else 0), lane[1] if lane else 0)
            return
        if lane is not None and offset < lane[0]:
            return  # read again after a rebalance or a seek; what was taken in stays taken in
        kind, appended_ms = message.timestamp()
        self._taken[key] = (offset + 1, appended_ms if kind == TIMESTAMP_LOG_APPEND_TIME else lane[1] if lane else 0)

    def assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Add these partitions, which this consumer holds from now on.

        They start at their offset if they name one, else at the committed offset, which is asked for here: 1 s at most.
        Raises nothing.
        """
        self._has_hooks = True
        keys = [(partition.topic, partition.partition) for partition in partitions]
        starts: dict[Key, int] = {}
        try:
            # Partitions that the consumer no longer holds although no hook was called.
            still = {(partition.topic, partition.partition) for partition in consumer.assignment()}
            self._release(self._held - still.union(keys))
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
        """Remove these partitions, which another consumer holds from now on.

        They are no longer reported, and stand where they are until their next owner reports them.
        """
        self._release((partition.topic, partition.partition) for partition in partitions)

    def _learn_cluster(self, topic: str) -> None:
        """Ask which cluster the consumer reads from, unless that is known: 1 s at most. Raises nothing.

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
        """Return the committed offset of each, below 0 if there is none; leave out those that could not be read."""
        question = [TopicPartition(place.topic, place.partition) for place in partitions]
        answers = consumer.committed(question, timeout=QUERY_TIMEOUT_S) if question else []
        return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.error is None}

    def _add_inferred(self, key: Key) -> None:
        if not self._held:
            log.warning(
                "lagloss: the assignment is unknown; use lanes.subscribe, or register the hooks assigned and revoked"
            )
        self._changes.append((key, Lane(time.monotonic(), is_inferred=True)))
        self._held.add(key)

    def _release(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._changes.append((key, None))
            self._held.discard(key)

    def close(self) -> None:
        """Stop reporting and asking. Waits for a snapshot under way, 3 s at most."""
        self._closed = True
        if self._guard.acquire(timeout=2 * ANSWER_TIMEOUT_S):
            self._lanes.clear()
            if self._bounds is not None:
                self._bounds.close()
            self._guard.release()

    # -- on the emitter's thread ----------------------------------------------------------------------------------

    def snapshot(self) -> Sequence[Progress]:
        """Return the progress of each lane; a lane whose brokers do not answer keeps its last `until`."""
        with self._guard:
            if self._closed:
                return ()
            self._follow_assignment()
            try:
                if self._lanes and self._bounds is not None and self._is_right_cluster(self._bounds):
                    self._read_ends(self._bounds, self._begins_where_start_is_unknown(self._bounds))
                    self.last_error = self._bounds.last_error or self.last_error
            except (KafkaException, TimeoutError) as error:  # brokers away: lanes keep their last proof
                said = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
                self._note(f"lanes are not tracked: {said or 'the brokers did not respond in time'}")
            self._follow_assignment()  # lanes revoked meanwhile are not ours to report
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

    def _is_right_cluster(self, bounds: PartitionBounds) -> bool:
        """Return False if `bounds` asks another cluster: a topic of the same name there has other ends, which prove
        nothing.
        """
        expected = self._cluster_id
        if expected is None or expected == bounds.cluster_id():
            return True
        self._note(
            f"lanes are not tracked: expected cluster {expected}, from which the consumer reads, found "
            f"{bounds.cluster_id()}; pass the bootstrap servers of the expected cluster to KafkaLanes"
        )
        return False

    def _begins_where_start_is_unknown(self, bounds: PartitionBounds) -> dict[Key, int]:
        unknown = [key for key, lane in self._lanes.items() if lane.position is None and key not in self._taken]
        return bounds.begins(unknown) if unknown else {}

    def _read_ends(self, bounds: PartitionBounds, begins: Mapping[Key, int]) -> None:
        """Ask the brokers once for the ends of all lanes.

        Positions are copied before, so that reaching an end is a proof.
        """
        taken = dict(self._taken)
        asked_ms = self._now_ms()
        # The client's cached watermark would do for a graph, but not for a promise.
        for key, end in bounds.ends(self._lanes).items():
            lane = self._lanes[key]
            if begins.get(key) == end:
                # The partition is empty: whether it is read from its beginning or its end, it starts here.
                lane.position = end
            # If it was taken over, another consumer may have come further than this one had.
            position, appended_ms = taken.get(key, (None, 0))
            position = max((offset for offset in (position, lane.position) if offset is not None), default=None)
            if position is not None and position > end:
                # The topic was recreated (or lost its tail): offsets of the old one prove nothing about it.
                self._taken.pop(key, None)
                self._lanes[key] = Lane(lane.since, until=lane.until, is_inferred=lane.is_inferred)
                continue
            lane.add_end(end, asked_ms)
            if position is not None:
                lane.advance(position, appended_ms)

    def _note(self, error: str) -> None:
        """Keep the error for `last_error`, and log it if it differs from the last one."""
        if error != self.last_error:
            log.warning("lagloss: %s", error)
        self.last_error = error

"""Progress of a confluent_kafka consumer: how far it has taken its partitions in; `lagloss.kafka.lane_proofs` has how
that is proved."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_END,
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
from lagloss.kafka.lane_proofs import LaneProofs
from lagloss.wire.format import Progress

log = logging.getLogger("lagloss")

Hook = Callable[[Consumer, list[TopicPartition]], Any]


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
        observe: the host commits without waiting for the beacons to be acknowledged: see `KafkaNode`. Pass its seeks on
            by `seek`.
    """

    def __init__(
        self,
        consumer: Consumer,
        checkpoint: str,
        bootstrap: Cluster | None = None,
        *,
        kafka_config: Mapping[str, Any] | None = None,
        observe: bool = False,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._consumer = consumer
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        config = dict(kafka_config or {})
        if bootstrap or "bootstrap.servers" not in config:
            cluster = KafkaConnection.of(bootstrap) if bootstrap else KafkaConnection.of_environment()
            config = cluster.client(config) | {"bootstrap.servers": cluster.bootstrap} if cluster else {}
        self._bounds = PartitionBounds(config) if config else None
        self.last_error: str | None = None
        if not config:
            self._note(f"lanes are not tracked: pass bootstrap, or set {BOOTSTRAP_VARIABLE} to the address of Kafka")
        self._has_hooks = False
        self._cluster_id: str | None = None
        self._proofs = LaneProofs(checkpoint, observe=observe)
        self._guard = threading.Lock()
        """Of proofs; the host's thread takes it only in `close`."""
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
        if not self._has_hooks and key not in self._proofs.held:
            self._add_inferred(key)
        if self._proofs.is_untouched:
            self._learn_cluster(key[0])
        if error is not None:
            self._proofs.reach(key, offset)
            return
        kind, appended_ms = message.timestamp()
        self._proofs.take(key, offset, appended_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None)

    def seek(self, partition: TopicPartition) -> None:
        """Note that the host seeks to this offset; needed only with `observe`."""
        offset = sys.maxsize if partition.offset == OFFSET_END else max(0, partition.offset)
        self._proofs.seek((partition.topic, partition.partition), offset)

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
            self._proofs.release(self._proofs.held - still.union(keys))
            starts = self._committed(consumer, [place for place in partitions if place.offset < 0])
        except Exception as error:
            self.last_error = str(error)  # lanes with unknown starts stand until something is taken in
        named = {(place.topic, place.partition): place.offset for place in partitions if place.offset >= 0}
        for key in keys:
            start = named.get(key, starts.get(key))
            position = start if start is not None and start >= 0 else None
            self._proofs.hold(key, position, is_new=start is not None and start < 0)

    def revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Remove these partitions, which another consumer holds from now on.

        They are no longer reported, and stand where they are until their next owner reports them.
        """
        self._proofs.release((partition.topic, partition.partition) for partition in partitions)

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
        if not self._proofs.held:
            log.warning(
                "lagloss: the assignment is unknown; use lanes.subscribe, or register the hooks assigned and revoked"
            )
        self._proofs.hold(key, None, is_inferred=True)

    def close(self) -> None:
        """Stop reporting and asking. Waits for a snapshot under way, 3 s at most."""
        self._closed = True
        if self._guard.acquire(timeout=2 * ANSWER_TIMEOUT_S):
            self._proofs.clear()
            if self._bounds is not None:
                self._bounds.close()
            self._guard.release()

    # -- on the emitter's thread ----------------------------------------------------------------------------------

    def snapshot(self) -> Sequence[Progress]:
        """Return the progress of each lane; a lane whose brokers do not answer keeps its last `until`."""
        with self._guard:
            proofs, now_ms = self._proofs, self._now_ms()
            if self._closed:
                return proofs.progress(now_ms)
            proofs.follow_assignment()
            try:
                if proofs.keys and self._bounds is not None and self._is_right_cluster(self._bounds):
                    self._read_ends(self._bounds)
                    self.last_error = self._bounds.last_error or self.last_error
            except (KafkaException, TimeoutError) as error:  # brokers away: lanes keep their last proof
                said = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
                self._note(f"lanes are not tracked: {said or 'the brokers did not respond in time'}")
            proofs.follow_assignment()  # lanes revoked meanwhile are not ours to report
            return proofs.progress(now_ms)

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

    def _read_ends(self, bounds: PartitionBounds) -> None:
        """Ask the brokers once for the ends of all lanes."""
        unknown = self._proofs.without_start()
        begins = bounds.begins(unknown) if unknown else {}
        taken = self._proofs.taken()
        asked_ms = self._now_ms()
        # The client's cached watermark would do for a graph, but not for a promise.
        self._proofs.prove(taken, asked_ms, begins, bounds.ends(self._proofs.keys))

    def _note(self, error: str) -> None:
        """Keep the error for `last_error`, and log it if it differs from the last one."""
        if error != self.last_error:
            log.warning("lagloss: %s", error)
        self.last_error = error

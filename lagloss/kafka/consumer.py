"""The consumer of a node: sends `in` beacons, reports lane progress, and commits finished messages only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from lagloss.kafka.commits import Commits, HostCommits
from lagloss.kafka.handovers import Handovers
from lagloss.kafka.in_flight import InFlightMessage, set_current
from lagloss.kafka.lanes import KafkaLanes

if TYPE_CHECKING:
    from lagloss.kafka.node import KafkaNode

SLICE_S: Final = 0.5
"""Longest wait in a poll before offsets that have become safe meanwhile are committed."""
BUSY_SLICE_S: Final = 0.02
"""The same while a message is in flight: its `out` is observed when its delivery report is called."""
FLUSH_S: Final = 5.0
"""Longest wait of a revocation for records in flight, so that the next owner repeats less."""
_CONNECTION: Final = ("bootstrap.servers", "security.", "sasl.", "ssl.", "oauth", "client.dns", "broker.address")
"""Prefixes of the properties that the lanes' own connection to the same cluster needs."""


class NodeConsumer(Consumer):
    """A confluent_kafka Consumer; made by `KafkaNode.consumer`.

    `poll` and `consume` also call the delivery reports of the node's producers, and commit finished messages. A
    message's own handling is over when the next is polled or consumed, or at a `commit` (unless `explicit_done`).

    If the node observes, commits are the host's, as they are without lagloss.
    """

    def __init__(self, node: KafkaNode, config: Mapping[str, Any], *, explicit_done: bool) -> None:
        super().__init__(dict(config) if node.observes else {**config, "enable.auto.commit": False})
        self._node = node
        self._explicit_done = explicit_done
        self._commits = HostCommits() if node.observes else Commits(self, node.emitter)
        connection = {key: value for key, value in config.items() if key.startswith(_CONNECTION)}
        self._lanes = KafkaLanes(self, f"{node.emitter.node}.in", kafka_config=connection, observe=node.observes)
        node.emitter.follow(self._lanes)
        if not node.observes:
            node.emitter.follow(Handovers(node, self, config["group.id"], connection))
        self._polled: list[InFlightMessage] = []
        self._is_subscribed = False
        self._is_closed = False

    # -- taking in ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """Poll as confluent_kafka does; this thread or task handles the message until the next call."""
        deadline = float("inf") if timeout is None or timeout < 0 else time.monotonic() + timeout
        self._end_polled()
        while True:
            self._poll_and_commit()
            remaining_s = deadline - time.monotonic()
            slice_s = BUSY_SLICE_S if self._node.has_work() else SLICE_S
            message = super().poll(max(0.0, min(remaining_s, slice_s)))
            if message is not None:
                handled = self._take([message])
                return handled[0] if handled else None
            if remaining_s <= slice_s:
                return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consume as confluent_kafka does.

        Among several messages, the one being handled is unknown: name it with `handling`, or as `source` of a record
        that is produced.
        """
        self._end_polled()
        self._poll_and_commit()
        return self._take(super().consume(num_messages, timeout))

    def _poll_and_commit(self) -> None:
        """Call delivery reports and commit: a host that receives no new message may not poll its producers."""
        self._node.poll_producers()
        self._commits.commit_confirmed()

    def _take(self, messages: Sequence[Message]) -> list[Message]:
        handled, handlings = [], []
        for message in messages:
            handling, error = None, message.error()
            if error is None:
                handling = self._node.take(message, self._commits.taken(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._commits.at_end(message)  # markers of transactions take up offsets that no record has
            self._lanes.taken(message)
            if handling is not None:
                handlings.append(handling)
            if handling is not None or error is not None:
                handled.append(message)
        if not self._explicit_done:
            self._polled = handlings
            set_current(*handlings)
        return handled

    # -- the end of a message's handling --------------------------------------------------------------------------

    def done(self, message: Message) -> None:
        """End the handling of this message, from any thread. It is finished once its outputs are acknowledged."""
        handling = self._node.in_flight(message)
        if handling is not None:
            handling.end_handling()

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Handle this message in this thread or task: records produced within the block are its outputs.

        Its handling is over at the end of the block, unless the block raises: then it is not finished, and not
        committed.
        """
        with self._node.handling(message, ends=self._explicit_done):
            yield

    def _end_polled(self) -> None:
        polled, self._polled = self._polled, []
        for handling in polled:
            handling.end_handling()

    def _end_polled_unless_raising(self) -> None:
        """End the handling of polled messages, unless an exception is being handled: then the last message may be half
        done.
        """
        if sys.exc_info()[0] is None:
            self._end_polled()

    # -- commits --------------------------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """End the handling of polled messages and commit finished ones, never more, whatever `message` and `offsets`
        say.

        A synchronous commit waits for the beacons, 5 s at most, and returns the committed offsets. If the node
        observes, commit as confluent_kafka does.
        """
        if self._node.observes:
            if offsets is not None:
                return super().commit(offsets=offsets, asynchronous=asynchronous)
            if message is not None:
                return super().commit(message=message, asynchronous=asynchronous)
            return super().commit(asynchronous=asynchronous)
        self._end_polled()
        if not asynchronous:
            return self._commits.settle()
        self._commits.commit_confirmed()
        return None

    def settle(self) -> None:
        """Commit finished messages, waiting for their beacons for 5 s at most."""
        if not self._is_closed:
            self._end_polled_unless_raising()
            self._commits.settle()

    def _finish(self) -> None:
        """Wait for records in flight and commit finished messages, for some seconds at most."""
        if not self._node.observes:
            self._node.flush_producers(FLUSH_S)
            self._commits.settle()

    def seek(self, partition: TopicPartition) -> None:
        """Seek as confluent_kafka does. What is read again is taken in again: nothing past this offset is committed
        before, and a message that was not finished stays in flight until then.
        """
        super().seek(partition)
        self._commits.rewind(partition)
        self._lanes.seek(partition)

    # -- partitions -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[[Consumer, list[TopicPartition]], None] | None = None,
        on_revoke: Callable[[Consumer, list[TopicPartition]], None] | None = None,
        on_lost: Callable[[Consumer, list[TopicPartition]], None] | None = None,
    ) -> None:
        """Subscribe as confluent_kafka does; lanes and commits follow every rebalance.

        At a revocation the host's hook is called first, then finished messages are committed.
        """

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._lanes.assigned(consumer, partitions)
            if on_assign is not None:
                on_assign(consumer, partitions)

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                if on_revoke is not None:
                    on_revoke(consumer, partitions)
                self._finish()
            finally:
                self._release(partitions)

        def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            hook = on_lost or on_revoke
            try:
                if hook is not None:
                    hook(consumer, partitions)
            finally:
                self._release(partitions)

        self._is_subscribed = True
        super().subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assign as confluent_kafka does; lanes and commits follow."""
        before = [] if self._is_subscribed else self.assignment()
        super().assign(partitions)
        if not self._is_subscribed:
            assigned = {(place.topic, place.partition) for place in partitions}
            self._release([place for place in before if (place.topic, place.partition) not in assigned])
            self._lanes.assigned(self, partitions)

    def _release(self, partitions: list[TopicPartition]) -> None:
        self._commits.drop(partitions)
        self._node.release_partitions(((place.topic, place.partition) for place in partitions), self)
        self._lanes.revoked(self, partitions)

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit finished messages, then close; waits for records in flight for some seconds at most. Idempotent.

        The emitter stays open until the node is closed, or until exit.
        """
        if self._is_closed:
            return
        self._end_polled_unless_raising()
        self._finish()
        self._is_closed = True
        self._lanes.close()
        assignment = self.assignment()
        super().close()
        if not self._explicit_done:
            set_current()  # records produced after this are outputs of no message of ours
        self._node.release_partitions(((place.topic, place.partition) for place in assignment), self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

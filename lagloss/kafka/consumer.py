"""The consumer of a node: observes what comes in, reports its lanes, and commits only what is finished."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer, Message, TopicPartition

from lagloss.kafka.commits import Commits
from lagloss.kafka.in_flight import HANDLER, InFlightMessage, handling_now, set_current
from lagloss.kafka.lanes import KafkaLanes

if TYPE_CHECKING:
    from lagloss.kafka.node import KafkaNode

SLICE_S: Final = 0.5
"""How long a poll waits before it looks again for what may be committed meanwhile."""
BUSY_SLICE_S: Final = 0.02
"""The same while a message is in hand: its `out` is observed when its delivery report is called."""
FLUSH_S: Final = 5.0
"""How long a revocation waits for outputs on their way, so that the next owner repeats less."""
_CONNECTION: Final = ("bootstrap.servers", "security.", "sasl.", "ssl.", "oauth", "client.dns", "broker.address")
"""Properties that the lanes' own connection to the same cluster needs, by how they begin."""


class NodeConsumer(Consumer):
    """A confluent_kafka Consumer; made by `KafkaNode.consumer`.

    In `poll` and `consume` it calls the delivery reports of the node's producers, and commits what is finished. A
    message's own handling is over when the next is polled or consumed, or at a `commit` (unless `explicit_done`).
    """

    def __init__(self, node: KafkaNode, config: Mapping[str, Any], *, explicit_done: bool) -> None:
        super().__init__({**config, "enable.auto.commit": False})
        self._node = node
        self._explicit_done = explicit_done
        self._commits = Commits(self, node.emitter)
        self._lanes = KafkaLanes(
            self,
            f"{node.emitter.node}.in",
            kafka_config={key: value for key, value in config.items() if key.startswith(_CONNECTION)},
        )
        node.emitter.follow(self._lanes)
        self._polled: list[InFlightMessage] = []
        self._is_subscribed = False
        self._is_closed = False

    # -- taking in ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """Poll as confluent_kafka does; the message is taken in, and handled by this thread or task until the next
        call."""
        deadline = float("inf") if timeout is None or timeout < 0 else time.monotonic() + timeout
        self._end_polled()
        while True:
            self._look_back()
            left = deadline - time.monotonic()
            slice_s = BUSY_SLICE_S if self._node.has_work() else SLICE_S
            message = super().poll(max(0.0, min(left, slice_s)))
            if message is not None:
                kept = self._take([message])
                return kept[0] if kept else None
            if left <= slice_s:
                return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consume as confluent_kafka does. Which of several messages is being handled is ambiguous: name it with
        `handling`, or as `source` of what is produced."""
        self._end_polled()
        self._look_back()
        return self._take(super().consume(num_messages, timeout))

    def _look_back(self) -> None:
        """Call pending delivery reports and commit: a host without new messages may not poll its producers."""
        self._node.serve_producers()
        self._commits.commit_confirmed()

    def _take(self, messages: Sequence[Message]) -> list[Message]:
        kept, handlings = [], []
        for message in messages:
            handling = None
            if message.error() is None:
                handling = self._node.take(message, self._commits.taken(message))
            self._lanes.taken(message)
            if handling is not None:
                handlings.append(handling)
            if handling is not None or message.error() is not None:
                kept.append(message)
        if not self._explicit_done:
            self._polled = handlings
            set_current(*handlings)
        return kept

    # -- the end of a message's handling --------------------------------------------------------------------------

    def done(self, message: Message) -> None:
        """End the handling of this message, from any thread. It is finished once its outputs are acknowledged."""
        handling = self._node.in_hand(message)
        if handling is not None:
            handling.over()

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Attribute what this thread or task produces in the block to this message. At the end of the block its
        handling is over; if the block raises, it is not finished and not committed."""
        found = self._node.in_hand(message)
        if found is None:
            yield
            return
        with handling_now(found):
            found.add_output(HANDLER)
            try:
                yield
            except BaseException:
                found.failed(HANDLER)
                raise
            found.acknowledged()
        if self._explicit_done:
            found.over()

    def _end_polled(self) -> None:
        polled, self._polled = self._polled, []
        for handling in polled:
            handling.over()

    def _end_polled_in_good_order(self) -> None:
        """End what was polled, unless an exception is on its way: then it may be half done and is read again."""
        if sys.exc_info()[0] is None:
            self._end_polled()

    # -- commits --------------------------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit what is finished, never more, whatever `message` and `offsets` say. What was polled counts as handled.

        Synchronously it waits for the beacons, 5 s at most, and gives what was committed.
        """
        self._end_polled()
        if not asynchronous:
            return self._commits.settle()
        self._commits.commit_confirmed()
        return None

    def settle(self) -> None:
        """Commit what is finished, waiting for its beacons for 5 s at most."""
        if not self._is_closed:
            self._end_polled_in_good_order()
            self._commits.settle()

    # -- partitions -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[[Consumer, list[TopicPartition]], None] | None = None,
        on_revoke: Callable[[Consumer, list[TopicPartition]], None] | None = None,
        on_lost: Callable[[Consumer, list[TopicPartition]], None] | None = None,
    ) -> None:
        """Subscribe as confluent_kafka does; lanes and commits follow every rebalance. At a revocation the host's hook
        runs first, then what is finished is committed."""

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._lanes.assigned(consumer, partitions)
            if on_assign is not None:
                on_assign(consumer, partitions)

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                if on_revoke is not None:
                    on_revoke(consumer, partitions)
                self._node.flush_producers(FLUSH_S)
                self._commits.settle()
            finally:
                self._let_go(partitions)

        def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            hook = on_lost or on_revoke
            try:
                if hook is not None:
                    hook(consumer, partitions)
            finally:
                self._let_go(partitions)

        self._is_subscribed = True
        super().subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assign as confluent_kafka does."""
        before = [] if self._is_subscribed else self.assignment()
        super().assign(partitions)
        if not self._is_subscribed:
            kept = {(place.topic, place.partition) for place in partitions}
            self._let_go([place for place in before if (place.topic, place.partition) not in kept])
            self._lanes.assigned(self, partitions)

    def _let_go(self, partitions: list[TopicPartition]) -> None:
        self._commits.drop(partitions)
        self._node.give_away((place.topic, place.partition) for place in partitions)
        self._lanes.revoked(self, partitions)

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is finished, then close; wait some seconds at most for what is on its way. Idempotent. The
        emitter continues until the node is closed, or to the end of the process."""
        if self._is_closed:
            return
        self._end_polled_in_good_order()
        self._node.flush_producers(FLUSH_S)
        self._commits.settle()
        self._is_closed = True
        self._lanes.close()
        held = self.assignment()
        super().close()
        if not self._explicit_done:
            set_current()  # nothing any more: what is produced after this belongs to no message of ours
        self._node.give_away((place.topic, place.partition) for place in held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""What nodes between Kafka topics do alike, whichever client they use: which messages are in flight, and how they exit.

`R` is a record as the client has it: confluent_kafka's Message, aiokafka's ConsumerRecord.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar

from lagloss.broker.connection import Cluster
from lagloss.checksums import Checksums, Payload
from lagloss.identity import Carrier, Identities, Identity, Missing, Source, from_headers
from lagloss.kafka.commits import Partition, Taken
from lagloss.kafka.in_flight import BATCH, HANDLER, InFlightMessage, current, handling_now
from lagloss.sdk.emitter import Emitter

R = TypeVar("R")

MAX_AWAITED: Final = 10_000
"""Messages whose exit an observing node waits for. Beyond that the oldest stays in flight for as long as the process
lives, and so stands for all that follow it."""

RecordPosition = tuple[Partition, int]
"""A record's partition and offset."""


class BaseNode(ABC, Generic[R]):
    """One process of a node. It owns the emitter.

    A message is *finished* when its own handling is over and every output that was produced for it is acknowledged; the
    offset is committed once all before it are finished, too, and their beacons are acknowledged. So a crash makes
    duplicates, never holes.

    With `observe` the host commits as it likes, and may use transactions. What is committed then proves nothing, so a
    message is in flight until it has left: until its `out`, `filtered` or `dead` is observed. A message without one is
    pending at this node, then overdue, and never lost for certain.

    Args:
        pipeline: the pipeline's name.
        node: this node's name.
        bootstrap: Kafka's HOST:PORT,... for beacons; by default LAGLOSS_KAFKA_BOOTSTRAP.
        first: True at the pipeline's first node: a message that its producers send without having taken one in comes
            in here.
        identity: finds a message's id and event time; see `lagloss.identity`.
        missing: the treatment of a message without identity.
        checksum: send the CRC-32C of each record's value: with `in` of what was received, with `out` of what was
            produced. A message whose value differs from what the node before sent is corrupted on the link between
            them, so both of its nodes have to send checksums. Needs the extra `checksum`.
        order: judge the order of messages, by event time: "key" among records with the same key of a topic (those
            without one are not judged), "partition" among all of a partition; of what is taken in, and of what is
            sent out in the order in which it is acknowledged. See `Emitter.received`.
        observe: leave commits and transactions to the host.
        emitter: an existing emitter of this node, instead of one made here.
        options: more options of the `Emitter` that is made.

    Raises:
        ValueError: for malformed names, an unknown `missing` or `order`.
        ImportError: for `checksum` without its extra.
    """

    def __init__(
        self,
        pipeline: str,
        node: str,
        bootstrap: Cluster | None = None,
        *,
        first: bool = False,
        identity: Source = from_headers,
        missing: Missing = "skip",
        checksum: bool = False,
        order: Literal["key", "partition"] | None = None,
        observe: bool = False,
        emitter: Emitter | None = None,
        **options: Any,
    ) -> None:
        self._checksums = Checksums() if checksum else None
        if order not in (None, "key", "partition"):
            raise ValueError(f'expected order to be "key" or "partition", found {order!r}')
        self._order = order
        self.observes = observe
        """Whether the host commits by itself."""
        self.identities = Identities(identity, missing, first=emitter.first if emitter is not None else first)
        # Messages that a consumer took in and did not commit are taken in again; those that a first node made are not,
        # nor those that a host committed before their beacons were acknowledged.
        options = {"resumes": not first and not observe, **options}
        self.emitter = emitter or Emitter(pipeline, node, bootstrap, first=first, **options)
        self.emitter.close_unfinished_if(self.has_unfinished)
        self.identities.reads_traces = self.emitter.keeps_traces
        self._in_flight: dict[RecordPosition, InFlightMessage] = {}
        self._released: dict[RecordPosition, tuple[object, InFlightMessage]] = {}
        """Messages of partitions that are another consumer's, each with the consumer that gave its partition up."""
        self._never_left: InFlightMessage | None = None
        """The oldest message whose exit is no longer waited for."""

    # -- the client's records -----------------------------------------------------------------------------------------

    @abstractmethod
    def place_of(self, record: R) -> RecordPosition:
        """Return the partition and offset of a record that was read."""

    @abstractmethod
    def carrier_of(self, record: R) -> Carrier:
        """Return the parts of a record in which an identity is searched."""

    @abstractmethod
    def record_key_of(self, record: R) -> str | bytes | None:
        """Return a record's key."""

    @abstractmethod
    def value_of(self, record: R) -> str | bytes | None:
        """Return a record's value."""

    @property
    def skipped(self) -> int:
        """Messages without a usable id and event time so far, taken in or produced; they send no beacon."""
        return self.identities.skipped

    # -- exits of a message that no producer reports ------------------------------------------------------------------

    def sent(self, message: R | Identity, to: str | None = None, *, payload: str | bytes | None = None) -> None:
        """Report that the sink has acknowledged the message; `payload`: what was sent, for its checksum."""
        key = None if isinstance(message, Identity) else self.key_of(message)
        self._exit(message, partial(self.emitter.sent, to=to, key=key, **self.payload_of(payload)))

    def filtered(self, message: R | Identity, reason: str) -> None:
        """Report that the message was dropped on purpose, or handed back with an error; its failed outputs no longer
        count.
        """
        self._exit(message, partial(self.emitter.filtered, reason=reason))
        self._discard_failed(message)

    def dead_lettered(self, message: R | Identity, reason: str) -> None:
        """Report that the message is in a dead-letter queue; its failed outputs no longer count.

        If that queue is a topic, pass `dead_lettered=reason` to the producer instead, which reports it once the broker
        has the record.
        """
        self._exit(message, partial(self.emitter.dead_lettered, reason=reason))
        self._discard_failed(message)

    @contextlib.contextmanager
    def batch(self, messages: Iterable[R], to: str | None = None) -> Iterator[None]:
        """Send these messages out in one acknowledged request: at the end of the block, all of them are out.

        If the block raises, none is out and none is finished: nothing is committed past the first of them. Send them
        again in another block, or let the process end; the next one takes them in again.
        """
        batch = list(messages)
        handlings = [handling for message in batch if (handling := self.in_flight(message)) is not None]
        for handling in handlings:
            handling.add_output(BATCH)
        try:
            yield
        except BaseException:
            for handling in handlings:
                handling.failed(BATCH)
            raise
        for message in batch:
            self.sent(message, to)
        for handling in handlings:
            handling.acknowledged()

    def _exit(self, message: R | Identity, method: Callable[..., bool]) -> None:
        handling = self._handling_of(message)
        if isinstance(message, Identity):
            identity: Identity | None = message
        else:
            identity = handling.identity if handling is not None else self.identity_of(message)
        if identity is not None:
            identity.report(method)
        if handling is not None:
            handling.exited()

    def _discard_failed(self, message: R | Identity) -> None:
        handling = None if isinstance(message, Identity) else self.in_flight(message)
        if handling is not None:
            handling.discard_failed()

    def _handling_of(self, message: R | Identity) -> InFlightMessage | None:
        """Return a message's state in flight; of an identity, only if this thread or task handles it."""
        if not isinstance(message, Identity):
            return self.in_flight(message)
        handlings = current(self.emitter)
        same = (handling for handling in handlings if handling.identity and handling.identity.is_same_message(message))
        return next(same, None)

    # -- messages in flight, for consumers and producers ------------------------------------------------------------

    def polled(self) -> tuple[InFlightMessage, ...]:
        """Return the messages that an output without a source belongs to, in a thread or task that handles none."""
        return ()

    def take(self, message: R, taken: Taken) -> InFlightMessage | None:
        """Put the message in flight and send its `in`; return None if a `missing` function has dealt with it."""
        place = self.place_of(message)
        earlier = self._unfinished(place)  # it is read again: after a seek, or after two rebalances

        def finished() -> None:
            taken.done()
            if self._in_flight.get(place) is handling:
                self._in_flight.pop(place, None)
            elif self._released.get(place, (None, None))[1] is handling:
                self._released.pop(place, None)

        handling = InFlightMessage(self.emitter, None, is_redelivered=True, finished=finished)
        self._in_flight.pop(place, None)  # so that the newest are last
        self._in_flight[place] = handling
        is_handed_over = self.identities.is_handed_over
        if is_handed_over:
            with handling_now(handling):  # the function's outputs are this message's
                handling.identity = self.identities.of(self.carrier_of(message))
        else:
            handling.identity = self.identities.of(self.carrier_of(message))
        if self.observes and handling.identity is not None:
            handling.await_exit()
        handling.received(self.key_of(message), **self.payload_of(self.value_of(message)))
        if earlier is not None:
            self._released.pop(place, None)
            earlier.abandon()
        if is_handed_over and handling.identity is None:
            handling.end_handling()
            return None
        if self.observes and len(self._in_flight) > MAX_AWAITED:
            self._stop_awaiting_oldest()
        return handling

    def _stop_awaiting_oldest(self) -> None:
        """Forget the oldest tenth, but for the oldest of all."""
        for place in list(self._in_flight)[: MAX_AWAITED // 10]:
            oldest = self._in_flight.pop(place, None)
            if oldest is not None and oldest.is_work and self._never_left is None:
                self._never_left = oldest
            elif oldest is not None:
                oldest.abandon()

    @contextlib.contextmanager
    def handling(self, message: R, *, ends: bool) -> Iterator[None]:
        """Handle this message in this thread or task: records produced within the block are its outputs.

        Unless the block raises, its handling is over at the end if it `ends` there.
        """
        message_in_flight = self.in_flight(message)
        if message_in_flight is None:
            yield
            return
        with handling_now(message_in_flight):
            message_in_flight.add_output(HANDLER)
            try:
                yield
            except BaseException:
                message_in_flight.failed(HANDLER)
                raise
            message_in_flight.acknowledged()
        if ends:
            message_in_flight.end_handling()

    @property
    def sends_checksums(self) -> bool:
        """Whether beacons carry checksums."""
        return self._checksums is not None

    def payload_of(self, value: str | bytes | None) -> Payload:
        """Return the checksum and size of a record's value, as an emitter takes them; nothing if none are sent."""
        return {} if self._checksums is None else self._checksums.of(value)

    def key_of(self, record: R) -> str | bytes | None:
        """Return within what the order of a record is judged; None if it is not."""
        if self._order is None:
            return None
        (topic, partition), _ = self.place_of(record)
        return self.order_key(topic, partition, self.record_key_of(record))

    def order_key(self, topic: str, partition: int, key: str | bytes | None) -> str | bytes | None:
        """Return within what the order of a record of this partition, with this key, is judged; None if it is not."""
        if self._order == "partition":
            return f"{topic}/{partition}"
        if self._order is None or key is None:
            return None
        return f"{topic}/".encode() + (key.encode() if isinstance(key, str) else key)

    def in_flight(self, message: R) -> InFlightMessage | None:
        """Return this message's state in flight; None if it is finished."""
        return self._unfinished(self.place_of(message))

    def _unfinished(self, place: RecordPosition) -> InFlightMessage | None:
        return self._in_flight.get(place) or self._released.get(place, (None, None))[1]

    def identity_of(self, message: R) -> Identity | None:
        """Return the identity under which this message was taken in, or else the one that it carries."""
        handling = self.in_flight(message)
        return handling.identity if handling is not None else self.identities.find(self.carrier_of(message))

    def release_partitions(self, partitions: Iterable[Partition], consumer: object) -> None:
        """Give up messages of these partitions of this consumer, which are another one's to finish.

        Until they are finished here, too, they stay in flight until another consumer of the group has committed them,
        however late it takes them in: ended before, they would be in, not out, and in flight nowhere, and so lost for
        certain. If the host commits by itself, a commit proves nothing: they stay in flight for as long as it takes.
        """
        if self.observes:
            return
        gone = set(partitions)
        for place, handling in list(self._in_flight.items()):
            if place[0] in gone:
                self._in_flight.pop(place, None)
                self._released[place] = (consumer, handling)

    def handed_over(self, consumer: object) -> set[Partition]:
        """Return the partitions that this consumer gave up with messages in flight, of which no commit is known."""
        return {place[0] for place, (owner, _) in list(self._released.items()) if owner is consumer}

    def end_handovers(self, consumer: object, committed: Mapping[Partition, int]) -> None:
        """End the messages that this consumer gave up and its group has committed: `committed` is the next offset to
        read of each partition."""
        for place, (owner, handling) in list(self._released.items()):
            partition, offset = place
            if owner is consumer and offset < committed.get(partition, 0):
                self._released.pop(place, None)
                handling.abandon()

    def has_work(self) -> bool:
        """Return True while a message is in flight."""
        return bool(self._in_flight)

    def has_unfinished(self) -> bool:
        """Return True while a message is in flight here that has not left, even if its partition was given up."""
        released = [handling for _, handling in list(self._released.values())]
        never_left = [] if self._never_left is None else [self._never_left]
        return any(handling.is_work for handling in (*list(self._in_flight.values()), *released, *never_left))

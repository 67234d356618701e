"""A service between Kafka topics as a node, whose consumers and producers send the beacons.

    with KafkaNode("orders", "enrich") as node:
        consumer, producer = node.consumer({...}), node.producer({...})

The rest of the service stays as it was: `consumer` and `producer` are confluent_kafka's, with the same methods.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self

from confluent_kafka import Message

from lagloss.broker.connection import Cluster
from lagloss.broker.headers import headers_of
from lagloss.checksums import Checksums, Payload
from lagloss.identity import Carrier, Identities, Identity, Missing, Source, from_headers, mapping_of
from lagloss.kafka.commits import Partition, Taken, place_of
from lagloss.kafka.consumer import NodeConsumer
from lagloss.kafka.in_flight import BATCH, InFlightMessage, handling_now
from lagloss.kafka.producer import NodeProducer
from lagloss.sdk.emitter import Emitter

__all__ = ["KafkaNode", "NodeConsumer", "NodeProducer", "carrier_of"]

CLOSE_S: Final = 10.0
HANDOVER_S: Final = 30.0
"""By then a partition's new owner has taken in what its last one had in flight, or the group has no owner for it."""

RecordPosition = tuple[Partition, int]
"""A record's partition and offset."""


class KafkaNode:
    """One process of a node that reads from Kafka, writes to Kafka, or both. It owns the emitter.

    A message is *finished* when its own handling is over and every output that was produced for it is acknowledged; the
    offset is committed once all before it are finished, too, and their beacons are acknowledged. So a crash makes
    duplicates, never holes.

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
        emitter: Emitter | None = None,
        **options: Any,
    ) -> None:
        self._checksums = Checksums() if checksum else None
        if order not in (None, "key", "partition"):
            raise ValueError(f'expected order to be "key" or "partition", found {order!r}')
        self._order = order
        self.identities = Identities(identity, missing, first=emitter.first if emitter is not None else first)
        # Messages that a consumer took in and did not commit are taken in again; those that a first node made are not.
        self.emitter = emitter or Emitter(pipeline, node, bootstrap, first=first, **{"resumes": not first, **options})
        self.identities.reads_traces = self.emitter.keeps_traces
        self._consumers: list[NodeConsumer] = []
        self._producers: list[NodeProducer] = []
        self._in_flight: dict[RecordPosition, InFlightMessage] = {}
        self._released: dict[RecordPosition, tuple[float, InFlightMessage]] = {}
        """Messages of partitions that are another consumer's, and until when they stay in flight here if unfinished."""

    @property
    def skipped(self) -> int:
        """Messages without a usable id and event time so far, taken in or produced; they send no beacon."""
        return self.identities.skipped

    # -- clients --------------------------------------------------------------------------------------------------

    def consumer(self, config: Mapping[str, Any], *, explicit_done: bool = False) -> NodeConsumer:
        """Make a confluent_kafka Consumer that sends beacons for the messages it reads; `enable.auto.commit` is
        overridden.

        Args:
            config: as for confluent_kafka's.
            explicit_done: a message's handling is over at `consumer.done(message)`, or at the end of `with
                consumer.handling(message)`, and not when the next one is polled: for hosts that collect messages, or
                hand them to threads or tasks.
        """
        consumer_ = NodeConsumer(self, config, explicit_done=explicit_done)
        self._consumers.append(consumer_)
        return consumer_

    def producer(
        self, config: Mapping[str, Any], *, next_nodes: Mapping[str, str] | None = None, polls: bool = False
    ) -> NodeProducer:
        """Make a confluent_kafka Producer that sends the beacon of a message once its record is acknowledged.

        Args:
            config: as for confluent_kafka's.
            next_nodes: if the node has several next nodes, the reader of each topic. A record to a topic that is not
                named is no `out`. Without it, every record is an `out` to the one next node.
            polls: start a thread that waits for delivery reports, for services without a loop that calls `poll`.

        Raises:
            ValueError: for a transactional producer: an acknowledged record may still be aborted.
        """
        producer_ = NodeProducer(self, config, next_nodes, polls=polls)
        self._producers.append(producer_)
        return producer_

    # -- exits of a message that no producer reports ------------------------------------------------------------------

    def sent(self, message: Message | Identity, to: str | None = None, *, payload: str | bytes | None = None) -> None:
        """Report that the sink has acknowledged the message; `payload`: what was sent, for its checksum."""
        key = None if isinstance(message, Identity) else self.key_of(message)
        self._exit(message, partial(self.emitter.sent, to=to, key=key, **self.payload_of(payload)))

    def filtered(self, message: Message | Identity, reason: str) -> None:
        """Report that the message was dropped on purpose, or handed back with an error; its failed outputs no longer
        count.
        """
        self._exit(message, partial(self.emitter.filtered, reason=reason))
        self._discard_failed(message)

    def dead_lettered(self, message: Message | Identity, reason: str) -> None:
        """Report that the message is in a dead-letter queue; its failed outputs no longer count.

        If that queue is a topic, use `producer.produce(topic, ..., dead_lettered=reason)`, which reports it once the
        broker has the record.
        """
        self._exit(message, partial(self.emitter.dead_lettered, reason=reason))
        self._discard_failed(message)

    @contextlib.contextmanager
    def batch(self, messages: Iterable[Message], to: str | None = None) -> Iterator[None]:
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

    def _exit(self, message: Message | Identity, method: Callable[..., bool]) -> None:
        identity = message if isinstance(message, Identity) else self.identity_of(message)
        if identity is not None:
            identity.report(method)

    def _discard_failed(self, message: Message | Identity) -> None:
        handling = None if isinstance(message, Identity) else self.in_flight(message)
        if handling is not None:
            handling.discard_failed()

    # -- messages in flight, for consumers and producers ------------------------------------------------------------

    def take(self, message: Message, taken: Taken) -> InFlightMessage | None:
        """Put the message in flight and send its `in`; return None if a `missing` function has dealt with it."""
        place = place_of(message)
        earlier = self._unfinished(place)  # it is read again: after a seek, or after two rebalances

        def finished() -> None:
            taken.done()
            if self._in_flight.get(place) is handling:
                self._in_flight.pop(place, None)
            elif self._released.get(place, (0, None))[1] is handling:
                self._released.pop(place, None)

        handling = InFlightMessage(self.emitter, None, is_redelivered=True, finished=finished)
        self._in_flight[place] = handling
        is_handed_over = self.identities.is_handed_over
        if is_handed_over:
            with handling_now(handling):  # the function's outputs are this message's
                handling.identity = self.identities.of(carrier_of(message))
        else:
            handling.identity = self.identities.of(carrier_of(message))
        handling.received(self.key_of(message), **self.payload_of(message.value()))
        if earlier is not None:
            self._released.pop(place, None)
            earlier.abandon()
        if is_handed_over and handling.identity is None:
            handling.end_handling()
            return None
        return handling

    def payload_of(self, value: str | bytes | None) -> Payload:
        """Return the checksum and size of a record's value, as an emitter takes them; nothing if none are sent."""
        return {} if self._checksums is None else self._checksums.of(value)

    def key_of(self, record: Message) -> str | bytes | None:
        """Return within what the order of a record is judged; None if it is not."""
        if self._order is None:
            return None
        if self._order == "partition":
            return f"{record.topic()}/{record.partition()}"
        key: str | bytes | None = record.key()
        if key is None:
            return None
        return f"{record.topic()}/".encode() + (key.encode() if isinstance(key, str) else key)

    def in_flight(self, message: Message) -> InFlightMessage | None:
        """Return this message's state in flight; None if it is finished."""
        return self._unfinished(place_of(message))

    def _unfinished(self, place: RecordPosition) -> InFlightMessage | None:
        return self._in_flight.get(place) or self._released.get(place, (0, None))[1]

    def identity_of(self, message: Message) -> Identity | None:
        """Return the identity under which this message was taken in, or else the one that it carries."""
        handling = self.in_flight(message)
        return handling.identity if handling is not None else self.identities.find(carrier_of(message))

    def release_partitions(self, partitions: Iterable[Partition]) -> None:
        """Give up messages of these partitions, which are another consumer's to finish.

        Until they are finished here, too, they stay in flight for HANDOVER_S: ended at once, they would be in, not out,
        and in flight nowhere until the other consumer has taken them in, and so lost for certain.
        """
        gone, until_s = set(partitions), time.monotonic() + HANDOVER_S
        for place, handling in list(self._in_flight.items()):
            if place[0] in gone:
                self._in_flight.pop(place, None)
                self._released[place] = (until_s, handling)

    def has_work(self) -> bool:
        """Return True while a message is in flight."""
        return bool(self._in_flight)

    def _has_unfinished(self) -> bool:
        released = [handling for _, handling in list(self._released.values())]
        return any(handling.is_work for handling in (*self._in_flight.values(), *released))

    def poll_producers(self) -> None:
        """Call the delivery reports that have arrived, and end what another consumer has taken in by now."""
        for place, (until_s, handling) in list(self._released.items()) if self._released else ():
            if until_s <= time.monotonic():
                self._released.pop(place, None)
                handling.abandon()
        for producer in self._producers:
            producer.poll(0)

    def flush_producers(self, timeout_s: float) -> None:
        """Wait for outstanding delivery reports."""
        deadline = time.monotonic() + timeout_s
        for producer in self._producers:
            producer.flush(max(0.0, deadline - time.monotonic()))

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Close everything in the right order: wait for records in flight, commit finished messages, close the emitter,
        then the consumers. Idempotent.

        A message that is not finished is another process's to do again: the emitter then ends without reporting that
        nothing is in flight, so that the message is late and not lost.

        Returns:
            False if the broker did not acknowledge the emitter's last report.
        """
        self.flush_producers(timeout_s)
        for consumer in self._consumers:
            consumer.settle()
        ended = self.emitter.close(finished=not self._has_unfinished())
        for consumer in self._consumers:
            consumer.close()
        for producer in self._producers:
            producer.stop_polling()
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def carrier_of(message: Message) -> Carrier:
    """Return the parts of a Kafka message in which an identity is searched; unreadable headers are none."""
    return Carrier(mapping_of(headers_of(message)), message.value() or b"", message)

"""The pipeline's own Kafka: its topics, how its clients are set up, and how far a consumer group has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from pipeline_under_test.event import Event
from pipeline_under_test.topology import (
    CONSUMERS,
    dead_topic,
    group_of,
    routes_topic,
    schemas_topic,
    tier_topic,
    tiers_group,
    topic_of,
)

log = logging.getLogger(__name__)

PARTITIONS: Final = 3
MAX_COPIES: Final = 3
ADMIN_TIMEOUT_S: Final = 15.0
MAX_IN_FLIGHT: Final = 10_000
"""Unacknowledged records a producer may have before its node stops taking in more."""
PREFETCHED_KB: Final = 8_192
"""What a consumer may have fetched and not read: what waits belongs in the topic, not in memory."""
RETRY_S: Final = 0.5
NEVER_TAKEN: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Errors that another try cannot end: they are the record's."""


def create_topics(bootstrap: str, pipeline: str, tiers_s: Iterable[float]) -> None:
    """Creates the pipeline's topics where they are missing: each record on three brokers where there are so many, and
    acknowledged by two of them.

    They are stamped with the append time: how far a lane has been taken in is measured in times of the broker's clock.

    Raises:
        KafkaException: if the broker cannot be reached or refuses.
    """
    streams = [topic_of(pipeline, node) for node in CONSUMERS] + [dead_topic(pipeline)]
    create_streams(bootstrap, [*streams, *(tier_topic(pipeline, seconds) for seconds in tiers_s)])
    tables = (routes_topic(pipeline), schemas_topic(pipeline))
    _create(bootstrap, tables, 1, {"cleanup.policy": "compact"})


def create_streams(bootstrap: str, topics: Iterable[str]) -> None:
    """Creates these topics of events where they are missing; likewise."""
    _create(bootstrap, topics, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})


def _create(bootstrap: str, names: Iterable[str], partitions: int, config: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    copies = min(MAX_COPIES, len(admin.list_topics(timeout=ADMIN_TIMEOUT_S).brokers))
    config = {"min.insync.replicas": str(max(1, copies - 1)), **config}
    topics = [NewTopic(name, partitions, copies, config=config) for name in names]
    for future in admin.create_topics(topics, operation_timeout=ADMIN_TIMEOUT_S).values():
        try:
            future.result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            reason = error.args[0]
            if not isinstance(reason, KafkaError) or reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def consumer_for(bootstrap: str, group: str, client_id: str, **more: Any) -> Consumer:
    """A consumer that forgets nothing: it begins at the oldest record and commits only when it is told to. It reads no
    record of a transaction that is not committed."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": client_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,  # transactions leave markers behind, which only this tells of
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6_000,  # a killed process's partitions are taken over after this
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": PREFETCHED_KB,
            **more,
        }
    )


def producer_config(bootstrap: str, client_id: str) -> dict[str, Any]:
    """A producer whose acknowledgement means that every in-sync replica has the record, once and in order."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "compression.type": "lz4",
    }


Content = tuple[Any, Any, Any]
"""A record's value, key and headers, as the client library gives and takes them."""
Acknowledged = Callable[[], None]
Rejected = Callable[[str], None]


def is_fatal(error: KafkaError) -> bool:
    """Whether a client is at its end with this. A delivery report says so by its code alone."""
    return error.fatal() or error.code() == KafkaError._FATAL


def _never(reason: str) -> None:
    raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, reason))


class ReliableProducer:
    """Sends events until they are acknowledged; a record that the client library gave up on is sent again."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._producer = Producer(producer_config(bootstrap, client_id))
        self._again: list[tuple[float, Callable[[], None]]] = []
        self.in_flight = 0

    def send(self, topic: str, event: Event, acknowledged: Acknowledged, rejected: Rejected = _never) -> None:
        """Sends `event`; `acknowledged` is called from `poll`, once all in-sync replicas have it, or `rejected` with
        the reason, from here or from `poll`, if no broker will ever take it: where that cannot be, an error."""
        self._send(topic, (event.body, event.id.encode(), event.headers()), acknowledged, rejected)

    def forward(self, topic: str, record: Message, acknowledged: Acknowledged) -> None:
        """Sends a record that was read elsewhere as it is; likewise."""
        self._send(topic, (record.value(), record.key(), record.headers()), acknowledged, _never)

    def _send(self, topic: str, content: Content, acknowledged: Acknowledged, rejected: Rejected) -> None:
        self.in_flight += 1
        self._produce(topic, content, acknowledged, rejected)

    def _produce(self, topic: str, content: Content, acknowledged: Acknowledged, rejected: Rejected) -> None:
        value, key, headers = content

        def ended(error: KafkaError | None) -> None:
            self.in_flight -= 1
            if error is None:
                acknowledged()
            else:
                rejected(f"not taken by {topic}: {error.str()}")

        def report(error: KafkaError | None, _record: Message) -> None:
            if error is None or error.code() in NEVER_TAKEN:
                ended(error)
                return
            if is_fatal(error):  # the idempotent producer cannot go on; what is not committed is read again
                raise KafkaException(error)
            log.warning("sending %s to %s again: %s", key, topic, error)
            self._again.append((time.monotonic() + RETRY_S, produce))

        def produce() -> None:
            self._produce(topic, content, acknowledged, rejected)

        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=report)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as refusal:
                error = refusal.args[0]
                if not isinstance(error, KafkaError) or error.code() not in NEVER_TAKEN:
                    raise
                ended(error)
                return

    def poll(self, timeout_s: float = 0.0) -> None:
        """Handles what the broker answered, waiting up to `timeout_s` for the first answer."""
        self._producer.poll(timeout_s)
        now = time.monotonic()
        due = [produce for at, produce in self._again if at <= now]
        self._again = [(at, produce) for at, produce in self._again if at > now]
        for produce in due:
            produce()

    @property
    def ready(self) -> bool:
        return self.in_flight < MAX_IN_FLIGHT


class GroupWatcher:
    """Looks at consumer groups from outside."""

    def __init__(self, bootstrap: str, pipeline: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._pipeline = pipeline

    def backlog(self, node: str) -> int:
        """Records in the node's topic that it has not committed: 0 once all it was sent is done and accounted for."""
        return self._left([topic_of(self._pipeline, node)], group_of(self._pipeline, node))

    def waiting(self, tiers_s: Iterable[float]) -> int:
        """Records that wait in the global retrier's tiers."""
        topics = [tier_topic(self._pipeline, seconds) for seconds in tiers_s]
        return self._left(topics, tiers_group(self._pipeline)) if topics else 0

    def _left(self, topics: Collection[str], group: str) -> int:
        places = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        ends = self._ask("list_offsets", {place: OffsetSpec.latest() for place in places})
        committed = self._ask("list_consumer_group_offsets", [ConsumerGroupTopicPartitions(group, places)])[group]
        done = {(place.topic, place.partition): max(place.offset, 0) for place in committed.topic_partitions}
        return sum(end.offset - done.get((place.topic, place.partition), 0) for place, end in ends.items())

    def all_assigned(self, nodes: Collection[str]) -> bool:
        """Whether every one of these nodes has consumers that have all the partitions between them."""
        try:
            groups = self._ask("describe_consumer_groups", [group_of(self._pipeline, node) for node in nodes])
        except KafkaException:  # a group that nobody has joined yet may be unknown
            return False
        return all(
            sum(len(member.assignment.topic_partitions) for member in group.members if member.assignment) == PARTITIONS
            for group in groups.values()
        )

    def _ask(self, what: str, about: object) -> dict[Any, Any]:
        """A question to the broker. Untyped: the stubs of these calls leave out that each answer is a future."""
        futures: dict[Any, Any] = getattr(self._admin, what)(about)
        return {key: future.result(ADMIN_TIMEOUT_S) for key, future in futures.items()}

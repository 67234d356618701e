"""The pipeline's own Kafka: its topics, how its clients are set up, and how far a consumer group has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
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

from lagloss.commits import Partition
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
    create_streams(bootstrap, _streams(pipeline, tiers_s))
    _create(bootstrap, _tables(pipeline), 1, {"cleanup.policy": "compact"})


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


def delete_topics(bootstrap: str, pipeline: str, tiers_s: Iterable[float]) -> None:
    """Deletes the topics that `create_topics` created, and all that is in them.

    Raises:
        KafkaException: if the broker cannot be reached or refuses.
    """
    names = [*_streams(pipeline, tiers_s), *_tables(pipeline)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics(names, operation_timeout=ADMIN_TIMEOUT_S).values():
        future.result(ADMIN_TIMEOUT_S)


def _streams(pipeline: str, tiers_s: Iterable[float]) -> list[str]:
    topics = [topic_of(pipeline, node) for node in CONSUMERS] + [dead_topic(pipeline)]
    return topics + [tier_topic(pipeline, seconds) for seconds in tiers_s]


def _tables(pipeline: str) -> list[str]:
    return [routes_topic(pipeline), schemas_topic(pipeline)]


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


@dataclass(frozen=True, slots=True)
class Position:
    """How far a consumer group has come: each partition's end, and the offset up to which it has committed."""

    ends: Mapping[Partition, int]
    committed: Mapping[Partition, int]

    @property
    def backlog(self) -> int:
        """Records that are not committed: 0 once all is done and accounted for."""
        return sum(self.ends.values()) - sum(self.committed.values())


class GroupWatcher:
    """Looks at consumer groups from outside. Each method is one round of questions to the broker, asked all at once.

    They raise KafkaException if it does not answer in time.
    """

    def __init__(self, bootstrap: str, pipeline: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._pipeline = pipeline

    def positions(self, nodes: Iterable[str] = CONSUMERS) -> dict[str, Position]:
        """How far each of these nodes has come in its topic."""
        found = self._positions({group_of(self._pipeline, node): [topic_of(self._pipeline, node)] for node in nodes})
        return {node: found[group_of(self._pipeline, node)] for node in nodes}

    def left(self, tiers_s: Iterable[float]) -> int:
        """Records that are not done anywhere: in the nodes' topics, and in the global retrier's tiers."""
        topics = {group_of(self._pipeline, node): [topic_of(self._pipeline, node)] for node in CONSUMERS}
        tiers = [tier_topic(self._pipeline, seconds) for seconds in tiers_s]
        if tiers:
            topics[tiers_group(self._pipeline)] = tiers
        return sum(position.backlog for position in self._positions(topics).values())

    def _positions(self, topics: Mapping[str, Collection[str]]) -> dict[str, Position]:
        """By consumer group, how far it has come in its topics."""
        places = {
            group: [TopicPartition(topic, number) for topic in names for number in range(PARTITIONS)]
            for group, names in topics.items()
        }
        latest = {place: OffsetSpec.latest() for of_group in places.values() for place in of_group}
        ends_asked = self._asked("list_offsets", latest)
        committed_asked: dict[Any, Any] = {}
        for group, of_group in places.items():  # the client takes one group a call
            asked = [ConsumerGroupTopicPartitions(group, of_group)]
            committed_asked |= self._asked("list_consumer_group_offsets", asked)
        ends = {_key(place): answer.offset for place, answer in _answers(ends_asked).items()}
        committed = {
            _key(place): max(place.offset, 0)  # negative: none yet
            for answer in _answers(committed_asked).values()
            for place in answer.topic_partitions
        }
        return {
            group: Position(
                {_key(place): ends[_key(place)] for place in of_group},
                {_key(place): committed[_key(place)] for place in of_group},
            )
            for group, of_group in places.items()
        }

    def all_assigned(self, nodes: Collection[str]) -> bool:
        """Whether every one of these nodes has consumers that have all the partitions between them."""
        try:
            names = [group_of(self._pipeline, node) for node in nodes]
            groups = _answers(self._asked("describe_consumer_groups", names))
        except KafkaException:  # a group that nobody has joined yet may be unknown
            return False
        return all(
            sum(len(member.assignment.topic_partitions) for member in group.members if member.assignment) == PARTITIONS
            for group in groups.values()
        )

    def _asked(self, what: str, about: object) -> dict[Any, Any]:
        """A question on its way. Untyped: the stubs of these calls leave out that each answer is a future."""
        futures: dict[Any, Any] = getattr(self._admin, what)(about, request_timeout=ADMIN_TIMEOUT_S)
        return futures


def _answers(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    return {about: future.result() for about, future in futures.items()}


def _key(place: TopicPartition) -> Partition:
    return place.topic, place.partition

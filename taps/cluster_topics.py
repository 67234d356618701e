"""The topics of one cluster as its brokers hold them, looked at once per turn for all taps of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import NOT_ALLOWED, NOT_SUPPORTED, BrokerRefusals, has_stale_metadata, kafka_error, needs
from lagloss.broker.partition_bounds import Key
from lagloss.broker.topics import allows_unclean_election
from taps.plan import Look, PartitionLog

TURN_S: Final = 1.0
"""Between two looks at topics that have no more records."""
TIMEOUT_S: Final = 10.0
ENDS_TIMEOUT_S: Final = 3.0
"""Shorter: a partition without a leader keeps the answer for the others back for so long."""
WANTED_S: Final = 5.0
"""How long a topic is looked at after a tap has asked for it: taps that wait out an outage ask less often."""

WATCHING: Final = {
    "client.id": "lagloss-taps",
    "log_level": 0,
    "group.id": "lagloss-taps",  # the client wants one
    "isolation.level": "read_uncommitted",
}
"""Properties of the client that asks for ends."""

_Found = TypeVar("_Found")


class TopicIs(NamedTuple):
    """A topic's id, which is another one once it was created anew, and its partitions; `leaderless`: those of them that
    no broker leads at present."""

    topic_id: str
    partitions: tuple[int, ...]
    leaderless: frozenset[int] = frozenset()

    def led(self, requested: Collection[int] | None) -> tuple[int, ...]:
        """Return the wanted partitions that can be asked; none if all are wanted, and some cannot."""
        if requested is None:
            return () if self.leaderless else self.partitions
        return tuple(partition for partition in requested if partition not in self.leaderless)


@dataclass(frozen=True, slots=True)
class SharedLook:
    """A look at a topic that several taps may plan by. `asked_at`: monotonic s, before the brokers were asked."""

    topic_id: str
    look: Look
    asked_at: float


class TopicEnds(NamedTuple):
    """The ends of partitions between `at_ms`, when the brokers were asked (monotonic s: `asked_at`), and `by_ms`, when
    they had answered."""

    at_ms: int
    by_ms: int
    asked_at: float
    offsets: Mapping[Key, int]
    epochs: Mapping[Key, int] = MappingProxyType({})
    """Of the leaders that said so, as far as they are known."""

    def show(self, topic: str, look: Look) -> bool:
        """Return whether each partition of a topic ends where it did at a look, and has the same leader."""
        return all(
            self.offsets.get((topic, partition)) == log.end
            and self.epochs.get((topic, partition), log.epoch) == log.epoch
            for partition, log in look.logs.items()
        )


@dataclass(frozen=True, slots=True)
class _Failed:
    """A look that failed, until monotonic s `ended_at`."""

    error: KafkaError
    ended_at: float


class ClusterTopics:
    """Asks one cluster about topics. Threads may share it.

    Methods raise KafkaException when the brokers do not answer, or refuse.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._refusals = BrokerRefusals()
        config = {"client.id": "lagloss-taps", "socket.timeout.ms": int(TIMEOUT_S * 1_000), "log_level": 0}
        self._admin = AdminClient(KafkaConnection.of(cluster).client({**config, "error_cb": self._refusals.take}))
        self._cluster = cluster
        self._watching: Consumer | None = None
        self._watched: Set[Key] = frozenset()
        self._requests: list[TopicPartition] = []
        self._known: dict[str, int] = {}
        self._asking = threading.Lock()
        self._wanted: dict[str, tuple[float, Collection[int] | None]] = {}
        self._found: dict[str, SharedLook | _Failed] = {}

    def newest(self, topic: str, after: float, partitions: Collection[int] | None = None) -> SharedLook:
        """Return a look at a topic, asked after monotonic s `after` and at most `TURN_S` ago. If there is none, look at
        all topics that taps have asked for lately.

        Args:
            partitions: those to look at, of which the look lacks those without a leader; None for all.
        """
        with self._asking:
            self._wanted[topic] = time.monotonic(), partitions
            result = self._found.get(topic)
            if result is None or not _is_usable(result, after, partitions or ()):
                self._look_at_all()
                result = self._found[topic]
        if isinstance(result, _Failed):
            raise KafkaException(result.error)
        return result

    def want(self, topics: Iterable[str]) -> None:
        """Look at all partitions of these topics, too, at the next looks."""
        with self._asking:
            self._wanted |= dict.fromkeys(topics, (time.monotonic(), None))

    def rest(self, topic: str) -> None:
        """Look at this topic no more, until it is asked for again."""
        with self._asking:
            self._wanted.pop(topic, None)

    def ends(self, places: Set[Key]) -> TopicEnds:
        """Return the ends of partitions, those that their leaders have said; it costs much less than looks. Used by one
        thread."""
        if self._watching is None:
            self._watching = Consumer(KafkaConnection.of(self._cluster).client(WATCHING))
        if places != self._watched:
            self._watched, self._requests = places, [TopicPartition(*place, OFFSET_END) for place in places]
        requests = self._requests
        at_ms, asked_at = time.time_ns() // 1_000_000, time.monotonic()
        answers = self._watching.offsets_for_times(requests, timeout=ENDS_TIMEOUT_S) if requests else []
        known = [answer for answer in answers if answer.error is None and answer.offset >= 0]
        offsets = {(answer.topic, answer.partition): answer.offset for answer in known}
        epochs = {
            (answer.topic, answer.partition): answer.leader_epoch for answer in known if answer.leader_epoch is not None
        }
        return TopicEnds(at_ms, time.time_ns() // 1_000_000, asked_at, offsets, epochs)

    def close(self) -> None:
        """Close what `ends` has opened."""
        if self._watching is not None:
            self._watching.close()

    def describe(self, topic: str) -> TopicIs:
        """Return a topic's id and partitions."""
        return _or_raise(self._describe([topic])[topic])

    def look(self, topic: str, partitions: Iterable[int]) -> Look:
        """Return the offsets that these partitions hold now."""
        return _or_raise(self._look({topic: tuple(partitions)})[topic])

    def starts_at(self, topic: str, moment_ms: int, partitions: Iterable[int]) -> dict[int, int]:
        """Return by partition the offset of the first record whose timestamp is at or after a moment; its end if there
        is none."""
        places = [TopicPartition(topic, partition) for partition in partitions]
        futures = self._offsets(places, OffsetSpec.for_timestamp(moment_ms), IsolationLevel.READ_UNCOMMITTED)
        ends = self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        deadline = time.monotonic() + TIMEOUT_S
        offsets = {
            partition: self._answer(topic, future, deadline).offset for (_, partition), future in futures.items()
        }
        return {
            partition: offset if offset >= 0 else self._answer(topic, ends[topic, partition], deadline).offset
            for partition, offset in offsets.items()
        }

    def allows_unclean_election(self, topic: str) -> bool:
        """Return whether a partition may get a leader that lacks acknowledged records; False, Kafka's default, where
        brokers do not tell a topic's settings, or an ACL for them is missing."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource]
        try:
            return allows_unclean_election(self._answer(topic, future, time.monotonic() + TIMEOUT_S))
        except KafkaException as error:
            if kafka_error(error).code() in NOT_ALLOWED | NOT_SUPPORTED:
                return False
            raise

    def _look_at_all(self) -> None:
        asked_at = time.monotonic()
        self._wanted = {topic: request for topic, request in self._wanted.items() if asked_at - request[0] < WANTED_S}
        described = self._describe(list(self._wanted))
        # Without its leader, the client would look for it until the time is up, and leave the other topics waiting.
        led = {
            topic: partitions
            for topic, topic_is in described.items()
            if isinstance(topic_is, TopicIs) and (partitions := topic_is.led(self._wanted[topic][1]))
        }
        looks = self._look(led)
        ended_at = time.monotonic()
        self._found = {}
        for topic, description in described.items():
            if isinstance(description, KafkaException):
                self._found[topic] = _Failed(kafka_error(description), ended_at)
                continue
            look = looks.get(topic, KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
            if isinstance(look, KafkaException):
                self._found[topic] = _Failed(kafka_error(look), ended_at)
            else:
                self._found[topic] = SharedLook(description.topic_id, look, asked_at)

    def _describe(self, topics: list[str]) -> dict[str, TopicIs | KafkaException]:
        descriptions: dict[str, TopicIs | KafkaException] = {}
        futures = self._admin.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        for topic, future in futures.items():
            try:
                described = self._answer(topic, future, deadline)
            except KafkaException as error:
                descriptions[topic] = error
                continue
            partitions = tuple(sorted(partition.id for partition in described.partitions))
            leaderless = frozenset(partition.id for partition in described.partitions if partition.leader is None)
            descriptions[topic] = TopicIs(str(described.topic_id), partitions, leaderless)
        return descriptions

    def _look(self, partitions_by_topic: Mapping[str, Collection[int]]) -> dict[str, Look | KafkaException]:
        failed: dict[str, Look | KafkaException] = {}
        for topic, partitions in partitions_by_topic.items():
            if len(partitions) > self._known.get(topic, 0):  # of partitions that were added, it knows no leaders yet
                try:
                    listed = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
                    self._known[topic] = len(listed.partitions)
                except KafkaException as error:
                    failed[topic] = self._explained(topic, error)
        places = [
            TopicPartition(topic, partition)
            for topic in partitions_by_topic
            if topic not in failed
            for partition in partitions_by_topic[topic]
        ]
        if not places:
            return failed
        at_ms = time.time_ns() // 1_000_000
        answers = [
            self._offsets(places, spec, level)
            for spec, level in (
                (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),  # the first, so that it bounds the others
                (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
                (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
            )
        ]
        deadline = time.monotonic() + TIMEOUT_S
        looks = dict(failed)
        for topic in partitions_by_topic.keys() - failed.keys():
            try:
                logs = {
                    partition: _log(*(self._answer(topic, futures[topic, partition], deadline) for futures in answers))
                    for partition in partitions_by_topic[topic]
                }
                looks[topic] = Look(at_ms, logs, time.time_ns() // 1_000_000)
            except KafkaException as error:
                looks[topic] = error
                if has_stale_metadata(error):
                    self._known.pop(topic, None)  # it learns the leaders anew, with the next look
        return looks

    def _offsets(
        self, places: Collection[TopicPartition], spec: OffsetSpec, level: IsolationLevel
    ) -> dict[tuple[str, int], Future[Any]]:
        futures: Mapping[TopicPartition, Any] = self._admin.list_offsets(
            dict.fromkeys(places, spec), isolation_level=level, request_timeout=TIMEOUT_S
        )
        return {(place.topic, place.partition): future for place, future in futures.items()}

    def _answer(self, topic: str, future: Future[Any], deadline: float) -> Any:
        try:
            result = future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:  # just before the client's own
            raise self._explained(topic, KafkaException(KafkaError(KafkaError._TIMED_OUT))) from None
        except KafkaException as error:
            raise self._explained(topic, error) from error
        self._refusals.forget()
        return result

    def _explained(self, topic: str, error: KafkaException) -> KafkaException:
        self._admin.poll(0)  # for the refusals
        return KafkaException(needs(self._refusals.explain(kafka_error(error)), "DESCRIBE", f"topic {topic}"))


def _is_usable(result: SharedLook | _Failed, after: float, partitions: Iterable[int]) -> bool:
    now = time.monotonic()
    if isinstance(result, _Failed):
        return now - result.ended_at <= TURN_S
    return after < result.asked_at and now - result.asked_at <= TURN_S and result.look.logs.keys() >= set(partitions)


def _log(end: Any, stable_end: Any, start: Any) -> PartitionLog:
    if min(end.offset, stable_end.offset, start.offset) < 0:  # the client's sign of a leader that did not answer
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    epoch = -1 if end.leader_epoch is None else end.leader_epoch
    return PartitionLog(start.offset, min(stable_end.offset, end.offset), end.offset, epoch)


def _or_raise(result: _Found | KafkaException) -> _Found:
    if isinstance(result, KafkaException):
        raise result
    return result

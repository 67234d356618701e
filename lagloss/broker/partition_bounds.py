"""Partition bounds: first, committed and end offsets, asked on a connection that no consumer's poll can hold up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lagloss.broker.errors import BrokerRefusals, has_stale_metadata, kafka_error, needs
from lagloss.broker.fork_gate import fork_gate

log = logging.getLogger("lagloss")

QUERY_TIMEOUT_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 1.5
"""Wait for all answers to a request: the client's own time-out, and some margin for it to report that."""
Key = tuple[str, int]
"""Topic and partition."""


class PartitionBounds:
    """First and end offsets of partitions as their leaders report them now, and what a group has committed in them,
    asked on a connection of its own.

    The host's consumer would do, but lets one thread in at a time, and its own waits in `poll`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._refusals = BrokerRefusals()
        self._config = {"client.id": "lagloss-lanes", "log_level": 2, **config, "error_cb": self._refusals.take}
        self._admin: AdminClient | None = None
        self._cluster_id: str | None = None
        self.last_error: str | None = None
        """The newest reason why a partition was left out."""

    def begins(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the first offset of each."""
        return self._ask(keys, OffsetSpec.earliest())

    def ends(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the high watermark of each, so that records of open transactions are before it."""
        return self._ask(keys, OffsetSpec.latest())

    def committed(self, group: str, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the offset that a group has committed in each, if it has.

        Raises the reason (KafkaException or TimeoutError) if it cannot be read.
        """
        question = ConsumerGroupTopicPartitions(group, [TopicPartition(*key) for key in keys])
        answers = self._connected().list_consumer_group_offsets([question], request_timeout=QUERY_TIMEOUT_S)
        places = answers[group].result(ANSWER_TIMEOUT_S).topic_partitions
        return {
            (place.topic, place.partition): place.offset for place in places if not place.error and place.offset >= 0
        }

    def cluster_id(self) -> str:
        """Return the id of the cluster that answers. Raises KafkaException."""
        if self._cluster_id is None:
            # Asked for by name, a missing topic could be created by the broker.
            self._cluster_id = str(self._connected().list_topics(timeout=QUERY_TIMEOUT_S).cluster_id)
        return self._cluster_id

    def close(self) -> None:
        with fork_gate:
            self._admin = None

    def _connected(self) -> AdminClient:
        if self._admin is None:
            with fork_gate:
                self._admin = AdminClient(self._config)
        return self._admin

    def _ask(self, keys: Iterable[Key], which: OffsetSpec) -> dict[Key, int]:
        """Ask for all offsets in one call; leave out partitions whose leader did not answer, and keep the reason.

        Raises the reason (KafkaException or TimeoutError) if none did.
        """
        answers: dict[TopicPartition, Any] = dict(
            self._connected().list_offsets(
                {TopicPartition(*key): which for key in keys},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=QUERY_TIMEOUT_S,
            )
        )
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        offsets: dict[Key, int] = {}
        failure: KafkaException | TimeoutError | None = None
        stale: str | None = None
        for place, answer in answers.items():
            try:
                offset = answer.result(max(0.0, deadline - time.monotonic())).offset
            except (KafkaException, TimeoutError) as error:
                failure = self._explained(error, place.topic)
                if isinstance(error, KafkaException) and has_stale_metadata(error):
                    stale = place.topic
                continue
            if offset >= 0:
                offsets[place.topic, place.partition] = offset
            else:  # the client's sign of a time-out waiting for the leader
                failure = TimeoutError(f"the leader of {place.topic}/{place.partition} did not respond in time")
        if stale is not None:  # of one topic at a time: the next call meets the next
            with suppress(KafkaException):
                self._connected().list_topics(stale, timeout=QUERY_TIMEOUT_S)
        if failure is not None:
            self.last_error = str(failure)
            if not offsets:
                raise failure
        if offsets:
            self._refusals.forget()
        return offsets

    def _explained(self, error: KafkaException | TimeoutError, topic: str) -> KafkaException | TimeoutError:
        """Return the error with why the brokers refuse this client, if they do."""
        self._connected().poll(0)  # for the refusals
        said = kafka_error(error) if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
        cause = needs(self._refusals.explain(said), "DESCRIBE", f"topic {topic}")
        return error if cause is said else KafkaException(cause)

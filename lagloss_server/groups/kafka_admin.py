"""Kafka's administration asked by kafka-python, for what librdkafka cannot be asked.

Its questions to a group's coordinator end the whole process (an assertion, or a segmentation fault) when the
coordinator goes away meanwhile. See decisions/0021-groups-are-asked-by-kafka-python.md.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection
from typing import Any, ClassVar, Final, TypedDict

from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaAdminClient
from kafka.errors import IncompatibleBrokerVersion
from kafka.errors import KafkaError as ClientError
from kafka.net import KafkaNetSocket

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss_server.groups.kafka_protocol import ConsumerGroupDescribeRequest
from lagloss_server.net.kafka_clients import kafka_python_config

ANSWER_TIMEOUT_S: Final = 2.0
"""For one answer; a question needs up to three where nothing is known yet."""
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # callers report the errors


class AssignedTopic(TypedDict):
    """Partitions of a topic that are assigned to a member of a group."""

    topic_name: str
    partitions: list[int]


class Assignment(TypedDict):
    """What is assigned to a member of a group."""

    topic_partitions: list[AssignedTopic]


class Member(TypedDict):
    """A member of a group of the newer protocol."""

    assignment: Assignment


class NewerGroup(TypedDict):
    """A group of the newer protocol (KIP-848) as its coordinator describes it, of the fields that are read here."""

    group_state: str
    error_code: int
    members: list[Member]


class _Direct(KafkaNetSocket):  # type: ignore[misc]  # without types
    """Connects as its base does, and closes a socket that found no broker, which its base leaves to the garbage
    collector.

    kafka-python takes it for the proxy of `direct:` addresses.
    """

    SCHEMES = ("direct",)

    def socket(self, *kind: Any) -> Any:
        self._latest = super().socket(*kind)
        return self._latest

    async def connect(self, *to: Any, **limits: Any) -> Any:
        try:
            return await super().connect(*to, **limits)
        except BaseException:
            self._latest.close()
            raise


class _Client(KafkaAdminClient):  # type: ignore[misc]  # without types
    """One that leaves no thread behind where it finds no broker."""

    def __init__(self, **config: Any) -> None:
        self._closed = False
        try:
            super().__init__(**config)
        except BaseException:
            self.close()
            raise

    def describe_consumer_groups(self, groups: Collection[str]) -> dict[str, NewerGroup]:
        """Return the descriptions of groups of the newer protocol, as `describe_groups` does of classic ones; none
        where the brokers do not know that protocol."""
        try:
            groups_: dict[str, NewerGroup] = self._manager.run(self._describe_consumer_groups, list(groups))
        except IncompatibleBrokerVersion:
            return {}
        return groups_

    async def _describe_consumer_groups(self, groups: list[str]) -> dict[str, NewerGroup]:
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for group, coordinator in (await self._find_coordinator_ids(groups)).items():
            by_coordinator[coordinator].append(group)
        groups_: dict[str, NewerGroup] = {}
        for coordinator, some in by_coordinator.items():
            request = ConsumerGroupDescribeRequest(group_ids=some, include_authorized_operations=False)
            response = await self._manager.send(request, node_id=coordinator)
            groups_ |= {group.group_id: group.to_dict() for group in response.groups}
        return groups_


class KafkaAdmin:
    """Asks brokers. Threads that share it ask one after the other.

    Its methods raise KafkaException if the brokers do not answer, as those of other clients here do.

    Args:
        cluster: its addresses (HOST:PORT,...), or a connection.
        client_id: what the brokers' logs call who asks.
    """

    ABOUT: ClassVar = "administration"
    """What an error is about."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._config: dict[str, Any] = {
            **kafka_python_config(KafkaConnection.of(cluster)),
            "client_id": client_id,
            "request_timeout_ms": int(ANSWER_TIMEOUT_S * 1_000),
            "bootstrap_timeout_ms": int(ANSWER_TIMEOUT_S * 1_000),
            "reconnect_backoff_max_ms": 1_000,
            "proxy_url": "direct:",
        }
        self._client: _Client | None = None
        self._guard = threading.RLock()

    def close(self) -> None:
        with self._guard:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _ask(self, question: str, *about: Any) -> Any:
        with self._guard:
            try:
                if self._client is None:
                    self._client = _Client(**self._config)
                answer: Any = getattr(self._client, question)(*about)
            except (ClientError, OSError) as error:
                self.close()  # it would go on to ask the coordinators that it knows
                text = str(error) or type(error).__name__
                raise KafkaException(KafkaError(KafkaError._TRANSPORT, f"{self.ABOUT}: {text}")) from error
            return answer

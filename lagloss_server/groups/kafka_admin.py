"""Kafka's administration asked by kafka-python, for what librdkafka cannot be asked.

Its questions to a group's coordinator end the whole process (an assertion, or a segmentation fault) when the
coordinator goes away meanwhile. See decisions/0021-groups-are-asked-by-kafka-python.md.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final, TypedDict

from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaAdminClient
from kafka.errors import IncompatibleBrokerVersion
from kafka.errors import KafkaError as ClientError
from kafka.net import KafkaNetSocket

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss_server.groups.kafka_protocol import (
    ConsumerGroupDescribeRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
)
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


class SharePartition(TypedDict):
    """What a share group has not finished of a partition: from `start_offset` on, `lag` records (-1: unknown)."""

    partition_index: int
    start_offset: int
    lag: int
    error_code: int


class ShareTopic(TypedDict):
    """The partitions of a topic that a share group reads."""

    topic_name: str
    partitions: list[SharePartition]


class ShareOffsets(TypedDict):
    """What a share group has not finished."""

    group_id: str
    error_code: int
    topics: list[ShareTopic]


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

    def describe_share_groups(self, groups: Collection[str]) -> dict[str, NewerGroup]:
        """Return the descriptions of share groups, in the form of `describe_consumer_groups`."""
        try:
            groups_: dict[str, NewerGroup] = self._manager.run(self._describe_share_groups, list(groups))
        except IncompatibleBrokerVersion:
            return {}
        return groups_

    def list_share_offsets(self, groups: Collection[str]) -> dict[str, ShareOffsets]:
        """Return what share groups have not finished; none where the brokers do not know that question."""
        try:
            groups_: dict[str, ShareOffsets] = self._manager.run(self._list_share_offsets, list(groups))
        except IncompatibleBrokerVersion:
            return {}
        return groups_

    async def _describe_consumer_groups(self, groups: list[str]) -> dict[str, Any]:
        return await self._ask_coordinators(
            groups, lambda some: ConsumerGroupDescribeRequest(group_ids=some, include_authorized_operations=False)
        )

    async def _describe_share_groups(self, groups: list[str]) -> dict[str, Any]:
        return await self._ask_coordinators(
            groups, lambda some: ShareGroupDescribeRequest(group_ids=some, include_authorized_operations=False)
        )

    async def _list_share_offsets(self, groups: list[str]) -> dict[str, Any]:
        group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        return await self._ask_coordinators(
            groups,
            lambda some: DescribeShareGroupOffsetsRequest(groups=[group(group_id=name, topics=None) for name in some]),
        )

    async def _ask_coordinators(self, groups: list[str], request: Callable[[list[str]], Any]) -> dict[str, Any]:
        """Send each coordinator the request about its groups; return the answers by group."""
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for group, coordinator in (await self._find_coordinator_ids(groups)).items():
            by_coordinator[coordinator].append(group)
        answers: dict[str, Any] = {}
        for coordinator, some in by_coordinator.items():
            response = await self._manager.send(request(some), node_id=coordinator)
            answers |= {group.group_id: group.to_dict() for group in response.groups}
        return answers


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

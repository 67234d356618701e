"""Consumer groups as the brokers know them, asked from outside.

Not by librdkafka: its questions to a group's coordinator end the whole process (an assertion, or a segmentation fault)
when the coordinator goes away meanwhile. See decisions/0021-groups-are-asked-by-kafka-python.md.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaAdminClient
from kafka.errors import IncompatibleBrokerVersion
from kafka.errors import KafkaError as ClientError
from kafka.net import KafkaNetSocket

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.partition_bounds import Key
from lagloss_server.net.kafka_clients import kafka_python_config
from lagloss_server.queries.kafka_protocol import ConsumerGroupDescribeRequest

ANSWER_TIMEOUT_S: Final = 2.0
"""For one answer; a question needs up to three where nothing is known yet."""
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # callers report the errors
DEAD: Final = "Dead"
"""The state of a group that does not exist."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator describes it. `state`: Stable, Empty, Dead, PreparingRebalance or CompletingRebalance,
    or, of the newer protocol (KIP-848), Assigning or Reconciling. `partitions`: assigned to its members together."""

    state: str
    members: int = 0
    partitions: int = 0
    protocol: Literal["classic", "consumer"] = "classic"


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

    def describe_consumer_groups(self, groups: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the descriptions of groups of the newer protocol, as `describe_groups` does of classic ones; none
        where the brokers do not know that protocol."""
        try:
            found: dict[str, dict[str, Any]] = self._manager.run(self._describe_consumer_groups, list(groups))
        except IncompatibleBrokerVersion:
            return {}
        return found

    async def _describe_consumer_groups(self, groups: list[str]) -> dict[str, dict[str, Any]]:
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for group, coordinator in (await self._find_coordinator_ids(groups)).items():
            by_coordinator[coordinator].append(group)
        found: dict[str, dict[str, Any]] = {}
        for coordinator, some in by_coordinator.items():
            request = ConsumerGroupDescribeRequest(group_ids=some, include_authorized_operations=False)
            response = await self._manager.send(request, node_id=coordinator)
            found |= {group.group_id: group.to_dict() for group in response.groups}
        return found


class ConsumerGroups:
    """Asks about consumer groups. Threads that share it ask one after the other.

    Its methods raise KafkaException if the brokers do not answer, as those of other clients here do.

    Args:
        cluster: its addresses (HOST:PORT,...), or a connection.
        client_id: what the brokers' logs call who asks.
    """

    def __init__(self, cluster: Cluster, client_id: str = "lagloss-groups") -> None:
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

    def committed(self, groups: Collection[str]) -> dict[str, dict[Key, int]]:
        """Return the committed offsets of each group by partition; none for a group that does not exist."""
        found = self._ask("list_group_offsets", sorted(groups)) if groups else {}
        return {
            group: {
                (at.topic, at.partition): committed.offset for at, committed in offsets.items() if committed.offset >= 0
            }
            for group, offsets in found.items()
        }

    def described(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """Return the description of each group, of the classic protocol or of the newer one; one whose coordinator
        refuses to say is left out."""
        answers = self._ask("describe_groups", sorted(groups)) if groups else {}
        found = {group: _classic(answer) for group, answer in answers.items() if answer["group_state"]}
        dead = sorted(group for group, description in found.items() if description.state == DEAD)
        newer = self._ask("describe_consumer_groups", dead) if dead else {}
        return found | {group: _newer(answer) for group, answer in newer.items() if not answer["error_code"]}

    def assigned(self, groups: Collection[str]) -> dict[str, int]:
        """Return how many partitions the members of each group have between them; 0 for a group without members."""
        found = self.described(groups)
        return {group: found[group].partitions if group in found else 0 for group in groups}

    def close(self) -> None:
        with self._guard:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _ask(self, question: str, groups: list[str]) -> dict[str, Any]:
        with self._guard:
            try:
                if self._client is None:
                    self._client = _Client(**self._config)
                answer: dict[str, Any] = getattr(self._client, question)(groups)
            except (ClientError, OSError) as error:
                self.close()  # it would go on to ask the coordinators that it knows
                text = str(error) or type(error).__name__
                raise KafkaException(KafkaError(KafkaError._TRANSPORT, f"groups: {text}")) from error
            return answer


def _classic(answer: Mapping[str, Any]) -> GroupDescription:
    members = answer["members"]
    return GroupDescription(answer["group_state"], len(members), sum(map(_partitions, members)))


def _newer(answer: Mapping[str, Any]) -> GroupDescription:
    members = answer["members"]
    topics = [topic for member in members for topic in member["assignment"]["topic_partitions"]]
    assigned = sum(len(topic["partitions"]) for topic in topics)
    return GroupDescription(answer["group_state"], len(members), assigned, "consumer")


def _partitions(member: Mapping[str, Any]) -> int:
    assignment = member["member_assignment"]
    # the assignment is for the client to read; one of another kind, such as that of Kafka Connect, stays bytes
    return sum(len(topic["partitions"]) for topic in assignment["assigned_partitions"]) if _is_read(assignment) else 0


def _is_read(assignment: object) -> bool:
    return isinstance(assignment, Mapping) and "assigned_partitions" in assignment

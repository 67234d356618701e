"""Consumer groups as the brokers know them, asked from outside.

Not by librdkafka: its questions to a group's coordinator end the whole process (an assertion, or a segmentation fault)
when the coordinator goes away meanwhile. See decisions/0021-groups-are-asked-by-kafka-python.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaAdminClient
from kafka.errors import KafkaError as ClientError
from kafka.net import KafkaNetSocket

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.partition_bounds import Key
from lagloss_server.net.kafka_clients import kafka_python_config

ANSWER_TIMEOUT_S: Final = 2.0
"""For one answer; a question needs up to three where nothing is known yet."""
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # callers report the errors


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

    def assigned(self, groups: Collection[str]) -> dict[str, int]:
        """Return how many partitions the members of each group have between them; 0 for a group without members."""
        found = self._ask("describe_groups", sorted(groups)) if groups else {}
        return {group: sum(map(_partitions, described["members"])) for group, described in found.items()}

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


def _partitions(member: Mapping[str, Any]) -> int:
    assignment = member["member_assignment"]
    return sum(len(topic["partitions"]) for topic in assignment["assigned_partitions"]) if assignment else 0

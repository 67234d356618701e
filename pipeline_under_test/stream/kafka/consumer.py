"""How a consumer of events is set up."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import Consumer

from lagloss.broker.connection import KafkaConnection

PREFETCHED_KB: Final = 8_192
"""Limit of records fetched and not read: what waits belongs in the topic, not in memory."""


def consumer_for(bootstrap: str, group: str, client_id: str, **more: Any) -> Consumer:
    """Return a consumer that forgets nothing: it begins at the oldest record and commits only when asked to. It
    reads no record of a transaction that is not committed."""
    return Consumer(
        KafkaConnection.of(bootstrap).client(
            {
                "group.id": group,
                "client.id": client_id,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,  # transactions leave markers behind, which only this shows
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 6_000,  # a killed process's partitions are taken over after this
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": PREFETCHED_KB,
                **more,
            }
        )
    )

"""Names of the messaging conventions, newest first: instrumentations keep those that they began with."""

from __future__ import annotations

from typing import Final

SYSTEM: Final = ("messaging.system.name", "messaging.system")
OPERATION: Final = ("messaging.operation.type", "messaging.operation")
RECEIVED: Final = frozenset({"receive"})
PROCESSED: Final = frozenset({"process", "deliver"})
TAKEN_IN: Final = RECEIVED | PROCESSED
SENT_OUT: Final = frozenset({"send", "publish"})
TOPIC: Final = ("messaging.destination.name", "messaging.source.name", "messaging.destination")
PARTITION: Final = (
    "messaging.destination.partition.id",
    "messaging.kafka.destination.partition",
    "messaging.kafka.source.partition",
    "messaging.kafka.partition",
)
OFFSET: Final = ("kafka.offset", "messaging.kafka.offset", "messaging.kafka.message.offset")
MESSAGE_ID: Final = ("messaging.message.id", "messaging.message_id")
"""Holds TOPIC.PARTITION.OFFSET in Python's instrumentations, and the offset alone in Go's older ones."""
MESSAGE_COUNT: Final = "messaging.batch.message_count"

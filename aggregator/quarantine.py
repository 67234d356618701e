"""Quarantine: bad records of both topics, kept by position so that one read twice counts once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from lagloss import tables
from lagloss.wire import BadReason

FIRST_BYTES = 64


def record(connection: Connection, topic: str, bad: Sequence[tuple[int, int, BadReason, bytes]]) -> None:
    """Set records aside: (partition, offset, reason, value)."""
    rows = [
        {
            "topic": topic,
            "topic_partition": partition,
            "topic_offset": offset,
            "reason": reason,
            "first_bytes": bytes(value or b"")[:FIRST_BYTES],
        }
        for partition, offset, reason, value in bad
    ]
    if rows:
        connection.execute(insert(tables.Quarantined).values(rows).on_conflict_do_nothing())


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """How many records were set aside, by topic and reason."""
    table = tables.Quarantined
    rows = connection.execute(select(table.topic, table.reason, func.count()).group_by(table.topic, table.reason))
    return {(topic, reason): count for topic, reason, count in rows}

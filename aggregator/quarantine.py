"""Quarantine: the first bytes of bad records of both topics, up to a limit, and how many there were, without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from lagloss import tables
from lagloss.wire import BadReason

FIRST_BYTES = 64
KEPT_AN_HOUR = 1_000
"""Rows a topic and reason that are kept of what is found in one hour (of the server's clock); more are only counted."""
HOUR_S = 3_600

BadRow = tuple[int, int, BadReason, bytes]
"""A bad record: (partition, offset, reason, value)."""


def record(connection: Connection, topic: str, bad: Sequence[BadRow]) -> Counter[str]:
    """Keep these records by position, so that one read twice is kept once; how many were new, by reason."""
    room = _room(connection, topic, {reason for _, _, reason, _ in bad})
    rows: dict[tuple[int, int], dict[str, object]] = {}
    for partition, offset, reason, value in bad:
        if room[reason] > 0 and (partition, offset) not in rows:
            room[reason] -= 1
            rows[partition, offset] = {
                "topic": topic,
                "topic_partition": partition,
                "topic_offset": offset,
                "reason": reason,
                "first_bytes": bytes(value or b"")[:FIRST_BYTES],
            }
    if not rows:
        return Counter()
    statement = insert(tables.Quarantined).values(list(rows.values())).on_conflict_do_nothing()
    return Counter(connection.execute(statement.returning(tables.Quarantined.reason)).scalars())


def count(connection: Connection, topic: str, found: Iterable[tuple[str, int]]) -> None:
    """Add records to the counts: the reason of each, and when it was appended (epoch ms).

    Each must be given once: what is read again must not be added again.
    """
    counted = Counter((reason, appended_ms // 1000 // HOUR_S * HOUR_S) for reason, appended_ms in found)
    if not counted:
        return
    table = tables.table_of(tables.QuarantineCount)
    rows = [
        {"topic": topic, "reason": reason, "hour": hour, "bucket": "", "count": number}
        for (reason, hour), number in sorted(counted.items())
    ]
    upsert = insert(table).values(rows)
    connection.execute(
        upsert.on_conflict_do_update(
            index_elements=["topic", "reason", "hour", "bucket"],
            set_={"count": table.c.count + upsert.excluded.count},
        )
    )


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """How many bad records there were, by topic and reason."""
    table = tables.table_of(tables.QuarantineCount)
    total = func.sum(table.c.count)
    rows = connection.execute(select(table.c.topic, table.c.reason, total).group_by(table.c.topic, table.c.reason))
    return {(topic, reason): int(number) for topic, reason, number in rows}


def _room(connection: Connection, topic: str, reasons: Iterable[BadReason]) -> dict[str, int]:
    """How many more rows may be kept in this hour, by reason."""
    table = tables.Quarantined
    room: dict[str, int] = dict.fromkeys(reasons, KEPT_AN_HOUR)
    if not room:
        return room
    rows = connection.execute(
        select(table.reason, func.count())
        .where(
            table.topic == topic,
            table.reason.in_(list(room)),
            table.found_at >= func.date_trunc("hour", func.now()),
        )
        .group_by(table.reason)
    )
    for reason, kept in rows:
        room[reason] -= kept
    return room

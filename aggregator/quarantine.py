"""Quarantine: the first bytes of bad records of both topics, up to a limit, and how many there were, without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from lagloss.wire.format import BadReason
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import is_any

FIRST_BYTES = 64
KEPT_AN_HOUR = 1_000
"""Rows kept per topic, reason and hour (of the server's clock); more bad records are only counted."""
HOUR_S = 3_600

BadRow = tuple[int, int, BadReason, bytes | None]
"""A bad record: (partition, offset, reason, value)."""


def record(connection: Connection, topic: str, bad: Sequence[BadRow]) -> None:
    """Keep these records by position, so that one read twice is kept once."""
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
    if rows:
        connection.execute(insert(tables.table_of(tables.QuarantinedRow)).on_conflict_do_nothing(), list(rows.values()))


def count(connection: Connection, topic: str, counts: Mapping[tuple[str, int], int]) -> None:
    """Add numbers of records to the counts, by reason and when they were found or appended (epoch ms).

    Each must be given once: what is read again must not be added again.
    """
    counted: Counter[tuple[str, int]] = Counter()
    for (reason, moment_ms), number in counts.items():
        counted[reason, moment_ms // 1000 // HOUR_S * HOUR_S] += number
    table = tables.table_of(tables.QuarantineCountRow)
    rows = [
        {"topic": topic, "reason": reason, "hour": hour, "bucket": "", "count": number}
        for (reason, hour), number in sorted(counted.items())
    ]
    if rows:
        upsert = insert(table)
        total = table.c.count + upsert.excluded.count
        keys = ["topic", "reason", "hour", "bucket"]
        connection.execute(upsert.on_conflict_do_update(index_elements=keys, set_={"count": total}), rows)


def count_windows(
    connection: Connection, topic: str, counts: Mapping[tuple[str, int], Mapping[BadReason, int]]
) -> None:
    """Replace the counts of bad records under the keys of these windows, by reason."""
    table = tables.table_of(tables.QuarantineCountRow)
    buckets = {window: "{}/{}".format(*window) for window in counts}
    connection.execute(delete(table).where(table.c.topic == topic, is_any(table.c.bucket, buckets.values())))
    rows = [
        {
            "topic": topic,
            "reason": reason,
            "hour": window[1] // HOUR_S * HOUR_S,
            "bucket": buckets[window],
            "count": number,
        }
        for window, counted in counts.items()
        for reason, number in counted.items()
    ]
    if rows:
        connection.execute(insert(table), rows)


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return the number of bad records by topic and reason."""
    table = tables.table_of(tables.QuarantineCountRow)
    total = func.sum(table.c.count)
    rows = connection.execute(select(table.c.topic, table.c.reason, total).group_by(table.c.topic, table.c.reason))
    return {(topic, reason): int(number) for topic, reason, number in rows}


def _room(connection: Connection, topic: str, reasons: Iterable[BadReason]) -> dict[str, int]:
    """Return how many more rows this hour can keep, by reason."""
    table = tables.QuarantinedRow
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
    for reason, count in rows:
        room[reason] -= count
    return room

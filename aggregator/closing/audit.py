"""Audit of the beacons topic: every record is looked at once, so that every bad one is counted, and once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, Engine, select
from sqlalchemy.dialects.postgresql import insert

from aggregator import quarantine
from aggregator.kernel.spark_reader import Reading
from lagloss.wire.format import OffsetRange
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import Watermarks
from lagloss_server.rules.facts import WindowFacts
from lagloss_server.store.schema import core as tables

RECORDS_AT_ONCE = 200_000
"""Unread records of a partition that are read along with a closing."""


class Audit:
    """Position of the audit in each partition, without a gap before it."""

    def __init__(self, engine: Engine, beacons: BeaconLog) -> None:
        self._engine = engine
        self._beacons = beacons
        self._topic_id = beacons.topic_id()

    def position(self, held: Mapping[int, Watermarks]) -> dict[int, int]:
        """Return the first offset of each partition that is still in the log and was not looked at."""
        table = tables.AuditedRow
        with self._engine.connect() as connection:
            rows = connection.execute(select(table.topic_partition, table.next_offset))
            seen = {row.topic_partition: row.next_offset for row in rows}
        return {partition: max(seen.get(partition, 0), marks.low) for partition, marks in held.items()}

    def record(self, connection: Connection, reading: Reading, position: Mapping[int, int]) -> None:
        """Set bad records aside and store the position of the audit, in the transaction that commits the read."""
        topic, now_ms = self._beacons.topic, int(time.time() * 1000)
        bad = [(found.partition, found.offset, found.reason, found.first_bytes) for found in reading.bad]
        quarantine.record(connection, topic, bad)
        quarantine.count(connection, topic, {(reason, now_ms): count for reason, count in reading.strays.items()})
        rows = [
            {"topic_partition": partition, "next_offset": offset, "topic_id": self._topic_id}
            for partition, offset in position.items()
        ]
        if rows:
            upsert = insert(tables.AuditedRow)
            columns = {name: upsert.excluded[name] for name in ("next_offset", "topic_id")}
            connection.execute(upsert.on_conflict_do_update(index_elements=["topic_partition"], set_=columns), rows)

    def count_windows(self, connection: Connection, facts: Mapping[tuple[str, int], WindowFacts]) -> None:
        """Replace the counts of bad records under the keys of windows that were read."""
        bad = {window: found.bad for window, found in facts.items()}
        quarantine.count_windows(connection, self._beacons.topic, bad)


def unseen(position: Mapping[int, int], held: Mapping[int, Watermarks]) -> list[OffsetRange]:
    """Return the next ranges to look at; they are read with the rest, so that every bad key is counted once."""
    return [
        OffsetRange(partition, first, min(first + RECORDS_AT_ONCE, held[partition].high) - 1)
        for partition, first in position.items()
        if first < held[partition].high
    ]


def advanced(position: Mapping[int, int], ranges: Iterable[OffsetRange]) -> dict[int, int]:
    """Return the position after these ranges (ascending in each partition) were looked at."""
    reached = dict(position)
    for found in ranges:
        if found.first <= reached[found.partition]:
            reached[found.partition] = max(reached[found.partition], found.last + 1)
    return reached

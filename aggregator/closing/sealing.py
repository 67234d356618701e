"""Sealing: closed windows that are never read or rewritten any more."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, Engine, text

from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.reading import WindowReads
from aggregator.closing.report_state import Windows
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import Watermarks


class Sealing:
    """Seals windows in PostgreSQL and on their schedules."""

    def __init__(self, engine: Engine, watch: DefinitionRegistry, beacons: BeaconLog, reads: WindowReads) -> None:
        self._engine = engine
        self._watch = watch
        self._beacons = beacons
        self._reads = reads
        self._lows: Mapping[int, int] = {}

    def seal_gone(self) -> None:
        """Seal closed windows whose blocks the log no longer holds.

        Raises:
            TopicRecreated: the log is another one.
        """
        watermarks = self._beacons.watermarks()
        self._reads.demand_same_topic()  # offsets of another topic would seal every window
        lows = {partition: marks.low for partition, marks in watermarks.items()}
        if lows == self._lows:
            return
        with self._engine.begin() as connection:
            sealed = _seal_gone(connection, watermarks)
        self._note(sealed)
        self._lows = lows

    def seal_before(self, before_s: int, at_most: int) -> None:
        """Seal closed windows that start before this, except dirty ones: no report about them can arrive any more."""
        with self._engine.begin() as connection:
            sealed = _seal_before(connection, before_s, at_most)
        self._note(sealed)

    def _note(self, sealed: Windows) -> None:
        for pipeline, start in sealed:
            if pipeline in self._watch.schedules:
                self._watch.schedules[pipeline].sealed(start)


def _seal_gone(connection: Connection, watermarks: Mapping[int, Watermarks]) -> Windows:
    """Mark closed windows whose blocks the log no longer holds: they are never read or rewritten. A partition without
    watermarks says nothing: whoever was asked may not know of it yet."""
    rows = connection.execute(
        text(
            "UPDATE \"window\" SET state = 'sealed', deadline = NULL WHERE state = 'closed' AND EXISTS ("
            " SELECT FROM jsonb_array_elements(log_start) needed"
            " JOIN unnest(CAST(:partitions AS int[]), CAST(:lows AS bigint[])) held(partition, low)"
            " ON held.partition = CAST(needed->>0 AS int)"
            " WHERE CAST(needed->>1 AS bigint) < low) RETURNING pipeline, window_start"
        ),
        {"partitions": list(watermarks), "lows": [marks.low for marks in watermarks.values()]},
    )
    return [(pipeline, start) for pipeline, start in rows]


def _seal_before(connection: Connection, before_s: int, at_most: int) -> Windows:
    """Seal closed windows that start before this and whose tallies have not changed since, oldest first; return them.

    Those of a deleted pipeline, too, changed or not: they are never closed again.
    """
    # tallies before windows, as following locks them where it makes a day's partitions
    connection.execute(text("LOCK TABLE tally IN ACCESS SHARE MODE"))
    rows = connection.execute(
        text(
            "UPDATE \"window\" SET state = 'sealed', deadline = NULL WHERE (pipeline, window_start) IN ("
            " SELECT pipeline, window_start FROM \"window\" w WHERE state = 'closed' AND window_start < :before"
            " AND (NOT EXISTS (SELECT FROM tally t WHERE t.pipeline = w.pipeline"
            " AND t.window_start = w.window_start AND changed_basis > w.basis)"
            " OR (SELECT deleted_at IS NOT NULL FROM pipeline p WHERE p.name = w.pipeline"
            " ORDER BY version DESC LIMIT 1))"
            " ORDER BY window_start LIMIT :at_most) RETURNING pipeline, window_start"
        ),
        {"before": before_s, "at_most": at_most},
    )
    return [(pipeline, start) for pipeline, start in rows]

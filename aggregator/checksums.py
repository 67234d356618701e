"""Checksums: whether a pipeline's blocks carry any. Tallies do not say, and only blocks tell what is corrupted."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from sqlalchemy import Engine, select

from lagloss import tables
from lagloss.beacon_log import BeaconLog
from lagloss.ranges import clamp
from lagloss.wire import BadRecord, OffsetRange, decode_block

KEPT_MS = 600_000
"""How long an answer holds."""


class ChecksumWatch:
    """Looks at a block of each side of the links in question, once in a while for each pipeline."""

    def __init__(self, engine: Engine, beacons: BeaconLog) -> None:
        self._engine = engine
        self._beacons = beacons
        self._answers: dict[str, tuple[int, bool]] = {}

    def are_used(self, pipeline: str, window_start_s: int, links: Iterable[tuple[str, str]], now_ms: int) -> bool:
        """Whether both sides of one of these links (out, in) carry checksums in this window, as far as a block of each
        tells; true where that cannot be found out."""
        asked_ms, used = self._answers.get(pipeline, (0, False))
        if now_ms - asked_ms >= KEPT_MS:
            used = any(
                all(self._carries(pipeline, window_start_s, checkpoint) for checkpoint in link) for link in links
            )
            self._answers[pipeline] = now_ms, used
        return used

    def _carries(self, pipeline: str, window_start_s: int, checkpoint: str) -> bool:
        tally = tables.Tally
        with self._engine.connect() as connection:
            ranges = connection.execute(
                select(tally.ranges)
                .where(tally.pipeline == pipeline, tally.window_start == window_start_s, tally.checkpoint == checkpoint)
                .limit(1)
            ).scalar_one_or_none()
        try:
            first = [OffsetRange(partition, offset, offset) for partition, offset, _ in (ranges or [])[:1]]
            records = self._beacons.records(clamp(first, self._beacons.watermarks()))
            blocks = [decode_block(record.value) for record in records]
        except (BadRecord, KafkaException):
            return True
        return not blocks or blocks[0].payload_crc is not None

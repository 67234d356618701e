"""Upkeep beside closing: answering recompute requests, sealing what the log no longer holds, auditing stray blocks,
rolling up, pruning."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from sqlalchemy import select, update

from aggregator import closings, rollups
from aggregator.closing import WINDOWS_A_READ, Closer
from aggregator.retention import Retention
from lagloss import tables
from lagloss.settings import Settings
from lagloss.wire import WINDOW_S

AUDIT_EVERY_S = 30
"""How often blocks that no closing read are looked at, for keys that no good block has."""
SEAL_EVERY_S = 60
ROLL_UP_EVERY_S = 5
RETAIN_EVERY_S = 600


class Upkeep:
    """Does what is asked for or has become due, a little a call."""

    def __init__(self, closer: Closer, settings: Settings | None = None) -> None:
        self._closer = closer
        self._retention = Retention(closer, settings or Settings())
        self._rolled_up_at = self._retained_at = -math.inf
        self._audited_at = time.monotonic()
        self._sealed_at = 0.0

    def tick(self, caught_up_ms: int) -> bool:
        """One round; whether a request was answered."""
        asked = self.answer_recompute(caught_up_ms)
        if time.monotonic() - self._audited_at >= AUDIT_EVERY_S:
            self._audited_at = time.monotonic()
            self._closer.read_nothing_new()
        if time.monotonic() - self._sealed_at >= SEAL_EVERY_S:
            self._sealed_at = time.monotonic()
            with self._closer.engine.connect() as connection:
                rows = closings.read_closed(connection)
            self._closer.seal_gone([(row.pipeline, row.window_start) for row in rows if row.state == "closed"])
        if time.monotonic() - self._rolled_up_at >= ROLL_UP_EVERY_S:
            self.roll_up(caught_up_ms)
            self._rolled_up_at = time.monotonic()
        if time.monotonic() - self._retained_at >= RETAIN_EVERY_S:
            self._retention.round(caught_up_ms)
            self._retained_at = time.monotonic()
        return asked

    def roll_up(self, now_ms: int) -> None:
        """One round of roll-ups."""
        done, waiting = rollups.roll_up(self._closer.engine, now_ms)
        self._closer.metrics.rollups.inc(done)
        self._closer.metrics.rollups_dirty.set(waiting)

    def answer_recompute(self, now_ms: int) -> bool:
        """Answer one `lagloss recompute`: close its windows again from the log. Whether there was one."""
        request = tables.table_of(tables.RecomputeRequest)
        engine = self._closer.engine
        with engine.connect() as connection:
            row = connection.execute(
                select(request).where(request.c.answer.is_(None)).order_by(request.c.id).limit(1)
            ).one_or_none()
        if row is None:
            return False
        started = time.monotonic()
        answer = self._recompute(row.pipeline, row.from_s, row.to_s, now_ms)
        answer["seconds"] = round(time.monotonic() - started, 3)
        with engine.begin() as connection:
            connection.execute(update(request).where(request.c.id == row.id).values(answer=answer))
        return True

    def _recompute(self, pipeline: str, from_s: int, to_s: int, now_ms: int) -> dict[str, float]:
        first = -(-from_s // WINDOW_S) * WINDOW_S
        closed = self._closer.closed_windows(pipeline, first, to_s)
        sealed = self._closer.seal_gone(closed)
        held = [window for window in closed if window not in sealed]
        beacons = sum(self._closer.close_windows(chunk, now_ms) for chunk in _chunks(held))
        return {"windows": len(held), "beacons": beacons, "sealed": len(sealed)}


def _chunks(windows: Sequence[tuple[str, int]]) -> list[Sequence[tuple[str, int]]]:
    return [windows[at : at + WINDOWS_A_READ] for at in range(0, len(windows), WINDOWS_A_READ)]

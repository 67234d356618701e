"""Upkeep beside closing: answering recompute requests, sealing what the log no longer holds, auditing stray blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import select, update

from aggregator import unfinished
from aggregator.closing import Closer
from lagloss import tables
from lagloss.wire import WINDOW_S

AUDIT_EVERY_S = 30
"""How often blocks that no closing read are looked at, for keys that no good block has."""
SEAL_EVERY_S = 60
WINDOWS_A_STEP = 200
"""How many windows of a recompute request are closed between two signs of progress."""


class Upkeep:
    """Does what is asked for or has become due, a little a call."""

    def __init__(self, closer: Closer) -> None:
        self._closer = closer
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
            self._closer.seal_gone()
        return asked

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
        self._closer.seal_gone()
        with self._closer.engine.connect() as connection:
            closed = unfinished.read_closed(connection, pipeline, first, to_s)
            states = unfinished.read_states(connection, closed)
        held = [window for window in closed if states[window] == "closed"]
        beacons = sum(self._closer.close_windows(chunk, now_ms, from_log=True) for chunk in _chunks(held))
        return {"windows": len(held), "beacons": beacons, "sealed": len(closed) - len(held)}


def _chunks(windows: Sequence[tuple[str, int]]) -> list[Sequence[tuple[str, int]]]:
    return [windows[at : at + WINDOWS_A_STEP] for at in range(0, len(windows), WINDOWS_A_STEP)]

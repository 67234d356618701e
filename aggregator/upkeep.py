"""Upkeep beside closing: answering recompute requests, sealing what the log no longer holds, auditing stray blocks,
rolling up, pruning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import select, update

from aggregator import rollups, unfinished
from aggregator.closing import Closer
from aggregator.retention import Retention
from lagloss import tables
from lagloss.settings import Settings
from lagloss.wire import WINDOW_S

AUDIT_EVERY_S = 30
"""How often blocks that no closing read are looked at, for keys that no good block has."""
SEAL_EVERY_S = 60
ROLL_UP_EVERY_S = 5
RETAIN_EVERY_S = 600
WINDOWS_A_STEP = 200
"""How many windows of a recompute request are closed between two signs of progress."""


@dataclass
class Chore:
    """Something to be done every so often."""

    every_s: float
    do: Callable[[int], None]
    done_at: float = -math.inf

    def do_if_due(self, caught_up_ms: int) -> None:
        if time.monotonic() - self.done_at >= self.every_s:
            self.do(caught_up_ms)
            self.done_at = time.monotonic()


class Upkeep:
    """Does what is asked for or has become due, a little a call."""

    def __init__(self, closer: Closer, settings: Settings | None = None) -> None:
        self._closer = closer
        retention = Retention(closer, settings or Settings())
        self._chores = (
            Chore(AUDIT_EVERY_S, lambda _: closer.read_nothing_new(), time.monotonic()),
            Chore(SEAL_EVERY_S, lambda _: closer.seal_gone()),
            Chore(ROLL_UP_EVERY_S, self.roll_up),
            Chore(RETAIN_EVERY_S, retention.round),
        )

    def tick(self, caught_up_ms: int) -> bool:
        """One round; whether a request was answered."""
        asked = self.answer_recompute(caught_up_ms)
        for chore in self._chores:
            chore.do_if_due(caught_up_ms)
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
        self._closer.seal_gone()
        with self._closer.engine.connect() as connection:
            closed = unfinished.read_closed(connection, pipeline, first, to_s)
            states = unfinished.read_states(connection, closed)
        held = [window for window in closed if states[window] == "closed"]
        beacons = sum(self._closer.close_windows(chunk, now_ms, from_log=True) for chunk in _chunks(held))
        return {"windows": len(held), "beacons": beacons, "sealed": len(closed) - len(held)}


def _chunks(windows: Sequence[tuple[str, int]]) -> list[Sequence[tuple[str, int]]]:
    return [windows[at : at + WINDOWS_A_STEP] for at in range(0, len(windows), WINDOWS_A_STEP)]

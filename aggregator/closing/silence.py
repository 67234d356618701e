"""Silence: emitters that stop reporting without closing, and the windows in which that makes a difference."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, func, select

from lagloss.wire.format import WINDOW_S
from lagloss_server.queries.emitters import DISTURBED_MS, is_silent
from lagloss_server.rules.freshness import EXPECTED_FOR_MS
from lagloss_server.store.schema import core as tables


class SilenceWatch:
    """Set of emitters that were silent at the last look. Losing it (a restart) only has a few windows judged again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._silent: dict[tuple[str, bytes], int] = {}

    def touched(self, caught_up_ms: int) -> set[tuple[str, int]]:
        """Return the windows in which an emitter has fallen silent, or reports again, since the last call: (pipeline,
        start)."""
        emitter = tables.EmitterRow
        with self._engine.connect() as connection:
            rows = connection.execute(
                select(emitter.pipeline, emitter.emitter, emitter.appended_at).where(is_silent(caught_up_ms))
            )
            silent = {(row.pipeline, row.emitter): row.appended_at for row in rows}
            moved = dict(silent.items() ^ self._silent.items())
            touched = [_windows_around(connection, *account, last_ms) for account, last_ms in moved.items()]
        self._silent = silent
        return set().union(*touched)


def _windows_around(connection: Connection, pipeline: str, emitter: bytes, last_ms: int) -> set[tuple[str, int]]:
    """Return the windows from the oldest that it changed shortly before its last report to the last in which it is
    still expected."""
    tally = tables.TallyRow
    disturbed = connection.execute(
        select(func.min(tally.window_start)).where(
            tally.pipeline == pipeline, tally.emitter == emitter, tally.changed_at >= last_ms - DISTURBED_MS
        )
    ).scalar_one_or_none()
    window = last_ms // 1000 // WINDOW_S * WINDOW_S
    first = window if disturbed is None else min(window, disturbed)
    stop = (last_ms + EXPECTED_FOR_MS) // 1000 + WINDOW_S
    return {(pipeline, start) for start in range(first, stop, WINDOW_S)}

"""Minutes in which each checkpoint of each pipeline had live beacons, known from tallies ahead of closings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, select

from lagloss_server.store.schema.core import TallyRow, table_of
from lagloss_server.store.store import read_basis

LOOK_BACK_S: Final = 90_000
"""Minutes older than this are not read: closed windows cover them."""
_KEPT_S: Final = 10_800
"""Minutes of a checkpoint are kept for this long before its newest."""


class Minutes:
    """Cache of minutes with live beacons; it reads only tallies that changed since its last read."""

    def __init__(self) -> None:
        self._basis = -1
        self._minutes: dict[tuple[str, str], set[int]] = {}

    def refresh(self, connection: Connection, now_s: float) -> None:
        """Read the tallies that the report consumer has committed since. The connection is in a REPEATABLE READ
        transaction."""
        tally, basis = table_of(TallyRow), read_basis(connection)
        if basis == self._basis:
            return
        if basis < self._basis:  # the reports topic is another one now
            self._basis = -1
        rows = connection.execute(
            select(tally.c.pipeline, tally.c.checkpoint, tally.c.window_start)
            .where(
                tally.c.changed_basis > self._basis,
                tally.c.window_start >= int(now_s) - LOOK_BACK_S,
                tally.c.replay == "",
                tally.c.beacons > 0,
            )
            .distinct()
        )
        found: dict[tuple[str, str], set[int]] = defaultdict(set)
        for pipeline, checkpoint, start in rows:
            found[pipeline, checkpoint].add(start)
        for key, minutes in found.items():
            minutes |= self._minutes.get(key, set())
            oldest = max(minutes) - _KEPT_S
            self._minutes[key] = {start for start in minutes if start >= oldest}
        self._basis = basis

    def newest_s(self, pipeline: str, checkpoints: Collection[str]) -> dict[str, int]:
        """Return the newest minute of each of these checkpoints that has one."""
        known = {name: self._minutes.get((pipeline, name)) for name in checkpoints}
        return {name: max(minutes) for name, minutes in known.items() if minutes}

    def after_s(self, pipeline: str, checkpoint: str, start_s: int) -> list[int]:
        """Return a checkpoint's minutes later than this one, oldest first, as far as they are kept."""
        return sorted(start for start in self._minutes.get((pipeline, checkpoint), ()) if start > start_s)

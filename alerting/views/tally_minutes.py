"""Minutes in which each checkpoint of each pipeline had live beacons, known from tallies ahead of closings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, func, select

from lagloss_server.store.schema.core import TallyRow, table_of
from lagloss_server.store.store import read_basis

LOOK_BACK_S: Final = 90_000
"""Minutes older than this are not read: closed windows cover them."""
_KEPT_S: Final = 10_800
"""Minutes of a checkpoint are kept for this long before its newest."""


class Minutes:
    """Cache of minutes with live beacons, each with the moment (epoch s) at which its first report was known to be
    there; it reads only tallies that changed since its last read."""

    def __init__(self) -> None:
        self._basis = -1
        self._minutes: dict[tuple[str, str], dict[int, float]] = {}
        self._came: dict[str, float] = {}

    def refresh(self, connection: Connection, now_s: float) -> None:
        """Read the tallies that the report consumer has committed since. The connection is in a REPEATABLE READ
        transaction."""
        tally, basis = table_of(TallyRow), read_basis(connection)
        if basis == self._basis:
            return
        if basis < self._basis:  # the reports topic is another one now
            self._basis = -1
        rows = connection.execute(
            select(tally.c.pipeline, tally.c.checkpoint, tally.c.window_start, func.min(tally.c.changed_at))
            .where(
                tally.c.changed_basis > self._basis,
                tally.c.window_start >= int(now_s) - LOOK_BACK_S,
                tally.c.replay == "",
                tally.c.beacons > 0,
            )
            .group_by(tally.c.pipeline, tally.c.checkpoint, tally.c.window_start)
        )
        found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for pipeline, checkpoint, start, changed_ms in rows:
            at_s = found[pipeline, checkpoint][start] = changed_ms / 1_000
            if at_s < self._came.get(pipeline, math.inf):
                self._came[pipeline] = at_s
        for key, minutes in found.items():
            minutes |= self._minutes.get(key, {})  # what was read first was known first
            oldest = max(minutes) - _KEPT_S
            self._minutes[key] = {start: at for start, at in minutes.items() if start >= oldest}
        self._basis = basis

    def take_came(self) -> dict[str, float]:
        """Return the pipelines of which messages came in since the last call, each with the moment at which the first
        was known."""
        came, self._came = self._came, {}
        return came

    def newest_s(self, pipeline: str, checkpoints: Collection[str]) -> dict[str, int]:
        """Return the newest minute of each of these checkpoints that has one."""
        known = {name: self._minutes.get((pipeline, name)) for name in checkpoints}
        return {name: max(minutes) for name, minutes in known.items() if minutes}

    def came_s(self, pipeline: str, checkpoint: str) -> dict[int, float]:
        """Return a checkpoint's minutes, as far as they are kept, each with the moment at which its first report was
        there at the latest."""
        return dict(self._minutes.get((pipeline, checkpoint), {}))

"""Minutes in which each checkpoint of each pipeline had live beacons, known from tallies ahead of closings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, func, select

from lagloss_server.store.schema.core import TallyRow, table_of
from lagloss_server.store.store import read_basis

LOOK_BACK_S: Final = 90_000
"""Minutes older than this are not read: closed windows cover them."""
_KEPT_S: Final = 10_800
"""Minutes of a checkpoint are kept for this long before its newest."""


class Minutes:
    """Cache of the newest minute with live beacons of each checkpoint, and of those with beacons at an `in`, each with
    the moment (epoch s) at which its first report was known to be there; it reads only tallies that changed since its
    last read."""

    def __init__(self) -> None:
        self._basis = -1
        self._newest: dict[tuple[str, str], int] = {}
        self._minutes: dict[tuple[str, str], npt.NDArray[np.float64]] = {}  # a row each: start, known at
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
        new_minutes: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for pipeline, checkpoint, start, changed_ms in rows:
            at_s, key = changed_ms / 1_000, (pipeline, checkpoint)
            self._newest[key] = max(start, self._newest.get(key, start))
            if checkpoint.endswith(".in"):
                new_minutes[key].append((start, at_s))
            if at_s < self._came.get(pipeline, math.inf):
                self._came[pipeline] = at_s
        for key, minutes in new_minutes.items():
            before = self._minutes.get(key, _NONE)
            new = [minute for minute in minutes if minute[0] not in before[:, 0]]  # what was read first was known first
            if new:
                before = np.concatenate([before, new])
                self._minutes[key] = before[before[:, 0] >= self._newest[key] - _KEPT_S]
        self._basis = basis

    def take_came(self) -> dict[str, float]:
        """Return the pipelines of which messages came in since the last call, each with the moment at which the first
        was known."""
        came, self._came = self._came, {}
        return came

    def newest_s(self, pipeline: str, checkpoints: Collection[str]) -> dict[str, int]:
        """Return the newest minute of each of these checkpoints that has one."""
        newest = {name: self._newest.get((pipeline, name)) for name in checkpoints}
        return {name: start for name, start in newest.items() if start is not None}

    def came_s(self, pipeline: str, node: str) -> dict[int, float]:
        """Return the minutes in which messages came in at a node, as far as they are kept, each with the moment at
        which its first report was there at the latest."""
        starts, known_at = self._minutes.get((pipeline, f"{node}.in"), _NONE).T.tolist()
        return dict(zip(map(int, starts), known_at, strict=True))


_NONE: Final = np.empty((0, 2))

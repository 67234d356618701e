"""Roll-ups as pages read them: which there are, as they are packed, and what a span of them comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Engine, select

from lagloss_server.queries.lru_cache import Remembered
from lagloss_server.store import periods
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import PERIOD_S, Period, Rollup, period_of

EDGE_HOURS: Final = 3
"""So many of the newest hours are summed from their minutes while their roll-ups are not up to date. Older ones are
taken as they are: at most seconds behind, unless the closer is catching up."""

_parts: Final[Remembered[Rollup]] = Remembered(600)
"""Some 50 KB each."""

Key = tuple[Period, int]
"""A roll-up's period and start (epoch s)."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """Which roll-ups of a pipeline there are: when each was computed (epoch ms), and which are to be computed anew."""

    computed: dict[Key, int]
    dirty: frozenset[Key]

    def is_current(self, key: Key) -> bool:
        return key in self.computed and key not in self.dirty


def read_rolled(store: Store, pipeline: str, from_s: int, to_s: int) -> Rolled:
    """Return the roll-ups that overlap [from_s, to_s)."""
    rollup, mark = tables.RollupRow, tables.RollupDirtyRow
    first_s = period_of("day", from_s)
    with store.engine.connect() as connection:
        computed = connection.execute(
            select(rollup.period, rollup.start, rollup.computed_at).where(
                rollup.pipeline == pipeline, rollup.start >= first_s, rollup.start < to_s
            )
        )
        computed_at = {(row.period, row.start): row.computed_at for row in computed}
        marks = connection.execute(
            select(mark.period, mark.start).where(mark.pipeline == pipeline, mark.start >= first_s, mark.start < to_s)
        )
        dirty = {(row.period, row.start) for row in marks}
    # a day is marked only when an hour of it has been computed anew: until then the hour's mark is the day's, too
    dirty |= {("day", period_of("day", start)) for _, start in dirty}
    return Rolled(computed_at, frozenset(dirty))


def database(store: Store) -> str:
    """Return the key of the database in caches."""
    return str(store.engine.url)


def read_packed(engine: Engine, pipeline: str, keys: Sequence[Key]) -> list[tuple[Key, bytes]]:
    """Return these roll-ups as they are stored."""
    row = tables.RollupRow
    rollups: list[tuple[Key, bytes]] = []
    for period in PERIOD_S:
        starts = [start for kind, start in keys if kind == period]
        if starts:
            statement = select(row.start, row.packed).where(
                row.pipeline == pipeline, row.period == period, row.start.in_(starts)
            )
            with engine.connect() as connection:
                rollups += [((period, start), packed) for start, packed in connection.execute(statement)]
    return rollups


def read_total(store: Store, pipeline: str, from_s: int, to_s: int, now_s: float) -> Rollup:
    """Return all closed minutes of [from_s, to_s) together."""
    return periods.total(store, pipeline, from_s, to_s, memory=_parts, settled_s=edge_s(now_s))


def edge_s(now_s: float) -> int:
    """Return the time (epoch s) from which a stale roll-up is summed from its minutes."""
    return period_of("hour", int(now_s)) - (EDGE_HOURS - 1) * PERIOD_S["hour"]

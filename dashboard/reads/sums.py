"""The sums of a pipeline over any whole minutes: of days and hours that are rolled up, and of the minutes between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Engine, or_, select

from dashboard.reads.remembered import Remembered
from lagloss import tables
from lagloss.facts import WindowFacts
from lagloss.rollup import PERIOD_S, Period, Rollup, period_of
from lagloss.store import Store

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
    """The roll-ups that overlap [from_s, to_s)."""
    rollup, mark = tables.Rollup, tables.RollupDirty
    first_s = period_of("day", from_s)
    with store.engine.connect() as connection:
        computed = connection.execute(
            select(rollup.period, rollup.start, rollup.computed_at).where(
                rollup.pipeline == pipeline, rollup.start >= first_s, rollup.start < to_s
            )
        )
        found = {(row.period, row.start): row.computed_at for row in computed}
        marks = connection.execute(
            select(mark.period, mark.start).where(mark.pipeline == pipeline, mark.start >= first_s, mark.start < to_s)
        )
        dirty = {(row.period, row.start) for row in marks}
    # a day is marked only when an hour of it has been computed anew: until then the hour's mark is the day's, too
    dirty |= {("day", period_of("day", start)) for _, start in dirty}
    return Rolled(found, frozenset(dirty))


def database(store: Store) -> str:
    """What tells databases apart in what is remembered of them."""
    return str(store.engine.url)


def read_rollups(store: Store, pipeline: str, keys: Sequence[Key], rolled: Rolled) -> dict[Key, Rollup]:
    """These roll-ups, those that there are."""
    of = database(store)
    kept = {key: (of, pipeline, *key, rolled.computed[key]) for key in keys if key in rolled.computed}
    found = {key: known for key, name in kept.items() if (known := _parts.get(name)) is not None}
    for key, packed in read_packed(store.engine, pipeline, [key for key in kept if key not in found]):
        found[key] = _parts.put(kept[key], Rollup.unpack(packed))
    return found


def read_packed(engine: Engine, pipeline: str, keys: Sequence[Key]) -> list[tuple[Key, bytes]]:
    """These roll-ups as they are stored."""
    row = tables.Rollup
    found: list[tuple[Key, bytes]] = []
    for period in PERIOD_S:
        starts = [start for kind, start in keys if kind == period]
        if starts:
            asked = select(row.start, row.packed).where(
                row.pipeline == pipeline, row.period == period, row.start.in_(starts)
            )
            with engine.connect() as connection:
                found += [((period, start), packed) for start, packed in connection.execute(asked)]
    return found


def read_minutes(store: Store, pipeline: str, spans: Sequence[tuple[int, int]]) -> dict[int, Rollup]:
    """What each closed minute within these spans adds, by its start."""
    if not spans:
        return {}
    window = tables.Window
    inside: ColumnElement[bool] = or_(
        *((window.window_start >= from_s) & (window.window_start < to_s) for from_s, to_s in spans)
    )
    of_pipeline = (window.pipeline == pipeline, inside)
    found: dict[int, Rollup] = {}
    with store.engine.connect() as connection:
        versions = connection.execute(
            select(window.window_start, window.revision, window.closed_at).where(*of_pipeline)
        )
        of = database(store)
        kept = {row.window_start: (of, pipeline, *row) for row in versions}
        found = {start: known for start, name in kept.items() if (known := _parts.get(name)) is not None}
        missing = [start for start in kept if start not in found]
        if not missing:
            return found
        asked = select(window.window_start, window.document, window.facts).where(
            window.pipeline == pipeline, window.window_start.in_(missing)
        )
        for start, document, facts in connection.execute(asked):
            found[start] = _parts.put(kept[start], Rollup.of_window(document, WindowFacts.unpack(facts)))
    return found


def read_total(store: Store, pipeline: str, from_s: int, to_s: int, rolled: Rolled, now_s: float) -> Rollup:
    """All closed minutes of [from_s, to_s) together, by days, hours and minutes."""
    keys: list[Key] = []
    spans: list[tuple[int, int]] = []
    _take(rolled, "day", from_s, to_s, edge_s(now_s), keys, spans)
    parts = read_rollups(store, pipeline, keys, rolled)
    return Rollup.merged([*parts.values(), *read_minutes(store, pipeline, spans).values()])


def edge_s(now_s: float) -> int:
    """From here on (epoch s) a roll-up that is not up to date is summed from its minutes."""
    return period_of("hour", int(now_s)) - (EDGE_HOURS - 1) * PERIOD_S["hour"]


def _take(
    rolled: Rolled,
    period: Period,
    from_s: int,
    to_s: int,
    edge: int,
    keys: list[Key],
    spans: list[tuple[int, int]],
) -> None:
    """Divides [from_s, to_s) into roll-ups of this period that lie within, and what remains into smaller ones."""
    length_s = PERIOD_S[period]
    at = from_s
    while at < to_s:
        start = period_of(period, at)
        ends = min(start + length_s, to_s)
        key = (period, start)
        whole = at == start and ends == start + length_s
        if whole and (rolled.is_current(key) or (period == "hour" and ends <= edge)):
            keys.append(key)
        elif period == "day":
            _take(rolled, "hour", at, ends, edge, keys, spans)
        elif spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], ends)
        else:
            spans.append((at, ends))
        at = ends

"""The overview: how every pipeline stands, read in a few statements for all of them together.

What closed windows come to is kept of each pipeline until one of them changes. Which is the newest, who reports and
which incidents are open is read each time; what decides nothing, only of the rows that are shown (`detailed`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from typing import Any, Final, TypeAlias, TypedDict, cast

from msgspec import structs
from sqlalchemy import BigInteger, Row, Select, Text, select, true

from dashboard.queries.condition import Condition, Freshness, condition, names_of, read_freshness_of
from dashboard.queries.pipeline_status import Hour, Minute, Order, PipelineStatus, State, Targets, worst_first
from dashboard.queries.sla_periods import is_held
from dashboard.queries.window_changes import WindowChanges
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import open_by_severity
from lagloss_server.judging.freshness import expected_to_s
from lagloss_server.judging.sla import is_late
from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.model.window import NO_LAGS, Interval, Lags, LossRatio, Verdict, rfc3339
from lagloss_server.queries.budgets import Spending, read_spending
from lagloss_server.queries.canary import CanaryHealth, read_canary
from lagloss_server.store.results import unpack_window
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import UnreadableRow, UnreadableRows
from lagloss_server.sums.error_budget import Objective
from lagloss_server.sums.rollup import PERIOD_S, period_of

_Found: TypeAlias = Row[*tuple[Any, ...]]
HOURS: Final = 24
"""The hours of a sparkline, the one that is running among them."""
_FEW_HOURS: Final = 3
"""Of fewer hours a sparkline has no shape: its minutes are drawn."""
LOOKED_BACK_S: Final = 6 * 3_600
"""How far back the beginning of a verdict is looked for. Of 100 pipelines that is up to 36,000 rows of an index."""
KEPT_S: Final = 60.0
"""After this time a pipeline is read anew although no notice came: roll-ups follow their windows."""
_MOST_EXPIRED: Final = 1_000
"""Pipelines that are read anew for their age in one read, so that no reader waits for all of them."""
_PAUSES: Final = 4
"""A read is shared for this many times as long as it took, within these bounds: of 10,000 pipelines a fifth of the time
is spent reading, however many readers there are."""
_MIN_SHARED_S: Final = 1.0
_MAX_SHARED_S: Final = 5.0
_PATIENCE_S: Final = 0.25
"""Readers wait for so long for a read that is due; then they are shown what the one before found."""
_MAX_AGE_S: Final = 10.0
_CANARY_S: Final = 20.0
"""Between two reads of how the canary stands."""
"""They wait to its end if the one before began longer ago."""


class MinuteDocument(TypedDict):
    """The newest closed window of a pipeline: see `Minute`. `verdict_since`: null if it has had that verdict for longer
    than was looked back."""

    window_start: str
    verdict: Verdict
    verdict_since: str | None
    messages: int
    lost: Interval
    loss_ratio: LossRatio
    lag_ms: float | None
    on_time_share: float | None
    late: bool


class ShareDocument(TypedDict):
    """Bounds of the share of an error budget that is left."""

    min: float
    max: float


class BudgetDocument(TypedDict):
    """An error budget: `allowed` bad messages, and how many there were; `left`: null if none is allowed."""

    allowed: float
    bad: Interval
    left: ShareDocument | None


class IncidentCounts(TypedDict):
    """The number of open incidents."""

    critical: int
    warning: int


class HourDocument(TypedDict):
    """An hour of a pipeline; null: unknown."""

    start: str
    e2e_p95_ms: float | None
    loss_ratio: float | None


class StandingDocument(TypedDict):
    """How a pipeline stands: see `PipelineStatus`. `budgets`: null if there was no message to judge."""

    pipeline: str
    description: str
    state: State
    condition: Condition
    freshness: Freshness
    targets: Targets
    newest: MinuteDocument | None
    budgets: dict[Objective, BudgetDocument | None]
    open_incidents: IncidentCounts


class StatusDocument(StandingDocument):
    """How a pipeline stands, and its last hours."""

    hours: list[HourDocument]


class SetAsideDefinition(TypedDict):
    """A newest definition that is unreadable."""

    pipeline: str
    version: int
    error: str


class OverviewDocument(TypedDict):
    """How pipelines stand: `matching` of all are chosen, of which some are listed. `states`: of all, how many are in
    each."""

    as_of: str
    total: int
    matching: int
    states: dict[State, int]
    pipelines: list[StatusDocument]
    set_aside: list[SetAsideDefinition]


@dataclass(frozen=True)
class Overview:
    """Every pipeline, worst first, as of `now_s` (epoch s)."""

    now_s: float
    standings: tuple[PipelineStatus, ...]
    unreadable: tuple[UnreadableRow, ...] = ()
    """Newest definitions that are set aside: their pipelines are not among the standings."""
    canary: CanaryHealth | None = None
    """How lagloss's own pipeline stands; None if there is none."""

    @cached_property
    def counts(self) -> dict[State, int]:
        """How many pipelines are in each state, worst first; states that none is in are left out."""
        counted = Counter(standing.state for standing in self.standings)
        return {state: counted[state] for state in State if counted[state]}

    def among(self, names: frozenset[str]) -> Overview:
        """Return the overview of these pipelines alone."""
        standings = tuple(standing for standing in self.standings if standing.pipeline in names)
        unreadable = tuple(row for row in self.unreadable if row.pipeline in names)
        return Overview(self.now_s, standings, unreadable, self.canary)

    def chosen(
        self, text: str = "", state: State | None = None, order: Order = Order.WORST
    ) -> Sequence[PipelineStatus]:
        """Return those whose name or description holds this text (in any case), and that are in this state."""
        words = text.strip().casefold()
        standings = [
            standing
            for standing in self.standings
            if (state is None or standing.state is state)
            and (words in standing.pipeline.casefold() or words in standing.description.casefold())
        ]
        return standings if order is Order.WORST else sorted(standings, key=order.key)

    def document(self, matching: int, shown: Sequence[PipelineStatus]) -> OverviewDocument:
        """Return the overview as the API prints it, with those that are shown of the matching pipelines."""
        return {
            "as_of": rfc3339(int(self.now_s)),
            "total": len(self.standings),
            "matching": matching,
            "states": dict(self.counts),
            "pipelines": [cast("StatusDocument", standing.document()) for standing in shown],
            "set_aside": [
                {"pipeline": row.pipeline, "version": int(row.name), "error": row.why} for row in self.unreadable
            ],
        }


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the closed windows of a pipeline come to, by its newest definition. `stamp`: of their changes; `row`: the
    definition's version and stamp."""

    stored: StoredPipeline
    newest: Minute | None
    spending: Spending
    stamp: Hashable
    row: tuple[int, int]
    read_at_s: float

    def is_newest(self, fresh: Freshness) -> bool:
        """Return whether its newest closed window is still that, with the same verdict."""
        if self.newest is None:
            return fresh.newest_s is None
        return (self.newest.start_s, self.newest.verdict) == (fresh.newest_s, fresh.verdict)


class OverviewCache:
    """The overview of all pipelines, shared by all readers: pipelines are read anew whose windows have changed."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self.unreadable = UnreadableRows()
        """Newest definitions that are set aside, as of the last read."""
        self._newest = Overview(0.0, ())
        self._canary: tuple[float, CanaryHealth | None] = (0.0, None)
        self._due_s = 0.0
        self._thread = ThreadPoolExecutor(1, "overview")
        self._reading: Future[None] | None = None
        self._lock = threading.Lock()

    def read(self, store: Store, changes: WindowChanges) -> Overview:
        """Return how every pipeline stands that whoever asks may see: now, or a moment ago where others asked then, or
        where to read it takes long; never longer than `_MAX_AGE_S` ago."""
        reading = self._read_if_due(store.unscoped, changes)
        if reading is not None:
            is_old = time.time() - self._newest.now_s > _MAX_AGE_S
            with suppress(TimeoutError):
                reading.result(None if is_old else _PATIENCE_S)
        newest = self._newest
        return newest if store.is_whole else newest.among(frozenset(store.names()))

    def _read_if_due(self, store: Store, changes: WindowChanges) -> Future[None] | None:
        """Return the read that is being made, begun here if one is due; None if none is."""
        with self._lock:
            if time.monotonic() < self._due_s:
                return None
            if self._reading is None or self._reading.done():
                self._reading = self._thread.submit(self._refresh, store, changes)
            return self._reading

    def _refresh(self, store: Store, changes: WindowChanges) -> None:
        began_s = time.monotonic()
        self._newest = self.read_anew(store, changes, time.time())
        self.unreadable.replace("definition", self._newest.unreadable)
        ended_s = time.monotonic()
        self._due_s = ended_s + min(max(_PAUSES * (ended_s - began_s), _MIN_SHARED_S), _MAX_SHARED_S)

    def read_anew(self, store: Store, changes: WindowChanges, now_s: float) -> Overview:
        """Return how every pipeline that is not deleted stands now."""
        newest = store.newest_stamps()
        names = list(newest)
        stamps = {name: changes.stamp(name) for name in names}
        fresh = read_freshness_of(store, names, now_s)
        cached = {
            name: entry for name in names if (entry := self._kept.get(name)) is not None and entry.row == newest[name]
        }
        same = {name for name, entry in cached.items() if entry.stamp == stamps[name] and entry.is_newest(fresh[name])}
        changed = [name for name in names if name not in same]
        expired = [name for name in same if now_s - cached[name].read_at_s > KEPT_S]
        expired = nsmallest(_MOST_EXPIRED, expired, key=lambda name: cached[name].read_at_s)
        read, unreadable = _read_closed(store, [*changed, *expired], cached, stamps, newest, now_s)
        self._kept = cached | read
        incidents = open_by_severity(store, names)
        standings = (
            _standing(entry, fresh[name], incidents.get(name, {}), now_s)
            for name in names
            if (entry := self._kept.get(name)) is not None
        )
        return Overview(now_s, tuple(worst_first(standings)), tuple(unreadable), self._read_canary(store, now_s))

    def _read_canary(self, store: Store, now_s: float) -> CanaryHealth | None:
        """Return how the canary stands, which changes once a minute."""
        read_s, canary = self._canary
        if abs(now_s - read_s) > _CANARY_S:
            with store.engine.connect() as connection:
                canary = read_canary(connection, now_s)
            self._canary = now_s, canary
        return canary


def read_overview(store: Store, now_s: float) -> Overview:
    """Return how every pipeline that is not deleted stands now, of which nothing is kept."""
    return OverviewCache().read_anew(store, WindowChanges(), now_s)


def detailed(store: Store, shown: Sequence[PipelineStatus], now_s: float) -> list[PipelineStatus]:
    """Return these pipelines with what is read of shown ones alone: since when they have their verdict, and their last
    hours."""
    newest = [
        (standing.pipeline, standing.newest.start_s, standing.newest.verdict)
        for standing in shown
        if standing.newest is not None
    ]
    since_s, hours = read_since(store, newest), _read_hours(store, [standing.pipeline for standing in shown], now_s)
    young = [standing.pipeline for standing in shown if len(hours.get(standing.pipeline, ())) < _FEW_HOURS]
    minutes = _read_minutes(store, young, now_s)
    return [
        replace(
            standing,
            minutes=_minutes(minutes.get(standing.pipeline, ())),
            newest=None
            if standing.newest is None
            else structs.replace(standing.newest, since_s=since_s.get(standing.pipeline)),
            hours=_hours(hours.get(standing.pipeline, ()), now_s),
        )
        for standing in shown
    ]


def _read_closed(
    store: Store,
    names: Sequence[str],
    cached: Mapping[str, _Kept],
    stamps: Mapping[str, Hashable],
    rows: Mapping[str, tuple[int, int]],
    now_s: float,
) -> tuple[dict[str, _Kept], list[UnreadableRow]]:
    """Read what the closed windows of these pipelines come to, and which of their definitions are unreadable;
    definitions that are known are not read again."""
    if not names:
        return {}, []
    new = store.pipelines([name for name in names if name not in cached])
    pipelines = [*(cached[name].stored for name in names if name in cached), *new]
    pipeline_names = [stored.name for stored in pipelines]
    newest, spending = _read_newest(store, pipeline_names), read_spending(store, pipelines, now_s)
    lags = _read_lags(store, pipelines, newest)
    entries = {
        stored.name: _Kept(
            stored,
            None if (row := newest.get(stored.name)) is None else _minute(row, lags[stored.name], stored.definition),
            spending[stored.name],
            stamps[stored.name],
            rows[stored.name],
            now_s,
        )
        for stored in pipelines
    }
    return entries, new.unreadable


def _standing(entry: _Kept, fresh: Freshness, incidents: Mapping[str, int], now_s: float) -> PipelineStatus:
    definition = entry.stored.definition
    sla, grace = definition.spec.sla, definition.spec.grace
    return PipelineStatus(
        pipeline=definition.name,
        description=definition.metadata.description,
        condition=condition(fresh, grace, now_s, has_windows=entry.newest is not None),
        fresh=fresh,
        targets=Targets(sla.loss.max, sla.lag.percentile, sla.lag.target),
        newest=entry.newest,
        budgets=entry.spending.budgets(expected_to_s(now_s, grace)),
        critical=incidents.get("critical", 0),
        warning=incidents.get("warning", 0),
    )


def _minute(row: _Found, lags: Lags, definition: Definition) -> Minute:
    on_time_share = row.on_time / row.on_time_of if row.on_time_of else None
    return Minute(
        start_s=row.window_start,
        verdict=row.verdict,
        since_s=None,
        messages=row.messages,
        lost=Interval(row.lost_min, row.lost_max),
        lag_ms=getattr(lags, fmt.percentile(definition.spec.sla.lag.percentile), None),
        on_time_share=on_time_share,
        is_late=is_late(lags, on_time_share, definition),
    )


def _hours(rows: Iterable[_Found], now_s: float) -> tuple[Hour, ...]:
    """Return the last `HOURS`, oldest first, whether anything is known of them or not."""
    hours = {row.start: _step(row) for row in rows}
    starts = range(_first_hour(now_s), int(now_s) + 1, PERIOD_S["hour"])
    return tuple(hours.get(start, Hour(start)) for start in starts)


def _minutes(rows: Sequence[_Found]) -> tuple[Hour, ...]:
    """Return the minutes from the first to the last of these, whether anything is known of them or not."""
    minutes = {row.start: _step(row) for row in rows}
    if not minutes:
        return ()
    starts = range(min(minutes), max(minutes) + WINDOW_S, WINDOW_S)
    return tuple(minutes.get(start, Hour(start)) for start in starts)


def _step(row: _Found) -> Hour:
    return Hour(row.start, row.e2e_p95_ms, row.lost_min / row.messages if row.messages else None)


def _first_hour(now_s: float) -> int:
    return period_of("hour", int(now_s)) - (HOURS - 1) * PERIOD_S["hour"]


def _read_newest(store: Store, pipelines: Sequence[str]) -> dict[str, _Found]:
    """Return the newest closed window of each, by the columns that hold its numbers."""
    window, names = tables.WindowRow, names_of(pipelines)
    columns = (window.window_start, window.verdict, window.messages, window.lost_min, window.lost_max)
    newest = (
        select(*columns, window.on_time, window.on_time_of, window.e2e_p95_ms)
        .where(window.pipeline == names.c.name)
        .order_by(window.window_start.desc())
        .limit(1)
        .lateral("newest")
    )
    query: Select[*tuple[Any, ...]] = select(names.c.name, newest).select_from(names.join(newest, true()))
    with store.engine.connect() as connection:
        return {row.name: row for row in connection.execute(query)}


def _read_lags(store: Store, pipelines: Sequence[StoredPipeline], newest: Mapping[str, _Found]) -> dict[str, Lags]:
    """Return the E2E lags of these newest windows at the SLA's percentile; nothing where results do not hold it. Only
    for another one than p95 documents are read."""
    slas = {stored.name: stored.definition.spec.sla.lag for stored in pipelines if stored.name in newest}
    lags = {
        name: Lags(None, newest[name].e2e_p95_ms, None, None) if lag.percentile == 95 else NO_LAGS
        for name, lag in slas.items()
    }
    others = [name for name, lag in slas.items() if is_held(lag) and lag.percentile != 95]
    if others:
        window = tables.WindowRow
        places = ((name, newest[name].window_start) for name in others)
        in_places = tables.at_places(window.pipeline, window.window_start, places)
        with store.engine.connect() as connection:
            rows = connection.execute(select(window.pipeline, window.document).where(*in_places))
            results = (unpack_window(name, newest[name].window_start, document) for name, document in rows)
            lags |= {result.pipeline: result.e2e_lag_ms for result in results if result is not None}
    return lags


def read_since(store: Store, newest: Sequence[tuple[str, int, str]]) -> dict[str, int]:
    """Return by pipeline the start of the first window that had the verdict of its newest one without a break, where it
    is no further back than `LOOKED_BACK_S`. `newest`: pipeline, start and verdict of those."""
    window = tables.WindowRow
    listed = tables.rows_of(newest, name=Text(), start=BigInteger(), verdict=Text())
    lately = (
        select(window.window_start)
        .where(
            window.pipeline == listed.c.name,
            window.window_start >= listed.c.start - LOOKED_BACK_S,
            window.window_start <= listed.c.start,
        )
        .limit(1)
    )
    another = (window.verdict != listed.c.verdict, window.window_start < listed.c.start)
    changed = lately.where(*another).order_by(window.window_start.desc()).lateral("changed")
    first = lately.order_by(window.window_start).lateral("first")
    rows: Select[*tuple[Any, ...]] = select(
        listed.c.name, listed.c.start, changed.c.window_start.label("changed_s"), first.c.window_start.label("first_s")
    ).select_from(listed.outerjoin(changed, true()).join(first, true()))
    with store.engine.connect() as connection:
        return {
            row.name: row.first_s if row.changed_s is None else row.changed_s + WINDOW_S
            for row in connection.execute(rows)
            if row.changed_s is not None or row.first_s > row.start - LOOKED_BACK_S
        }


def _read_hours(store: Store, pipelines: Sequence[str], now_s: float) -> dict[str, list[_Found]]:
    row = tables.RollupRow
    query: Select[*tuple[Any, ...]] = select(row.pipeline, row.start, row.e2e_p95_ms, row.messages, row.lost_min).where(
        tables.is_any(row.pipeline, pipelines), row.period == "hour", row.start >= _first_hour(now_s)
    )
    return _by_pipeline(store, query)


def _read_minutes(store: Store, pipelines: Sequence[str], now_s: float) -> dict[str, list[_Found]]:
    """Read the closed minutes of the last hours of pipelines that have hardly more."""
    if not pipelines:
        return {}
    row = tables.WindowRow
    start = row.window_start.label("start")
    query: Select[*tuple[Any, ...]] = select(row.pipeline, start, row.e2e_p95_ms, row.messages, row.lost_min).where(
        tables.is_any(row.pipeline, pipelines), row.window_start >= int(now_s) - _FEW_HOURS * PERIOD_S["hour"]
    )
    return _by_pipeline(store, query)


def _by_pipeline(store: Store, query: Select[*tuple[Any, ...]]) -> dict[str, list[_Found]]:
    rows: dict[str, list[_Found]] = {}
    with store.engine.connect() as connection:
        for row in connection.execute(query):
            rows.setdefault(row.pipeline, []).append(row)
    return rows

"""Why there is nothing to draw of a pipeline, or how old what is drawn has become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Subquery, TableValuedAlias, Text, func, select, true
from sqlalchemy.sql.selectable import LateralFromClause

from lagloss_server.judging.freshness import is_stale
from lagloss_server.queries.emitters import is_heard
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store


class Condition(StrEnum):
    """Caveats that a reader needs before the numbers."""

    FINE = "fine"
    STALE = "stale"
    IDLE = "idle"
    BLIND = "blind"
    NOT_CLOSED = "not closed yet"
    NOTHING_IN_RANGE = "nothing in range"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How recent what is known of a pipeline is. Epoch s, None where there is nothing: `newest_s`, the start of the
    newest closed window; `verdict`, of that one; `live_s`, the start of the newest minute with a tally; `reported_s`,
    when its newest report was appended. `reporting` of its `emitters` reported within a minute; those that closed
    before, or were last heard more than a day ago, are none of them."""

    newest_s: int | None
    verdict: str | None
    live_s: int | None
    reported_s: float | None
    emitters: int
    reporting: int

    def document(self) -> dict[str, Any]:
        return asdict(self)


def read_freshness(store: Store, pipeline: str, now_s: float) -> Freshness:
    """Return how recent what is known of this pipeline is."""
    return read_freshness_of(store, [pipeline], now_s)[pipeline]


def read_freshness_of(store: Store, pipelines: Sequence[str], now_s: float) -> dict[str, Freshness]:
    """Return how recent what is known of each of these pipelines is, in one statement however many they are."""
    names = names_of(pipelines)
    newest, live, reports = _newest_window(names.c.name), _newest_tally(names.c.name), _reports(pipelines, now_s)
    statement = select(
        names.c.name,
        newest.c.window_start,
        newest.c.verdict,
        live.c.window_start.label("live_s"),
        reports.c.reported_ms,
        func.coalesce(reports.c.emitters, 0).label("emitters"),
        func.coalesce(reports.c.reporting, 0).label("reporting"),
    ).select_from(
        names.outerjoin(newest, true()).outerjoin(live, true()).outerjoin(reports, reports.c.pipeline == names.c.name)
    )
    with store.engine.connect() as connection:
        rows = connection.execute(statement).all()
    return {
        row.name: Freshness(
            newest_s=row.window_start,
            verdict=row.verdict,
            live_s=row.live_s,
            reported_s=row.reported_ms / 1_000 if row.reported_ms is not None else None,
            emitters=row.emitters,
            reporting=row.reporting,
        )
        for row in rows
    }


def names_of(pipelines: Sequence[str]) -> TableValuedAlias:
    """Return these names as a table of one column, `name`, for lateral joins: each is looked up by itself in an
    index."""
    return tables.rows_of(((name,) for name in pipelines), name=Text())


def _newest_window(name: ColumnElement[str]) -> LateralFromClause:
    window = tables.WindowRow
    return (
        select(window.window_start, window.verdict)
        .where(window.pipeline == name)
        .order_by(window.window_start.desc())
        .limit(1)
        .lateral("newest")
    )


def _newest_tally(name: ColumnElement[str]) -> LateralFromClause:
    tally = tables.TallyRow
    return (
        select(tally.window_start)
        .where(tally.pipeline == name)
        .order_by(tally.window_start.desc())
        .limit(1)
        .lateral("live")
    )


def _reports(pipelines: Sequence[str], now_s: float) -> Subquery:
    emitter, now_ms = tables.EmitterRow, int(now_s * 1_000)
    heard = is_heard(now_ms)
    is_open = ~emitter.closed & is_lately(now_ms)
    return (
        select(
            emitter.pipeline,
            func.max(emitter.appended_at).label("reported_ms"),
            func.count().filter(heard | is_open).label("emitters"),
            func.count().filter(heard).label("reporting"),
        )
        .where(tables.is_any(emitter.pipeline, pipelines))
        .group_by(emitter.pipeline)
        .subquery("reports")
    )


def is_lately(now_ms: int) -> ColumnElement[bool]:
    """Return whether an emitter was heard within the last day: those before are not missed any more."""
    return tables.EmitterRow.appended_at >= now_ms - DAY_S * 1_000


def condition(fresh: Freshness, grace_ms: int, now_s: float, has_windows: bool, *, ends_now: bool = True) -> Condition:
    """`has_windows`: whether there is anything to draw in the range that was asked for; `ends_now`: whether that range
    holds this moment, so that something should be there."""
    if fresh.newest_s is None:
        # idle is a verdict: before the first one it is unknown that nothing comes in
        if fresh.live_s is None or not is_stale(fresh.live_s, grace_ms, now_s):
            return Condition.NOT_CLOSED if fresh.reporting or fresh.live_s is not None else Condition.BLIND
        return Condition.STALE if fresh.reporting else Condition.BLIND
    if not has_windows and not ends_now:
        return Condition.NOTHING_IN_RANGE
    stale = is_stale(fresh.newest_s, grace_ms, now_s)
    if not fresh.reporting and (stale or fresh.verdict == "unknown"):
        return Condition.BLIND
    if stale:
        return Condition.STALE
    if not has_windows:
        return Condition.NOTHING_IN_RANGE
    return Condition.IDLE if fresh.verdict == "idle" else Condition.FINE

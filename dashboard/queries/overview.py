"""The overview: how every pipeline stands, read in a few statements for all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Row, Select, select, true

from dashboard.queries.condition import Freshness, condition, names_of, read_freshness_of
from dashboard.queries.pipeline_status import Hour, Minute, PipelineStatus, State, Targets, worst_first
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.incident import open_by_severity
from lagloss_server.model.definition import Definition
from lagloss_server.model.window_result import rfc3339
from lagloss_server.queries.budgets import Budgets, read_budgets
from lagloss_server.rules.rollup import PERIOD_S, period_of
from lagloss_server.rules.sla import is_late
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

_Found: TypeAlias = Row[*tuple[Any, ...]]
HOURS: Final = 24
"""The hours of a sparkline, the one that is running among them."""
LOOKED_BACK_S: Final = 6 * 3_600
"""How far back the beginning of a verdict is looked for. Of 200 pipelines that is up to 72,000 rows of an index."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Every pipeline, worst first, as of `now_s` (epoch s)."""

    now_s: float
    standings: tuple[PipelineStatus, ...]

    @property
    def counts(self) -> dict[State, int]:
        """How many pipelines are in each state, worst first; states that none is in are left out."""
        counted = Counter(standing.state for standing in self.standings)
        return {state: counted[state] for state in State if counted[state]}

    def chosen(self, text: str = "", state: State | None = None) -> tuple[PipelineStatus, ...]:
        """Return those whose name or description holds this text (in any case), and that are in this state."""
        wanted = text.strip().casefold()
        return tuple(
            standing
            for standing in self.standings
            if (state is None or standing.state is state)
            and (wanted in standing.pipeline.casefold() or wanted in standing.description.casefold())
        )

    def document(self, text: str = "", state: State | None = None) -> dict[str, Any]:
        return {
            "as_of": rfc3339(int(self.now_s)),
            "total": len(self.standings),
            "states": dict(self.counts),
            "pipelines": [standing.document() for standing in self.chosen(text, state)],
        }


def read_overview(store: Store, now_s: float) -> Overview:
    """Return how every pipeline that is not deleted stands now."""
    pipelines = store.pipelines()
    definitions = {stored.name: stored.definition for stored in pipelines}
    names = list(definitions)
    fresh = read_freshness_of(store, names, now_s)
    newest = _read_newest(store, names)
    budgets, hours = read_budgets(store, pipelines, now_s), _read_hours(store, names, now_s)
    incidents = open_by_severity(store, names)
    return Overview(
        now_s,
        tuple(
            worst_first(
                _standing(
                    definition,
                    fresh[name],
                    newest.get(name),
                    budgets[name],
                    _hours(hours.get(name, ()), now_s),
                    incidents.get(name, {}),
                    now_s,
                )
                for name, definition in definitions.items()
            )
        ),
    )


def _standing(
    definition: Definition,
    fresh: Freshness,
    newest: _Found | None,
    budgets: Budgets,
    hours: tuple[Hour, ...],
    incidents: Mapping[str, int],
    now_s: float,
) -> PipelineStatus:
    sla = definition.spec.sla
    return PipelineStatus(
        pipeline=definition.name,
        description=definition.metadata.description,
        condition=condition(fresh, definition.spec.grace, now_s, has_windows=newest is not None),
        fresh=fresh,
        targets=Targets(sla.loss.max, sla.lag.percentile, sla.lag.target),
        newest=None if newest is None else _minute(newest, definition),
        budgets=budgets,
        hours=hours,
        critical=incidents.get("critical", 0),
        warning=incidents.get("warning", 0),
    )


def _minute(row: _Found, definition: Definition) -> Minute:
    if row.changed_s is not None:
        since_s = row.changed_s + WINDOW_S
    else:
        since_s = row.first_s if row.first_s > row.window_start - LOOKED_BACK_S else None
    return Minute(
        start_s=row.window_start,
        verdict=row.verdict,
        since_s=since_s,
        messages=row.messages,
        lost_min=row.lost_min,
        lost_max=row.lost_max,
        lag_ms=row.lags.get(f"p{definition.spec.sla.lag.percentile:g}"),
        on_time_share=row.on_time_share,
        is_late=is_late(row.lags, row.on_time_share, definition),
    )


def _hours(rows: Iterable[_Found], now_s: float) -> tuple[Hour, ...]:
    """Return the last `HOURS`, oldest first, whether anything is known of them or not."""
    known = {
        row.start: Hour(row.start, row.e2e_p95_ms, row.lost_min / row.messages if row.messages else None)
        for row in rows
    }
    starts = range(_first_hour(now_s), int(now_s) + 1, PERIOD_S["hour"])
    return tuple(known.get(start, Hour(start)) for start in starts)


def _first_hour(now_s: float) -> int:
    return period_of("hour", int(now_s)) - (HOURS - 1) * PERIOD_S["hour"]


def _read_newest(store: Store, pipelines: Sequence[str]) -> dict[str, _Found]:
    """Return the newest closed window of each. `changed_s`: the newest before it with another verdict; `first_s`: the
    oldest one; both no further back than `LOOKED_BACK_S`."""
    window, names = tables.WindowRow, names_of(pipelines)
    newest = (
        select(
            window.window_start,
            window.verdict,
            window.messages,
            window.lost_min,
            window.lost_max,
            window.document["e2e_lag_ms"].label("lags"),
            window.document["on_time_share"].label("on_time_share"),
        )
        .where(window.pipeline == names.c.name)
        .order_by(window.window_start.desc())
        .limit(1)
        .lateral("newest")
    )
    lately = (
        select(window.window_start)
        .where(
            window.pipeline == names.c.name,
            window.window_start >= newest.c.window_start - LOOKED_BACK_S,
            window.window_start <= newest.c.window_start,
        )
        .limit(1)
    )
    changed = lately.where(window.verdict != newest.c.verdict).order_by(window.window_start.desc()).lateral("changed")
    first = lately.order_by(window.window_start).lateral("first")
    asked: Select[*tuple[Any, ...]] = select(
        names.c.name, newest, changed.c.window_start.label("changed_s"), first.c.window_start.label("first_s")
    ).select_from(names.join(newest, true()).outerjoin(changed, true()).join(first, true()))
    with store.engine.connect() as connection:
        return {row.name: row for row in connection.execute(asked)}


def _read_hours(store: Store, pipelines: Sequence[str], now_s: float) -> dict[str, list[_Found]]:
    row = tables.RollupRow
    asked: Select[*tuple[Any, ...]] = select(row.pipeline, row.start, row.e2e_p95_ms, row.messages, row.lost_min).where(
        tables.is_any(row.pipeline, pipelines), row.period == "hour", row.start >= _first_hour(now_s)
    )
    found: dict[str, list[_Found]] = {}
    with store.engine.connect() as connection:
        for hour in connection.execute(asked):
            found.setdefault(hour.pipeline, []).append(hour)
    return found

"""Reports for tests of their forms, made of a few numbers and no database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

from msgspec import structs

from dashboard.reports.changes import what_changed
from dashboard.reports.model import BurnPoint, DestinationFigures, Figures, Incidents, LagByHop, Report, WorstHour
from dashboard.reports.ranges import day_edges, named_range, previous
from lagloss.wire.sketch import Sketch
from lagloss_server.incidents.incident import Incident
from lagloss_server.incidents.response_times import Course, Times
from lagloss_server.model.hops import Hop
from lagloss_server.model.window import Interval
from lagloss_server.store.periods import Coverage
from lagloss_server.sums.error_budget import OBJECTIVES, BudgetShare, Target, judge
from lagloss_server.sums.rollup import PartSums, Rollup
from tests.support.incident_rows import NOON, WHERE, detail_of
from tests.support.window_documents import chain

NOW_S = NOON.timestamp()


def rollup(messages: int = 1_000, lost: tuple[int, int] = (5, 7), windows: int = 60) -> Rollup:
    return Rollup(
        windows=windows,
        verdicts={"ok": windows},
        messages=messages,
        delivered=messages - lost[1],
        lost=Interval(*lost),
        on_time=messages - 40,
        on_time_of=messages,
        e2e_lags=Sketch.from_bins({10_250: messages}),
        lost_at={"link src->mid": Interval(*lost)},
    )


HOPS = (Hop("arrival", "src"), Hop("queue", "mid", "src"), Hop("process", "mid"))


def lag_by_hop(*p95_ms: float) -> LagByHop:
    """Of the first hops of `chain`."""
    return LagByHop(dict(zip(HOPS, p95_ms, strict=False)), "snk", frozenset(HOPS[: len(p95_ms)]))


def destination(made: Report, name: str, now: PartSums, before: PartSums) -> DestinationFigures:
    whole, previous_ = (
        figures(of.from_s, of.to_s, structs.replace(of.total, destinations={name: sums}).at(name))
        for of, sums in ((made.whole, now), (made.previous, before))
    )
    return DestinationFigures(name, made.targets, whole, previous_)


def figures(from_s: int, to_s: int, total: Rollup) -> Figures:
    known = Coverage((to_s - from_s) // 60, total.windows, 0, 0, (to_s - from_s) // 60 - total.windows, 0)
    parts = [(total, Target.of(1, chain(), from_s, to_s))]
    attainments = tuple(judge(objective, parts, known.missing) for objective in OBJECTIVES)
    return Figures(from_s, to_s, total, known, attainments)


def incident(rule: str = "loss", text: str = "3.20% of messages lost, target 1.00%") -> Incident:
    return Incident(
        UUID(int=1), "chain", rule, "loss", "critical", "resolved", NOON, NOON + timedelta(minutes=9), None, None,
        int(NOW_S), int(NOW_S), 0.03, 0.05, 0.01,
        detail_of(text=text, worst_window=int(NOW_S), windows=1, where=[WHERE], resolved_because="recovered"),
    )  # fmt: skip


def report(pipeline: str = "chain", description: str = "", *incidents: Incident, empty_day: bool = True) -> Report:
    """A week, of which one day is empty."""
    span = named_range("2026-W46", "Europe/Berlin", NOW_S)
    edges = day_edges(span)
    days = tuple(
        figures(early, late, Rollup() if empty_day and at == 3 else rollup())
        for at, (early, late) in enumerate(pairwise(edges))
    )
    whole = figures(span.from_s, span.to_s, Rollup.merged(day.total for day in days))
    points = [
        BurnPoint(day.to_s, (BudgetShare(1 - at / 5, 1 - at / 9), BudgetShare(1 - at / 8, 1 - at / 8)))
        if day.known.closed
        else BurnPoint(day.to_s, (None, None))
        for at, day in enumerate(days)
    ]
    before = previous(span)
    course = Course("critical", "loss", NOON, NOON + timedelta(minutes=2), NOON + timedelta(minutes=9), "recovered")
    made = Report(
        pipeline=pipeline,
        description=description,
        span=span,
        made_at_s=NOW_S,
        targets=(Target.of(1, chain(), span.from_s, span.to_s),),
        whole=whole,
        previous=figures(before.from_s, before.to_s, rollup(2_000, (0, 0))),
        previous_span=before,
        days=days,
        burn_down=tuple(points),
        worst_hours=(
            WorstHour(figures(edges[0], edges[0] + 3_600, rollup()), (BudgetShare(0.1, 0.14), BudgetShare(0.2, 0.2))),
        ),
        incidents=Incidents(incidents, Times.of([course] if incidents else [])),
        destinations=(),
        lag=lag_by_hop(20.0, 60.0, 20.0),
        previous_lag=lag_by_hop(20.0, 30.0),
    )
    return replace(made, changes=what_changed(made))

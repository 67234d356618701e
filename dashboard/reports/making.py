"""Making a report: one pass over the hours of its range for days and hours, one over its days for the sketches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from itertools import groupby, pairwise
from typing import Final

from dashboard.reports.model import WORST_HOURS, BurnPoint, Figures, Incidents, Report, WorstHour
from dashboard.reports.ranges import CalendarSpan, day_edges, previous
from lagloss_server.incidents.incident import incidents
from lagloss_server.incidents.response_times import Times, overlapping_courses
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.window_result import Interval
from lagloss_server.rules.error_budget import (
    OBJECTIVES,
    Budget,
    Target,
    bad_interval,
    judge,
    target_at,
    targets_of,
    targets_within,
    unseen_estimate,
)
from lagloss_server.rules.freshness import expected_to_s
from lagloss_server.rules.quality import quality_rows
from lagloss_server.rules.rollup import period_of
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.periods import TimeRange, coverage, first_known, hour_edges, joined, series
from lagloss_server.store.store import Store

HOURLY_UP_TO_S: Final = 3 * DAY_S
"""The budget of a range as short as this is drawn by the hour."""


def make_report(store: Store, pipeline: str, span: CalendarSpan, now_s: float) -> Report:
    """Return the report of a pipeline over a range, as of now.

    Raises:
        UnknownPipeline: there is none of this name.
    """
    versions = store.versions_of(pipeline)
    definition = versions[-1].definition
    reading = _Reading(
        store, pipeline, versions, first_known(store, pipeline), expected_to_s(now_s, definition.spec.grace)
    )
    whole, before = reading.whole(span), previous(span)
    hours = reading.by_hour(span)
    days = [reading.figures(parts) for parts in _grouped(hours, day_edges(span))]
    steps = days if span.to_s - span.from_s > HOURLY_UP_TO_S else [reading.figures([hour]) for hour in hours]
    return Report(
        pipeline=pipeline,
        description=definition.metadata.description,
        span=span,
        made_at_s=now_s,
        targets=tuple(reading.targets(span)),
        whole=whole,
        previous=reading.whole(before),
        previous_span=before,
        days=tuple(days),
        burn_down=_burn_down(whole, [step for step in steps if step.from_s < now_s]),
        worst_hours=tuple(_worst_hour(whole, reading.figures(parts)) for parts in _worst(whole, hours)),
        incidents=_incidents(store, pipeline, span),
        quality=quality_rows(whole.total, definition) if whole.known.closed else (),
    )


class _Reading:
    """Shared inputs of all figures of a report."""

    def __init__(
        self, store: Store, pipeline: str, versions: Sequence[StoredPipeline], first_s: int | None, expected_to_s: float
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._targets = targets_of(versions)
        self._first_s = first_s
        self._expected_to_s = expected_to_s

    def targets(self, span: CalendarSpan) -> list[Target]:
        return targets_within(self._targets, span.from_s, span.to_s)

    def whole(self, span: CalendarSpan) -> Figures:
        """Return all of a range, with sketches and places; each version's stretch against its own target."""
        targets = self.targets(span)
        edges = [*(target.from_s for target in targets), span.to_s]
        return self._judged(list(zip(series(self._store, self._pipeline, edges), targets, strict=True)))

    def by_hour(self, span: CalendarSpan) -> list[TimeRange]:
        """Return a range in stretches of an hour at most, parted where days begin and targets change. Counts only."""
        targets = [target.from_s for target in self.targets(span)]
        edges = sorted({*hour_edges(span.from_s, span.to_s), *day_edges(span), *targets})
        return series(self._store, self._pipeline, edges, counts_only=True)

    def figures(self, parts: Sequence[TimeRange]) -> Figures:
        """Return the figures of neighbouring ranges."""
        return self._judged([(part, target_at(self._targets, part.from_s)) for part in parts])

    def _judged(self, parts: Sequence[tuple[TimeRange, Target]]) -> Figures:
        whole = joined([part for part, _ in parts])
        known = coverage(whole, self._first_s, self._expected_to_s)
        totals = [(part.total, target) for part, target in parts]
        attainments = tuple(judge(objective, totals, known.missing) for objective in OBJECTIVES)
        return Figures(whole.from_s, whole.to_s, whole.total, known, attainments)


def _grouped(parts: Sequence[TimeRange], edges: Sequence[int]) -> list[list[TimeRange]]:
    """Return the parts between each two edges; no part lies across one."""
    groups: list[list[TimeRange]] = [[] for _ in pairwise(edges)]
    for part in parts:
        groups[bisect_right(edges, part.from_s) - 1].append(part)
    return groups


def _hour_of(part: TimeRange) -> int:
    return period_of("hour", part.from_s)


def _burn_down(whole: Figures, steps: Sequence[Figures]) -> tuple[BurnPoint, ...]:
    """Return the budget of all messages of the range that is left after each step."""
    bad, without_verdict = [Interval(0, 0) for _ in whole.attainments], 0
    points = [BurnPoint(whole.from_s, tuple(Budget(one.allowed, Interval(0, 0)).left for one in whole.attainments))]
    for step in steps:
        bad = [_added((so_far, one.bad)) for so_far, one in zip(bad, step.attainments, strict=True)]
        without_verdict += step.without_verdict
        left = []
        for one, so_far in zip(whole.attainments, bad, strict=True):
            unseen = unseen_estimate(one.of, without_verdict, whole.known.closed)
            left.append(Budget(one.allowed, Interval(so_far.min, so_far.max + unseen)).left)
        points.append(BurnPoint(step.to_s, tuple(left) if step.known.closed else (None,) * len(left)))
    return tuple(points)


def _added(parts: Iterable[Interval]) -> Interval:
    parts = list(parts)
    return Interval(sum(part.min for part in parts), sum(part.max for part in parts))


def _worst(whole: Figures, stretches: Sequence[TimeRange]) -> list[list[TimeRange]]:
    """Return the hours that took most of a budget for certain, worst first, then those that may have; an hour where a
    day begins is of two stretches."""
    allowed = {one.objective: max(one.allowed, 1) for one in whole.attainments}

    def weight(hour: Sequence[TimeRange]) -> tuple[float, float]:
        bad = [
            (_added(bad_interval(objective, part.total)[0] for part in hour), most)
            for objective, most in allowed.items()
        ]
        return max(one.min / most for one, most in bad), max(one.max / most for one, most in bad)

    hours = [list(parts) for _, parts in groupby(stretches, _hour_of)]
    return [hour for hour in nlargest(WORST_HOURS, hours, key=weight) if weight(hour) > (0, 0)]


def _worst_hour(whole: Figures, hour: Figures) -> WorstHour:
    both = zip(hour.attainments, whole.attainments, strict=True)
    return WorstHour(hour, tuple(Budget(of.allowed, one.bad).spent for one, of in both))


def _incidents(store: Store, pipeline: str, span: CalendarSpan) -> Incidents:
    since = datetime.fromtimestamp(span.from_s, UTC)
    found = incidents(store, pipeline=pipeline, only_open=False, since=since)
    overlapping = sorted((one for one in found if one.first_window_s < span.to_s), key=lambda one: one.opened_at)
    return Incidents(tuple(overlapping), Times.of(overlapping_courses(store, pipeline, span.from_s, span.to_s)))

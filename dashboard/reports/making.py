"""Making a report: one pass over the hours of its range for days and hours, one over its days for the sketches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from heapq import nlargest
from itertools import groupby, pairwise
from typing import Final

from dashboard.reports.changes import what_changed
from dashboard.reports.model import (
    WORST_HOURS,
    BurnPoint,
    DestinationFigures,
    Figures,
    Incidents,
    LagByHop,
    PartFigures,
    Report,
    WorstHour,
)
from dashboard.reports.ranges import CalendarRange, day_edges, previous
from lagloss_server.incidents.incident import incidents
from lagloss_server.incidents.lost_afterwards import LostAtNode, by_node
from lagloss_server.incidents.lost_afterwards_store import read_lost_minutes
from lagloss_server.incidents.repairs import read_repair_records
from lagloss_server.incidents.response_times import Times, overlapping_courses
from lagloss_server.judging.freshness import expected_to_s
from lagloss_server.model import hops as lag_hops
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.graph import Graph
from lagloss_server.model.rule_places import places_of
from lagloss_server.model.sources import demand_source, source_names
from lagloss_server.model.window import Interval
from lagloss_server.queries.canary import CanaryTotals, read_totals
from lagloss_server.runs.dag_runs import stats_of
from lagloss_server.runs.run_store import read_runs
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.period_reading import RangeTotal
from lagloss_server.store.periods import coverage, first_known, hour_edges, joined, series
from lagloss_server.store.store import Store
from lagloss_server.sums.error_budget import (
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
from lagloss_server.sums.quality import quality_rows
from lagloss_server.sums.rollup import Rollup, period_of

HOURLY_UP_TO_S: Final = 3 * DAY_S
"""The budget of a range as short as this is drawn by the hour."""
MAX_RUNS: Final = 10_000
"""Of a job in a report, the newest: a year of hours."""


def make_report(store: Store, pipeline: str, span: CalendarRange, now_s: float, source: str | None = None) -> Report:
    """Return the report of a pipeline over a range, as of now; of the messages of one of its sources (rule 17), where
    one is named: without what is not known by source, such as places and hops.

    Raises:
        UnknownPipeline: there is none of this name.
        UsageError: the pipeline never had several sources with this one among them.
    """
    versions = store.versions_of(pipeline)
    definition = versions[-1].definition
    names = source_names(versions)
    if source is not None:
        demand_source(versions, source)
    reading = _Reading(
        store, pipeline, versions, first_known(store, pipeline), expected_to_s(now_s, definition.spec.grace), source
    )
    before, hours = previous(span), reading.by_hour(span)
    of_range, of_before = reading.wholes(span), reading.wholes(before)
    whole, whole_before = reading.figures(of_range), reading.figures(of_before)
    days = [reading.figures(parts) for parts in _grouped(hours, day_edges(span))]
    steps = days if span.to_s - span.from_s > HOURLY_UP_TO_S else [reading.figures([hour]) for hour in hours]
    graph = definition.graph
    report_ = Report(
        pipeline=pipeline,
        description=definition.metadata.description,
        span=span,
        made_at_s=now_s,
        targets=tuple(reading.targets(span)),
        whole=whole,
        previous=whole_before,
        previous_span=before,
        days=tuple(days),
        burn_down=_burn_down(whole, [step for step in steps if step.from_s < now_s]),
        worst_hours=tuple(_worst_hour(whole, reading.figures(parts)) for parts in _worst(whole, hours)),
        incidents=_incidents(store, pipeline, span),
        quality=quality_rows(whole.total, definition) if whole.known.closed and source is None else (),
        jobs=tuple(
            stats_of(
                job, read_runs(store, pipeline, [job], span.from_s, span.to_s, limit=MAX_RUNS), min(now_s, span.to_s)
            )
            for job in (definition.spec.jobs if source is None else ())
        ),
        destinations=tuple(
            DestinationFigures(
                name,
                tuple(reading.targets(span, name)),
                reading.figures(of_range, name),
                reading.figures(of_before, name),
            )
            for name in dict.fromkeys([*whole.total.destinations, *whole_before.total.destinations])
        ),
        committed_by=definition.committed_by,
        repairs=tuple(read_repair_records(store, pipeline, span.from_s, span.to_s) if source is None else ()),
        lost_afterwards=_lost_afterwards(store, pipeline, span) if source is None else (),
        canary=_canary(store, span),
        source=source,
        source_names=tuple(names),
        sources=tuple(
            PartFigures(name, reading.of_source(of_range, name), reading.of_source(of_before, name))
            for name in dict.fromkeys([*whole.total.sources, *whole_before.total.sources])
        ),
        sides=tuple(
            PartFigures(name, reading.of_side(of_range, name), reading.of_side(of_before, name))
            for name in dict.fromkeys([*whole.total.sides, *whole_before.total.sides])
        ),
        lag=_lag_by_hop(whole.total, graph),
        previous_lag=_lag_by_hop(whole_before.total, graph),
    )
    return replace(report_, changes=what_changed(report_))


def _lost_afterwards(store: Store, pipeline: str, span: CalendarRange) -> tuple[LostAtNode, ...]:
    with store.engine.connect() as connection:
        return tuple(by_node(read_lost_minutes(connection, pipeline, span.from_s, span.to_s)))


def _canary(store: Store, span: CalendarRange) -> CanaryTotals | None:
    with store.unscoped.engine.connect() as connection:
        totals = read_totals(connection, span.from_s, span.to_s)
    return totals if totals.minutes else None


class _Reading:
    """Shared inputs of all figures of a report. `source`: of the messages of that one only."""

    def __init__(
        self,
        store: Store,
        pipeline: str,
        versions: Sequence[StoredPipeline],
        first_s: int | None,
        expected_to_s: float,
        source: str | None,
    ) -> None:
        self._store = store
        self._source = source
        self._pipeline = pipeline
        nodes = {name: None for stored in versions for name in _destinations_of(stored)}
        self._targets = {name: targets_of(versions, name) for name in (None, *nodes)}
        self._first_s = first_s
        self._expected_to_s = expected_to_s

    def targets(self, span: CalendarRange, destination: str | None = None) -> list[Target]:
        return targets_within(self._targets[destination], span.from_s, span.to_s)

    def wholes(self, span: CalendarRange) -> list[RangeTotal]:
        """Return a range in the parts between which some target changes, with sketches and places."""
        starts = {target.from_s for name in self._targets for target in self.targets(span, name)}
        return self._narrowed(series(self._store, self._pipeline, sorted({*starts, span.to_s})))

    def by_hour(self, span: CalendarRange) -> list[RangeTotal]:
        """Return a range in parts of an hour at most, parted where days begin and targets change. Counts only, but
        for those of a source, which are not among them: its hours are read whole."""
        targets = [target.from_s for target in self.targets(span)]
        edges = sorted({*hour_edges(span.from_s, span.to_s), *day_edges(span), *targets})
        return self._narrowed(series(self._store, self._pipeline, edges, counts_only=self._source is None))

    def _narrowed(self, parts: list[RangeTotal]) -> list[RangeTotal]:
        return parts if self._source is None else _of_source(parts, self._source)

    def of_source(self, parts: Sequence[RangeTotal], source: str) -> Figures:
        """Return the figures of one of several sources over neighbouring ranges, by the pipeline's targets."""
        return self.figures(_of_source(parts, source))

    def of_side(self, parts: Sequence[RangeTotal], side: str) -> Figures:
        """Return the figures of a side of the graph over neighbouring ranges: of its loss, which is all that is known
        by side."""
        return self.figures(_of_side(parts, side))

    def figures(self, parts: Sequence[RangeTotal], destination: str | None = None) -> Figures:
        """Return the figures of neighbouring ranges, each against its own target; or those of one destination there."""
        if destination is not None:
            parts = [replace(part, total=part.total.at(destination)) for part in parts]
        return figures_of(parts, self._targets[destination], self._first_s, self._expected_to_s)


def _of_side(parts: Iterable[RangeTotal], side: str) -> list[RangeTotal]:
    return [replace(part, total=part.total.of_side(side)) for part in parts]


def _of_source(parts: Iterable[RangeTotal], source: str) -> list[RangeTotal]:
    return [replace(part, total=part.total.from_source(source)) for part in parts]


def figures_of(
    parts: Sequence[RangeTotal], targets: Sequence[Target], first_s: int | None, expected_to_s: float
) -> Figures:
    """Return the figures of neighbouring ranges, in each of which one of the targets holds; see `periods.coverage`."""
    whole = joined(parts)
    known_minutes = coverage(whole, first_s, expected_to_s)
    totals = [(part.total, target_at(targets, part.from_s)) for part in parts]
    attainments = tuple(judge(objective, totals, known_minutes.missing) for objective in OBJECTIVES)
    return Figures(whole.from_s, whole.to_s, whole.total, known_minutes, attainments)


def _destinations_of(stored: StoredPipeline) -> list[str]:
    return [place.name for place in places_of(stored.definition.graph, "destination")]


def _lag_by_hop(total: Rollup, graph: Graph) -> LagByHop:
    by_hop = lag_hops.of_checkpoints(cache(total.p95_ms), graph)
    path = lag_hops.path_ms(by_hop, graph)
    hops = {hop: by_hop.hops[hop] for hop in lag_hops.hops(graph) if hop in by_hop.hops}
    return LagByHop(hops, next(reversed(path)).node if path else None, frozenset(path))


def _grouped(parts: Sequence[RangeTotal], edges: Sequence[int]) -> list[list[RangeTotal]]:
    """Return the parts between each two edges; no part lies across one."""
    groups: list[list[RangeTotal]] = [[] for _ in pairwise(edges)]
    for part in parts:
        groups[bisect_right(edges, part.from_s) - 1].append(part)
    return groups


def _hour_of(part: RangeTotal) -> int:
    return period_of("hour", part.from_s)


def _burn_down(whole: Figures, steps: Sequence[Figures]) -> tuple[BurnPoint, ...]:
    """Return the budget of all messages of the range that is left after each step; None after one of which nothing is
    known, but for the last before the first that is: there the line begins."""
    first = next((number for number, step in enumerate(steps) if step.known.closed), 0)
    bad, without_verdict = [Interval(0, 0) for _ in whole.attainments], 0
    points = [BurnPoint(whole.from_s, tuple(Budget(part.allowed, Interval(0, 0)).left for part in whole.attainments))]
    for number, step in enumerate(steps):
        bad = [_added((so_far, part.bad)) for so_far, part in zip(bad, step.attainments, strict=True)]
        without_verdict += step.without_verdict
        left_points = []
        for attainment, so_far in zip(whole.attainments, bad, strict=True):
            unseen = unseen_estimate(attainment.of, without_verdict, whole.known.closed)
            left_points.append(Budget(attainment.allowed, Interval(so_far.min, so_far.max + unseen)).left)
        is_known = step.known.closed or number == first - 1
        points.append(BurnPoint(step.to_s, tuple(left_points) if is_known else (None,) * len(left_points)))
    return tuple(points)


def _added(parts: Iterable[Interval]) -> Interval:
    parts = list(parts)
    return Interval(sum(part.min for part in parts), sum(part.max for part in parts))


def _worst(whole: Figures, totals: Sequence[RangeTotal]) -> list[list[RangeTotal]]:
    """Return the hours that took most of a budget for certain, worst first, then those that may have; an hour where a
    day begins is of two parts."""
    allowed = {attainment.objective: max(attainment.allowed, 1) for attainment in whole.attainments}

    def weight(hour: Sequence[RangeTotal]) -> tuple[float, float]:
        bad = [
            (_added(bad_interval(objective, part.total)[0] for part in hour), most)
            for objective, most in allowed.items()
        ]
        return max(bounds.min / most for bounds, most in bad), max(bounds.max / most for bounds, most in bad)

    hours = [list(parts) for _, parts in groupby(totals, _hour_of)]
    return [hour for hour in nlargest(WORST_HOURS, hours, key=weight) if weight(hour) > (0, 0)]


def _worst_hour(whole: Figures, hour: Figures) -> WorstHour:
    both = zip(hour.attainments, whole.attainments, strict=True)
    return WorstHour(hour, tuple(Budget(allowed.allowed, attainment.bad).spent for attainment, allowed in both))


def _incidents(store: Store, pipeline: str, span: CalendarRange) -> Incidents:
    since = datetime.fromtimestamp(span.from_s, UTC)
    incidents_ = incidents(store, pipeline=pipeline, only_open=False, since=since)
    overlapping = sorted(
        (incident for incident in incidents_ if incident.first_window_s < span.to_s),
        key=lambda incident: incident.opened_at,
    )
    return Incidents(tuple(overlapping), Times.of(overlapping_courses(store, pipeline, span.from_s, span.to_s)))

"""The portfolio: how all pipelines, or those of some labels, kept what they promised over a range, worst first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.reports.making import HOURLY_UP_TO_S, figures_of
from dashboard.reports.model import Document, Figures, figure_links
from dashboard.reports.ranges import CalendarRange, previous
from dashboard.reports.trend import Trend, trend
from lagloss_server.incidents.incident import open_by_severity
from lagloss_server.judging.freshness import expected_to_s
from lagloss_server.model.definition import StoredPipeline, matching
from lagloss_server.model.matchers import MatcherList
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.budgets import read_targets
from lagloss_server.store.periods import first_known_of, series_of
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import UnreadableRow
from lagloss_server.sums.error_budget import Objective, Status, Target, targets_within
from lagloss_server.sums.rollup import PERIOD_S

_WORST_FIRST: Final[tuple[Status, ...]] = ("missed", "unproven", "met", "none")


@dataclass(frozen=True, slots=True)
class PortfolioLine:
    """One pipeline over the range and over the one before.

    `steps` are the days (UTC) of the range, or its hours where it is short; of figures there are only those that
    objectives are judged by. Incidents are those that are open now.
    """

    pipeline: str
    description: str
    labels: Mapping[str, str]
    targets: tuple[Target, ...]
    whole: Figures
    previous: Figures
    steps: tuple[Figures, ...]
    critical: int = 0
    warning: int = 0

    @property
    def status(self) -> Status:
        return self.whole.status

    @property
    def trends(self) -> dict[Objective, Trend]:
        """Return each objective against the range before."""
        both = zip(self.whole.attainments, self.previous.attainments, strict=True)
        return {now.objective: trend(now, before) for now, before in both}

    @property
    def least_left(self) -> tuple[float, float]:
        """Return the least of its error budgets that is left: at most, then at least; without bound where none is."""
        shares = [attainment.budget.left for attainment in self.whole.attainments if attainment.budget is not None]
        return min(((share.max, share.min) for share in shares if share is not None), default=(math.inf, math.inf))

    def document(self, zone: str, base_url: str) -> Document:
        def linked(figures: Figures) -> Document:
            links = figure_links(self.pipeline, zone, figures.from_s, figures.to_s, base_url)
            return {**figures.document(), "links": links}

        return {
            "pipeline": self.pipeline,
            "description": self.description,
            "labels": dict(self.labels),
            "status": self.status,
            "trend": self.trends,
            "targets": [target.document() for target in self.targets],
            "whole": linked(self.whole),
            "previous": linked(self.previous),
            "steps": [
                {"from": rfc3339(step.from_s), "to": rfc3339(step.to_s), "burn_rate": burn_rate(step)}
                for step in self.steps
            ],
            "open_incidents": {"critical": self.critical, "warning": self.warning},
        }


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The pipelines that match all of `matchers`, worst first."""

    matchers: MatcherList
    span: CalendarRange
    previous_span: CalendarRange
    made_at_s: float
    lines: tuple[PortfolioLine, ...]
    unreadable: tuple[UnreadableRow, ...] = ()
    """Definitions that are set aside; whether the matchers match their pipelines is not known."""

    @property
    def name(self) -> str:
        """`all pipelines` or its matchers."""
        return " ".join(map(str, self.matchers)) or "all pipelines"

    @property
    def statuses(self) -> dict[Status, int]:
        """Return how many pipelines are in each status, worst first; without those that none is in."""
        counted = Counter(line.status for line in self.lines)
        return {status: counted[status] for status in _WORST_FIRST if counted[status]}

    @property
    def status(self) -> Status:
        """The worst of its pipelines'; nothing is proven while a definition is set aside."""
        statuses = {*self.statuses, *(["unproven"] if self.unreadable else [])}
        return next((status for status in _WORST_FIRST if status in statuses), "none")

    @property
    def is_known(self) -> bool:
        """Whether one of its pipelines has a closed window."""
        return any(line.whole.known.closed for line in self.lines)

    def document(self, base_url: str = "") -> Document:
        """Return the portfolio for `--format json` and the API."""
        return {
            "match": list(map(str, self.matchers)),
            "range": self.span.document(),
            "previous": self.previous_span.document(),
            "made_at": rfc3339(int(self.made_at_s)),
            "status": self.status,
            "statuses": self.statuses,
            "set_aside": [row.pipeline for row in self.unreadable],
            "pipelines": [line.document(self.span.zone, base_url) for line in self.lines],
        }


def burn_rate(step: Figures) -> float | None:
    """Return how many times as many messages were bad for certain as may be, of the objective where that is most; None
    where nothing is known, or none may be bad."""
    rates = [attainment.bad.min / attainment.allowed for attainment in step.attainments if attainment.allowed]
    return max(rates, default=None) if step.known.closed else None


def make_portfolio(store: Store, matchers: MatcherList, span: CalendarRange, now_s: float) -> Portfolio:
    """Return the portfolio of the pipelines that match, in a few statements however many these are."""
    pipelines = store.pipelines()
    stored = matching(pipelines, matchers)
    names, before = [pipeline.name for pipeline in stored], previous(span)
    targets, first_s = read_targets(store, stored), first_known_of(store, names)
    starts = _steps(span)
    edges = {
        name: sorted(
            {before.from_s, *starts, span.to_s, *(target.from_s for target in _within(pipeline_targets, before, span))}
        )
        for name, pipeline_targets in targets.items()
    }
    parts = series_of(store, edges, counts_only=True) if edges else {}
    incidents = open_by_severity(store, names)

    def line(stored: StoredPipeline) -> PortfolioLine:
        definition, name = stored.definition, stored.name
        due_s = expected_to_s(now_s, definition.spec.grace)

        def figures(from_s: int, to_s: int) -> Figures:
            within = [part for part in parts[name] if from_s <= part.from_s < to_s]
            return figures_of(within, targets[name], first_s.get(name), due_s)

        return PortfolioLine(
            pipeline=name,
            description=definition.metadata.description,
            labels=definition.metadata.labels,
            targets=tuple(targets_within(targets[name], span.from_s, span.to_s)),
            whole=figures(span.from_s, span.to_s),
            previous=figures(before.from_s, before.to_s),
            steps=tuple(figures(from_s, to_s) for from_s, to_s in zip(starts, [*starts[1:], span.to_s], strict=True)),
            critical=incidents.get(name, {}).get("critical", 0),
            warning=incidents.get(name, {}).get("warning", 0),
        )

    lines = tuple(sorted(map(line, stored), key=_rank))
    return Portfolio(matchers, span, before, now_s, lines, tuple(pipelines.unreadable))


def _within(targets: Sequence[Target], before: CalendarRange, span: CalendarRange) -> list[Target]:
    return targets_within(targets, before.from_s, span.to_s)


def _steps(span: CalendarRange) -> list[int]:
    """Return where the steps of a range begin: with days of UTC, which roll-ups have; a day of another zone would be
    read by the hour."""
    length = PERIOD_S["hour" if span.to_s - span.from_s <= HOURLY_UP_TO_S else "day"]
    return [span.from_s, *range(span.from_s // length * length + length, span.to_s, length)]


def _rank(line: PortfolioLine) -> tuple[float | str, ...]:
    return _WORST_FIRST.index(line.status), *line.least_left, -line.critical, -line.warning, line.pipeline

"""The report as data: everything that any of its forms shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import structs, to_builtins

from dashboard.reports.ranges import CalendarRange
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import ShownRange
from lagloss_server.incidents.incident import Incident
from lagloss_server.incidents.lost_afterwards import LostAtNode
from lagloss_server.incidents.repairs import RepairRecord, lost_before_repairs
from lagloss_server.incidents.response_times import Times, time_to_repair_s
from lagloss_server.model.hops import Hop
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Interval, rfc3339
from lagloss_server.queries.canary import CanaryTotals
from lagloss_server.runs.dag_runs import JobStats
from lagloss_server.store.periods import Coverage
from lagloss_server.sums.error_budget import Attainment, BudgetShare, Status, Target, overall, worst_status
from lagloss_server.sums.quality import QualityRow
from lagloss_server.sums.rollup import Rollup

Document = dict[str, Any]
WORST_HOURS: Final = 10


@dataclass(frozen=True, slots=True)
class Figures(TimeRange):
    """A time range: sums over its closed windows, what is known of it, and how each objective fared."""

    total: Rollup
    known: Coverage
    attainments: tuple[Attainment, ...]

    @property
    def status(self) -> Status:
        return overall(self.attainments)

    @property
    def minutes_by_verdict(self) -> dict[str, int]:
        """Minutes by verdict, and those without one: they add up to all of the range."""
        verdicts = {name: self.total.verdicts.get(name, 0) for name in ("ok", "loss", "unknown", "idle")}
        return {**verdicts, "missing": self.known.missing, "before": self.known.before, "to_come": self.known.to_come}

    @property
    def without_verdict(self) -> int:
        """Minutes that should have one: what they hold is not known."""
        return self.minutes_by_verdict["unknown"] + self.known.missing

    @property
    def known_share(self) -> float | None:
        """Of the minutes that should have a verdict: those that have one."""
        due = self.known.closed + self.known.missing
        return (due - self.without_verdict) / due if due else None

    def document(self) -> Document:
        return {
            **self.bounds(),
            "status": self.status,
            "minutes": self.minutes_by_verdict,
            "known_share": self.known_share,
            "cut_minutes": self.known.cut,
            "messages": self.total.messages,
            "lost": structs.asdict(self.total.lost),
            "pending": self.total.pending,
            "loss_ratio": structs.asdict(self.total.loss_ratio),
            "on_time": self.total.on_time,
            "on_time_of": self.total.on_time_of,
            "on_time_share": self.total.on_time_share,
            "objectives": [attainment.document() for attainment in self.attainments],
        }


@dataclass(frozen=True, slots=True)
class BurnPoint:
    """How much of each objective's budget was left at a moment (epoch s); None where nothing is known of the stretch
    that ends there, or there is no budget."""

    at_s: int
    left: tuple[BudgetShare | None, ...]


@dataclass(frozen=True, slots=True)
class WorstHour:
    """An hour with what its messages took of the budgets of the whole range; `spent` is None where there is none."""

    figures: Figures
    spent: tuple[BudgetShare | None, ...]


@dataclass(frozen=True, slots=True)
class DestinationFigures:
    """One destination over the range and over the one before, in the messages due there; `targets` are its own. Minutes
    by verdict are the pipeline's."""

    name: str
    targets: tuple[Target, ...]
    whole: Figures
    previous: Figures


@dataclass(frozen=True, slots=True)
class PartFigures:
    """One of several sources, or sides of the graph, over the range and over the one before, in its messages, by the
    pipeline's targets.
    Minutes by verdict are the pipeline's."""

    name: str
    whole: Figures
    previous: Figures


@dataclass(frozen=True, slots=True)
class LagByHop:
    """What each hop adds to the p95 of the lag over a range, in ms, signed, in the order of the flow.

    `path`: the hops of the slowest path to `delivery`, the destination with the highest p95; empty and None where no
    path is known whole.
    """

    hops: Mapping[Hop, float]
    delivery: str | None
    path: frozenset[Hop]

    def share(self, hop: Hop) -> float | None:
        """Return the share of a hop in the lag along the path; None of hops beside it."""
        total = sum(value for hop, value in self.hops.items() if hop in self.path)
        return self.hops[hop] / total if hop in self.path and total > 0 else None


@dataclass(frozen=True, slots=True)
class Incidents:
    """Those that overlap the range, oldest first, as they are now."""

    listed: tuple[Incident, ...]
    times: Times


@dataclass(frozen=True, slots=True)
class Report:
    """One pipeline over one range; only the messages of `source`, where one is named. `days` are those of the range's
    zone; `burn_down` goes by them, or by hours where the range is short. `quality`: of the whole, by the targets of the
    newest definition; `jobs`: of the runs that are due in it; `sources`, `source_names` and `sides`: where there are
    several. `changes`: sentences on what changed against the range before. `committed_by`: the consumer group of each
    destination whose deliveries are its commits, by the newest definition; `repairs`: of windows of the range, oldest
    first, and `lost_afterwards` of these, by node; empty of one source's messages, since that is not known by source.
    `canary`: what lagloss made in this range
    of the losses of its own pipeline; None if none was due."""

    pipeline: str
    description: str
    span: CalendarRange
    made_at_s: float
    targets: tuple[Target, ...]
    whole: Figures
    previous: Figures
    previous_span: CalendarRange
    days: tuple[Figures, ...]
    burn_down: tuple[BurnPoint, ...]
    worst_hours: tuple[WorstHour, ...]
    incidents: Incidents
    destinations: tuple[DestinationFigures, ...]
    lag: LagByHop
    previous_lag: LagByHop
    quality: tuple[QualityRow, ...] = ()
    jobs: tuple[JobStats, ...] = ()
    changes: tuple[str, ...] = ()
    source: str | None = None
    source_names: tuple[str, ...] = ()
    sources: tuple[PartFigures, ...] = ()
    sides: tuple[PartFigures, ...] = ()
    committed_by: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[RepairRecord, ...] = ()
    lost_afterwards: tuple[LostAtNode, ...] = ()
    canary: CanaryTotals | None = None

    @property
    def repaired(self) -> Interval:
        """Messages that were lost before repairs, and are not now: of all sources."""
        return lost_before_repairs(self.repairs, self.span.from_s, self.span.to_s)

    @property
    def name(self) -> str:
        return self.pipeline if self.source is None else f"{self.pipeline}-{self.source}"

    @property
    def status(self) -> Status:
        """The worst of the whole and of each side: many messages on one would hide the loss of few on another."""
        return worst_status((self.whole.status, *(side.whole.status for side in self.sides)))

    @property
    def is_known(self) -> bool:
        """Whether it has a closed window."""
        return bool(self.whole.known.closed)

    @property
    def burn_down_range(self) -> TimeRange:
        """Return over what time budgets are drawn: the range, without more than half of it at its beginning
        of which nothing is known, and without what is still to come."""
        ends = [point.at_s for point in self.burn_down]
        with_budget = [
            index
            for index, point in enumerate(self.burn_down)
            if index and any(share is not None for share in point.left)
        ]
        from_s, to_s = self.span.from_s, max(ends, default=self.span.to_s)
        since_s = ends[with_budget[0]] if with_budget and with_budget[0] > 1 else from_s
        return TimeRange(since_s if since_s - from_s > (to_s - from_s) / 2 else from_s, to_s)

    @property
    def burn_down_floor(self) -> float:
        """The share at the bottom of a chart of the burn-down: a budget that is overspent by more than itself leaves
        the chart there; the number is in the table."""
        shares = (share.min for point in self.burn_down for share in point.left if share is not None)
        return max(-1.0, min([0.0, *shares]))

    def document(self, base_url: str = "") -> Document:
        """Return the report for `--format json` and the API. Every figure names the windows it is made of."""

        def linked(figures: Figures) -> Document:
            return {**figures.document(), "links": self.links(figures.from_s, figures.to_s, base_url)}

        objectives = [attainment.objective for attainment in self.whole.attainments]
        return {
            "pipeline": self.pipeline,
            **({} if self.source is None else {"source": self.source}),
            "range": self.span.document(),
            "made_at": rfc3339(int(self.made_at_s)),
            "status": self.status,
            "changes": list(self.changes),
            "targets": [target.document() for target in self.targets],
            "committed_by": dict(self.committed_by),
            "whole": {**linked(self.whole), "total": self.whole.total.document()},
            "previous": {
                "name": self.previous_span.name or None,
                **linked(self.previous),
                "total": self.previous.total.document(),
            },
            "destinations": [
                {
                    "name": destination.name,
                    "targets": [target.document() for target in destination.targets],
                    "whole": {**linked(destination.whole), **_of_part(destination.whole.total)},
                    "previous": {**linked(destination.previous), **_of_part(destination.previous.total)},
                }
                for destination in self.destinations
            ],
            "sources": [
                {
                    "name": source.name,
                    "whole": {**linked(source.whole), **_of_part(source.whole.total)},
                    "previous": {**linked(source.previous), **_of_part(source.previous.total)},
                }
                for source in self.sources
            ],
            "sides": [
                {"name": side.name, "whole": linked(side.whole), "previous": linked(side.previous)}
                for side in self.sides
            ],
            "lag_by_hop": {
                "destination": self.lag.delivery,
                "hops": [
                    {
                        **hop.document(),
                        "p95_ms": self.lag.hops[hop],
                        "share": self.lag.share(hop),
                        "previous_p95_ms": self.previous_lag.hops.get(hop),
                        "previous_share": self.previous_lag.share(hop),
                    }
                    for hop in self.lag.hops
                ],
            },
            "days": [linked(day) for day in self.days],
            "burn_down": [
                {"at": rfc3339(point.at_s), "left": dict(zip(objectives, to_builtins(point.left), strict=True))}
                for point in self.burn_down
            ],
            "worst_hours": [
                {**linked(hour.figures), "budget_spent": dict(zip(objectives, to_builtins(hour.spent), strict=True))}
                for hour in self.worst_hours
            ],
            "quality": [row.document() for row in self.quality],
            "jobs": [job.document() for job in self.jobs],
            "repairs": {
                "lost_before": structs.asdict(self.repaired),
                "list": [repair.document() for repair in self.repairs],
            },
            "lost_afterwards": {
                "lost": sum(node.lost for node in self.lost_afterwards),
                "accepted": sum(node.accepted for node in self.lost_afterwards),
                "list": [node.document() for node in self.lost_afterwards],
            },
            "incidents": {
                "times": self.incidents.times.document(),
                "list": [
                    {
                        **incident.document(),
                        "time_to_repair_s": time_to_repair_s(incident),
                        "cause": incident.cause,
                        "links": incident.links(base_url),
                    }
                    for incident in self.incidents.listed
                ],
            },
        }

    def links(self, from_s: int, to_s: int, base_url: str = "") -> dict[str, str]:
        return figure_links(self.pipeline, self.span.zone, from_s, to_s, base_url, self.source)


def figure_links(
    pipeline: str, zone: str, from_s: int, to_s: int, base_url: str = "", source: str | None = None
) -> dict[str, str]:
    """Return where the windows with from <= start < to are: one by one (the API pages them by the day), as sums, which
    are kept for longer, and as a page."""
    page = Address(links.pipeline(pipeline), {"zone": zone}).over(ShownRange(from_s, to_s)).asking(source=source)
    base = base_url.rstrip("/")
    return {
        "windows": base + links.windows_of(pipeline, from_s, to_s),
        "sums": base + links.sums_of(pipeline, from_s, to_s),
        "page": base + page.href,
    }


def _of_part(total: Rollup) -> Document:
    return {name: total.document()[name] for name in ("delivered", "filtered", "dead", "e2e_lag_ms")}


def lost_places(total: Rollup) -> Sequence[tuple[str, Interval]]:
    """Return where messages were lost, worst first; a message may be lost at several places."""
    return sorted(total.lost_at.items(), key=lambda place: (-place[1].min, -place[1].max, place[0]))

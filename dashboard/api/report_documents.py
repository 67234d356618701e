"""Documents of reports and portfolios as `/api/v1` has them: the types of what `Report.document` and
`Portfolio.document` return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from dashboard.queries.incident_documents import IncidentDocument, IncidentLinks
from dashboard.queries.overview import IncidentCounts, ShareDocument
from dashboard.queries.series import QualityDocument
from dashboard.reports.trend import Trend
from lagloss_server.incidents.lost_afterwards import LostAtNodeDocument
from lagloss_server.incidents.repairs import RepairRecordDocument
from lagloss_server.incidents.response_times import Times
from lagloss_server.model.hops import HopKind
from lagloss_server.model.time_range import FromTo
from lagloss_server.model.window import DestinationCounts, Interval, Lags, LossRatio, Percentiles, SourceCounts
from lagloss_server.runs.dag_runs import JobStatsDocument
from lagloss_server.sums.error_budget import Objective, Status


class RangeDocument(FromTo):
    """A range of a time zone's calendar; `name`: of a week, month or quarter."""

    name: str | None
    zone: str


class TargetDocument(FromTo):
    """Objectives that were in force for a while: see `Target`."""

    version: int
    loss_max: float
    on_time_min: float
    lag_ms: int


class AttainmentBudget(TypedDict):
    """An error budget: the number of messages that may be bad, and the shares of it that are spent and left."""

    messages: float
    spent: LossRatio
    left: LossRatio


class AttainmentDocument(TypedDict):
    """How an objective fared: see `Attainment`."""

    objective: Objective
    status: Status
    target: float | None
    good_share: LossRatio
    messages: int
    bad: Interval
    budget: AttainmentBudget
    unseen_estimate: int


class MinuteCounts(TypedDict):
    """Minutes of a range by verdict, and those without one."""

    ok: int
    loss: int
    unknown: int
    idle: int
    missing: int
    before: int
    to_come: int


class FigureLinks(TypedDict):
    """Where the windows of a figure are: one by one, as sums, and as a page."""

    windows: str
    sums: str
    page: str


class FiguresDocument(FromTo):
    """A range: see `Figures`."""

    status: Status
    minutes: MinuteCounts
    known_share: float | None
    cut_minutes: int
    messages: int
    lost: Interval
    pending: int
    loss_ratio: LossRatio
    on_time: int
    on_time_of: int
    on_time_share: float | None
    objectives: list[AttainmentDocument]
    links: FigureLinks


class RollupCheckpoint(TypedDict):
    """A checkpoint over a range: see `CheckpointSums`."""

    name: str
    beacons: int
    distinct: int
    duplicates: int
    replayed: int
    counted: int
    out_of_order: NotRequired[int]
    lag_ms: Percentiles


class RollupSide(TypedDict):
    """A side of the graph over a range."""

    name: str
    messages: int
    delivered: int
    filtered: int
    dead: int
    pending: int
    lost: Interval


class ChecksumCounts(TypedDict):
    """Messages of a link that were corrupted, of those that carried checksums on both sides."""

    corrupted: int
    checked: int


class RollupDocument(TypedDict):
    """Sums over the closed windows of a range: see `Rollup`."""

    windows: int
    verdicts: dict[str, int]
    proofs: dict[str, int]
    messages: int
    delivered: int
    filtered: int
    dead: int
    pending: int
    unexplained: int
    lost: Interval
    loss_ratio: LossRatio
    on_time_share: float | None
    e2e_lag_ms: Lags
    checkpoints: list[RollupCheckpoint]
    destinations: list[DestinationCounts]
    sources: NotRequired[list[SourceCounts]]
    sides: NotRequired[list[RollupSide]]
    lost_at: dict[str, Interval]
    reasons_by_node: dict[str, dict[str, dict[str, int]]]
    checksums: dict[str, ChecksumCounts]
    staleness_ms: dict[str, float]


class WholeDocument(FiguresDocument):
    """A range with all sums over it."""

    total: RollupDocument


class PreviousDocument(WholeDocument):
    """The range before; `name`: of a week, month or quarter."""

    name: str | None


class PartDocument(FiguresDocument):
    """A destination or a source over a range."""

    delivered: int
    filtered: int
    dead: int
    e2e_lag_ms: Lags


class DestinationDocument(TypedDict):
    """A destination, over the range and the one before."""

    name: str
    targets: list[TargetDocument]
    whole: PartDocument
    previous: PartDocument


class SourceDocument(TypedDict):
    """A source, over the range and the one before."""

    name: str
    whole: PartDocument
    previous: PartDocument


class SideDocument(TypedDict):
    """A side of the graph, over the range and the one before."""

    name: str
    whole: FiguresDocument
    previous: FiguresDocument


LagHop = TypedDict(
    "LagHop",
    {
        "kind": HopKind,
        "from": str | None,
        "node": str,
        "p95_ms": float,
        "share": float | None,
        "previous_p95_ms": float | None,
        "previous_share": float | None,
    },
)
"""What a hop adds to the lag, and its share in the slowest path."""


class LagByHopDocument(TypedDict):
    """Hops in the order of the flow; `destination`: the one that the slowest path leads to."""

    destination: str | None
    hops: list[LagHop]


class BurnPointDocument(TypedDict):
    """The shares of the error budgets that were left at a moment, by objective."""

    at: str
    left: dict[str, ShareDocument | None]


class WorstHourDocument(FiguresDocument):
    """An hour, and the shares of the error budgets that it spent, by objective."""

    budget_spent: dict[str, ShareDocument | None]


class ReportedIncident(IncidentDocument):
    """An incident of a range, and what was found out about its cause."""

    time_to_repair_s: float | None
    cause: str | None
    links: IncidentLinks


class ReportedIncidents(TypedDict):
    """Incidents that overlap the range, oldest first."""

    times: Times
    list: Sequence[ReportedIncident]


class ReportedRepairs(TypedDict):
    """Repairs of windows of the range, oldest first. `lost_before`: messages that were lost before them, and are not
    now."""

    lost_before: Interval
    list: Sequence[RepairRecordDocument]


class ReportedLostAfterwards(TypedDict):
    """Messages of windows of the range that are lost afterwards, by node. `accepted`: of them, those that someone
    accepted as deleted on purpose."""

    lost: int
    accepted: int
    list: Sequence[LostAtNodeDocument]


class ReportDocument(TypedDict):
    """The SLA report of a pipeline over a range: see `Report`."""

    pipeline: str
    source: NotRequired[str]
    range: RangeDocument
    made_at: str
    status: Status
    changes: list[str]
    targets: list[TargetDocument]
    committed_by: dict[str, str]
    whole: WholeDocument
    previous: PreviousDocument
    destinations: list[DestinationDocument]
    sources: list[SourceDocument]
    sides: list[SideDocument]
    lag_by_hop: LagByHopDocument
    days: list[FiguresDocument]
    burn_down: list[BurnPointDocument]
    worst_hours: list[WorstHourDocument]
    quality: list[QualityDocument]
    jobs: list[JobStatsDocument]
    repairs: ReportedRepairs
    lost_afterwards: ReportedLostAfterwards
    incidents: ReportedIncidents


class StepDocument(FromTo):
    """A part of the range, and how many times as many messages were bad as may be; null: unknown, or none may be."""

    burn_rate: float | None


class LineDocument(TypedDict):
    """A pipeline of a portfolio: see `PortfolioLine`. `trend`: by objective."""

    pipeline: str
    description: str
    labels: dict[str, str]
    status: Status
    trend: dict[Objective, Trend]
    targets: list[TargetDocument]
    whole: FiguresDocument
    previous: FiguresDocument
    steps: list[StepDocument]
    open_incidents: IncidentCounts


class PortfolioDocument(TypedDict):
    """Pipelines over a range, worst first: see `Portfolio`."""

    match: list[str]
    range: RangeDocument
    previous: RangeDocument
    made_at: str
    status: Status
    statuses: dict[str, int]
    set_aside: list[str]
    pipelines: list[LineDocument]

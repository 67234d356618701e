"""Health: whether lagloss itself can be trusted now, and what to do where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypedDict, get_args

from dashboard.queries.condition import read_freshness_of
from dashboard.queries.health_pipelines import (
    ClosingDocument,
    Host,
    NodeDocument,
    NodeHealth,
    PipelineClosing,
    SilentDocument,
    SilentEmitter,
    read_closings,
    read_hosts,
    read_nodes,
    read_silent,
)
from dashboard.queries.health_service import (
    AlerterDocument,
    AlerterHealth,
    BadRecords,
    Recompute,
    RecomputeDocument,
    ReportsDocument,
    ReportsStatus,
    SetAsideItem,
    Size,
    SizeDocument,
    StrangeDocument,
    StrangeName,
    read_alerting,
    read_bad_records,
    read_recomputes,
    read_reports,
    read_set_aside,
    read_sizes,
    read_strangers,
)
from dashboard.queries.reports_topic import Ends
from dashboard.queries.taps import TapDocument, TapState, TapStatus, read_taps
from lagloss_server.base import format as fmt
from lagloss_server.judging.clock_skew import AGREE_WITHIN_MS
from lagloss_server.model.window import rfc3339
from lagloss_server.ops.unreadable_rows import read_unreadable
from lagloss_server.queries.canary import CanaryDocument, CanaryHealth, read_canary
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import RowKind

_RUNS: Final = "Check that the tap service runs (start it with lagloss up or python -m taps)"
_TAP_PROBLEMS: Final = {
    TapState.NOT_BEGUN: (
        "has not started",
        "have not started",
        f"{_RUNS} and that the topic exists: lagloss doctor checks both; the service's log shows what it waits for.",
    ),
    TapState.NOT_RUN: (
        "is read by no process",
        "are read by no process",
        f"{_RUNS}: its /healthz and log show what it waits for.",
    ),
    TapState.WAITING: (
        "is waiting",
        "are waiting",
        "Check that Kafka responds and its ACLs allow reading the topic: lagloss doctor tests this.",
    ),
    TapState.BEHIND: (
        "is behind",
        "are behind",
        "Minutes are evaluated once it has caught up; if it does not, the tap service needs more cores.",
    ),
}
"""By state: what one tap and what several do, and what to do next; those that hide most first."""


class ProblemOfHealth(TypedDict):
    """Something that keeps lagloss from being trusted: see `HealthProblem`."""

    what: str
    todo: str
    runbook: str | None


class PipelineTapDocument(TapDocument):
    """A tap, and its pipeline."""

    pipeline: str


class HealthDocument(TypedDict):
    """Whether lagloss can be trusted, as of a moment: see `Health`."""

    as_of: str
    pipeline: str | None
    reports: ReportsDocument
    alerting: AlerterDocument
    taps: list[PipelineTapDocument]
    closings: list[ClosingDocument]
    nodes: list[NodeDocument]
    silent_emitters: list[SilentDocument]
    hosts: list[Host]
    bad_records: list[BadRecords]
    set_aside: list[SetAsideItem]
    strangers: list[StrangeDocument]
    sizes: list[SizeDocument]
    recomputes: list[RecomputeDocument]
    problems: list[ProblemOfHealth]
    canary: CanaryDocument | None


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Something that keeps lagloss from being trusted: what is known, and what to do next. `runbook`: a kind that has
    one."""

    what: str
    todo: str
    runbook: str | None = None

    def document(self) -> ProblemOfHealth:
        return {"what": self.what, "todo": self.todo, "runbook": self.runbook and f"/runbooks/{self.runbook}"}


@dataclass(frozen=True, slots=True)
class Health:
    """As of `now_s` (epoch s). Lists of pipelines, emitters, hosts and names are of `pipeline` only where it is set."""

    now_s: float
    pipeline: str | None
    reports: ReportsStatus
    closings: list[PipelineClosing]
    nodes: list[NodeHealth]
    taps: list[TapStatus]
    silent_emitters: list[SilentEmitter]
    hosts: list[Host]
    bad_records: list[BadRecords]
    set_aside: list[SetAsideItem]
    strangers: list[StrangeName]
    sizes: list[Size]
    alerting: AlerterHealth
    recomputes: list[Recompute]
    canary: CanaryHealth | None = None

    @property
    def is_whole(self) -> bool:
        """Whether what is of no pipeline is shown, too: receivers, bad records, tables."""
        return self.alerting.receivers is not None

    @property
    def problems(self) -> list[HealthProblem]:
        """Problems, those that hide most first."""
        return [
            *self._of_canary(),
            *self._of_service(),
            *self._of_taps(),
            *self._of_pipelines(),
            *self._of_what_is_sent(),
        ]

    def document(self) -> HealthDocument:
        """Return the health as `/api/v1/health` prints it."""
        return {
            "as_of": rfc3339(int(self.now_s)),
            "pipeline": self.pipeline,
            "reports": self.reports.document(),
            "alerting": self.alerting.document(),
            "taps": [{"pipeline": tap.tap.pipeline, **tap.document()} for tap in self.taps],
            "closings": [closing.document() for closing in self.closings],
            "nodes": [node.document() for node in self.nodes],
            "silent_emitters": [emitter.document() for emitter in self.silent_emitters],
            "hosts": self.hosts,
            "bad_records": self.bad_records,
            "set_aside": self.set_aside,
            "strangers": [name.document() for name in self.strangers],
            "sizes": [size.document() for size in self.sizes],
            "recomputes": [recompute.document() for recompute in self.recomputes],
            "problems": [problem.document() for problem in self.problems],
            "canary": None if self.canary is None else self.canary.standing.document(),
        }

    def _of_canary(self) -> Iterator[HealthProblem]:
        standing = None if self.canary is None else self.canary.standing
        if standing is not None and not standing.ok and not standing.is_young:
            yield HealthProblem(
                f"The canary is not right: {standing.why}.",
                "Do not rely on results of this time. See lagloss doctor, and the table in docs/canary.md.",
            )

    def _of_service(self) -> Iterator[HealthProblem]:
        summary = self.reports
        heard_s = None if summary.appended_s is None else self.now_s - summary.appended_s
        if summary.behind and summary.is_stuck(self.now_s):
            since = (
                "none has been processed so far"
                if heard_s is None
                else f"the newest processed one arrived {fmt.ago(heard_s)}"
            )
            yield HealthProblem(
                f"{_many(summary.behind, 'report is', 'reports are')} not processed yet; {since}.",
                "Check that the aggregator runs: its /healthz and log show what it waits for.",
                "blind",
            )
        if not self.alerting.is_well(self.now_s):
            well_at = self.alerting.well_at
            last = "none so far" if well_at is None else f"last heartbeat {fmt.ago(self.now_s - well_at.timestamp())}"
            yield HealthProblem(f"No alerter is active: {last}.", "Start one with lagloss up or python -m alerting.")
        elif self.alerting.receivers == ():
            missing = "The alerter has no receivers: no notifications are sent."
            yield HealthProblem(missing, "Add receivers to the alerting file.")

    def _of_taps(self) -> Iterator[HealthProblem]:
        for state, (singular, several, todo) in _TAP_PROBLEMS.items():
            if taps := [tap for tap in self.taps if tap.state is state]:
                named, which, more = taps[0], "first", ""
                if state is TapState.WAITING:
                    more = f": {named.trouble}"
                elif state is TapState.BEHIND:
                    named, which = max(taps, key=lambda tap: tap.behind_s or 0.0), "longest delay"
                    more = "" if named.behind_s is None else f", {fmt.duration_s(named.behind_s)}"
                what = f"{_many(len(taps), f'tap {singular}', f'taps {several}')}; {which}: {_named(named)}{more}."
                yield HealthProblem(what, todo, "blind")

    def _of_pipelines(self) -> Iterator[HealthProblem]:
        late = [closing for closing in self.closings if closing.is_late(self.now_s)]
        if late:
            longest = fmt.duration_s(late[0].waits_s(self.now_s))
            yield HealthProblem(
                f"{_many(len(late), 'pipeline has', 'pipelines have')} overdue minutes; longest delay: "
                f"{late[0].pipeline}, {longest}.",
                "Check that the aggregator runs and keeps up: see its /healthz and its log.",
                "blind",
            )
        rows, work = (
            [item for item in self.set_aside if (item.kind in get_args(RowKind)) is is_row] for is_row in (True, False)
        )
        if rows:
            yield HealthProblem(
                f"{_many(len(rows), 'stored row is', 'stored rows are')} unreadable; first: {rows[0].place}, "
                f"{rows[0].error}.",
                "Upgrade processes older than the version that stored it, or store it again: docs/upgrading.md.",
                "blind",
            )
        if work:
            first = work[0]
            yield HealthProblem(
                f"{_many(len(work), 'work item', 'work items')} failed; first: "
                f"{first.kind} {first.item} of {first.pipeline}.",
                "See the aggregator's log and report the error; it is retried after an hour, or by lagloss recompute.",
                "blind",
            )
        bad = [node for node in self.nodes if node.is_bad]
        if bad:
            yield HealthProblem(
                f"{_many(len(bad), 'node has', 'nodes have')} emitters that stopped reporting without closing; first: "
                f"{bad[0].node} of {bad[0].pipeline}.",
                "Check that they run and reach Kafka or the collector; minutes without their reports stay incomplete.",
                "blind",
            )

    def _of_what_is_sent(self) -> Iterator[HealthProblem]:
        off = [host for host in self.hosts if abs(host.skew_ms) >= AGREE_WITHIN_MS]
        if off:
            yield HealthProblem(
                f"{_many(len(off), 'host clock differs', 'host clocks differ')} from the broker's; largest: "
                f"{off[0].host}, {fmt.duration(off[0].skew_ms)}.",
                "Synchronise them by NTP: lags are wrong by this difference, and missing messages stay pending longer.",
                "negative-lag",
            )
        if self.bad_records:
            total = sum(bad.count for bad in self.bad_records)
            yield HealthProblem(
                f"{_many(total, 'record was', 'records were')} quarantined in the last 24 hours.",
                "See the reasons below: the evidence of their nodes lacks these records.",
                "blind",
            )
        lately_s = self.now_s - DAY_S
        unread = [tap for tap in self.taps if any(records.at_s >= lately_s for records in tap.unreadable)]
        if unread:
            yield HealthProblem(
                f"{_many(len(unread), 'tap', 'taps')} encountered unreadable records in the last 24 hours; first: "
                f"{_named(unread[0])}.",
                "See the reasons and examples on the pipeline's page; minutes of these records stay incomplete.",
                "blind",
            )
        blocked = [tap for tap in self.taps if tap.recheck_trouble]
        if blocked:
            yield HealthProblem(
                f"Rows of {_many(len(blocked), 'table are', 'tables are')} not compared again; first: "
                f"{_named(blocked[0])}: {blocked[0].recheck_trouble}",
                "Rows that vanish meanwhile are stated once it is corrected: docs/sinks.md.",
                "lost-afterwards",
            )
        if self.strangers:
            yield HealthProblem(
                f"Reports name {_many(len(self.strangers), 'pipeline or checkpoint', 'pipelines or checkpoints')} that "
                "no definition declares.",
                "Apply the definition, or correct the name in the emitter's settings.",
            )


def read_health(store: Store, ends: Ends, now_s: float, pipeline: str | None = None) -> Health:
    """Return how lagloss is now; `ends`: where the reports topic ends. Whether it works at all is read for everybody;
    tables, receivers and bad records only for who may see every pipeline.

    Raises:
        UnknownPipeline: there is none of this name.
        UnreadableDefinition: its newest definition is not readable.
    """
    stored_pipelines = store.pipelines()
    definitions = {stored.name: stored.definition for stored in stored_pipelines}
    if pipeline is not None and pipeline not in definitions:
        definitions[pipeline] = store.pipeline(pipeline).definition  # raises, unless it is one that is not listed
    unreadable = stored_pipelines.unreadable if pipeline is None else []
    names = list(definitions) if pipeline is None else [pipeline]
    fresh = read_freshness_of(store, names, now_s)
    graces_ms = {name: definitions[name].spec.grace for name in names}
    with store.unscoped.engine.connect() as connection:
        reports = read_reports(connection, ends)
        alerting = read_alerting(connection, with_receivers=store.is_whole)
        sizes = read_sizes(connection) if store.is_whole else []
        canary = read_canary(connection, now_s)
    if store.is_whole and pipeline is None:
        unreadable = read_unreadable(store, unreadable)
    with store.engine.connect() as connection:
        return Health(
            now_s,
            pipeline,
            reports=reports,
            closings=read_closings(store, graces_ms, fresh, now_s),
            nodes=read_nodes(store, names, now_s),
            taps=read_taps(store, [definitions[name] for name in names], now_s),
            silent_emitters=read_silent(store, names, now_s),
            hosts=read_hosts(store, names, now_s),
            bad_records=read_bad_records(connection, now_s),
            set_aside=read_set_aside(connection, [*names, *(row.pipeline for row in unreadable)], unreadable, now_s),
            strangers=read_strangers(connection, definitions, pipeline),
            sizes=sizes,
            alerting=alerting,
            recomputes=read_recomputes(connection, names),
            canary=canary,
        )


def _many(number: int, singular: str, several: str) -> str:
    return f"{fmt.count(number)} {singular if number == 1 else several}"


def _named(tap: TapStatus) -> str:
    return f"{tap.tap.source} for {tap.tap.node} of {tap.tap.pipeline}"

"""Jobs: a deadline missed, a run that failed, output that is stale, a run later than its habit.

Each is about the hours that a job's runs process, and says which of them waits and how many of its records: those that
came in, as far as its windows are closed. Hours that ended long ago open nothing, so that a back-fill pages no
receiver; an incident of them stays open until they are repaired, or too old to be known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Unit
from alerting.rules.counting import by_the_clock
from alerting.rules.habits import SIGMA_OF_MAD, SPREADS
from alerting.rules.measures import Measure
from alerting.rules.view import HORIZON_S, PipelineView
from lagloss_server.base import format as fmt
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.definition import Definition
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Window
from lagloss_server.runs.dag_runs import DagRun, expected_hours, good_end_ms, hour_s, why_bad

KINDS_OF_JOBS: Final = ("deadline", "run-failed", "output-stale", "run-late")
RUNS_S: Final = 7 * 86_400
"""Runs that are due within this time make a habit, and are read at least."""
MAX_RUNS: Final = 200
"""The newest runs that rules look at, for each job: they are read with their tasks whenever rules are judged."""
_USUAL_OF: Final = 30
"""The newest results by which a habit goes."""
_LEAST_RESULTS: Final = 5


@dataclass(frozen=True, slots=True)
class JobRule:
    """What the rules of one job have in common. They judge by the clock, and read no number of windows by name."""

    unit: ClassVar[Unit] = "s"
    higher_is_worse: ClassVar[bool] = True
    reads: ClassVar[tuple[Measure, ...]] = ()
    watches: ClassVar[tuple[str, ...]] = ()

    job: JobSpec
    severity: Severity
    target: float
    inhibited_by: tuple[str, ...] = ()

    def due_s(self, view: PipelineView) -> float:
        return view.now_s  # runs are reported at any time

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def _runs(self, view: PipelineView) -> list[DagRun]:
        """Return the job's runs over hours that have ended: a run of a future date is no news of them."""
        return [run for run in self._all_runs(view) if run.hour.to_s <= view.now_s]

    def _all_runs(self, view: PipelineView) -> list[DagRun]:
        return [run for run in view.runs if run.dag == self.job.dag]

    def _hours(self, view: PipelineView, runs: Sequence[DagRun]) -> list[int]:
        """Return the ends of the hours that a result is expected of and that can open an incident."""
        opens_after_s = view.now_s - self._horizon_s(view, runs)
        return [to_s for to_s in expected_hours(self.job, runs, view.now_s) if to_s > opens_after_s]

    def _horizon_s(self, view: PipelineView, runs: Sequence[DagRun]) -> float:
        """Return how long after its end an hour can open an incident: for a span, the deadline and a day."""
        return HORIZON_S + hour_s(self.job, runs, view.now_s) + (self.job.deadline or 0) / 1_000

    def _good(self, view: PipelineView, value: float | None, aged: Iterable[int] = ()) -> Assessment:
        """Return this minute as good. `aged`: ends of bad hours that are too old to open an incident, of which an
        incident that is open can be."""
        runs = self._all_runs(view)
        horizon_s = self._horizon_s(view, runs)
        reach_s = runs_s([self.job])
        if len(runs) >= MAX_RUNS:
            reach_s = min(reach_s, view.now_s - min(run.due_ms for run in runs) / 1_000)
        return replace(
            by_the_clock(view, value, False),
            held_before_s=max(aged, default=-math.inf) + horizon_s,
            expired_before_s=view.now_s - max(reach_s - horizon_s, reach_s / 2),  # of frequent jobs it is short
        )

    def _breach(
        self, view: PipelineView, value: float, text: str, hours: Iterable[TimeRange], *, is_ticket: bool = False
    ) -> Assessment:
        """Return this minute as a breach, whose text ends with the hours and the records that wait."""
        waiting = sorted(hours)
        said = f"{text}; {waiting_words(view, waiting)}" if waiting else text
        node = self.job.node
        places = (BreachPlace("node", node, None, text),) if node else ()
        assessment = by_the_clock(view, value, True, places, said)
        return replace(assessment, tickets=(view.this_minute_s,) if is_ticket else ())

    def _hour(self, view: PipelineView, runs: Sequence[DagRun], to_s: int) -> TimeRange:
        """Return the hour that ends then: that of its run, if it has one."""
        hours = [run.hour for run in runs if run.hour.to_s == to_s]
        return hours[-1] if hours else TimeRange(to_s - hour_s(self.job, runs, view.now_s), to_s)


@dataclass(frozen=True, slots=True)
class DeadlineMissed(JobRule):
    """Rule `deadline/DAG`: the value is how long after its end the oldest hour without a result is; late results that
    are there are no breach any more."""

    kind: ClassVar[str] = "deadline"

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.job.dag}"

    @property
    def what(self) -> str:
        return f"time since the end of an hour without a result of {self.job.dag}"

    def assess(self, view: PipelineView) -> Assessment:
        runs = self._runs(view)
        good = {run.hour.to_s for run in runs if run.state == "success"}
        expected = expected_hours(self.job, runs, view.now_s)
        missing = [to_s for to_s in expected if to_s not in good and view.now_s - to_s > self.target]
        late = [to_s for to_s in missing if to_s > view.now_s - self._horizon_s(view, runs)]
        if not late:
            return self._good(view, 0.0 if runs else None, missing)
        newest = [run for run in runs if run.hour.to_s == late[-1]]
        state = f"its run is {newest[-1].state}" if newest else "no run of it has started"
        text = f"{self.job.dag} missed its deadline, {fmt.duration_s(self.target)} after the end of the hour; {state}"
        return self._breach(view, view.now_s - late[0], text, [self._hour(view, runs, to_s) for to_s in late])

    def text(self, value: float) -> str:
        since, limit = fmt.against(fmt.duration_s, value, self.target)
        return f"no result of {self.job.dag} {since} after the end of its hour, deadline {limit}"


@dataclass(frozen=True, slots=True)
class RunFailed(JobRule):
    """Rule `run-failed/DAG`: the value is the time since the oldest failure that no run has repaired."""

    kind: ClassVar[str] = "run-failed"

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.job.dag}"

    @property
    def what(self) -> str:
        return f"time since a run of {self.job.dag} failed"

    def assess(self, view: PipelineView) -> Assessment:
        runs = self._all_runs(view)  # one that failed early is bad at once
        tried = [run for run in runs if run.has_ended or run.failed_ms is not None]
        newest = {run.hour.to_s: run for run in sorted(tried, key=lambda run: run.ended_ms or 0)}
        horizon_s = self._horizon_s(view, runs)
        bad, aged = [], []
        for to_s, run in sorted(newest.items()):
            why = why_bad(self.job, run) if run.has_ended else "it failed and is running again"
            if why is not None and to_s > view.now_s - horizon_s:
                bad.append((run, why))
            elif why is not None and _failed_ms(run) < 1_000 * (to_s + horizon_s):  # a back-fill has opened none
                aged.append(to_s)
        if not bad:
            return self._good(view, 0.0 if newest else None, aged)
        run, why = bad[-1]
        since_s = view.now_s - min(_failed_ms(run) for run, _ in bad) / 1_000
        is_ticket = all(run.state == "success" for run, _ in bad)
        hours = [run.hour for run, _ in bad]
        return self._breach(view, max(0.0, since_s), f"{run.dag}: {why}", hours, is_ticket=is_ticket)

    def text(self, value: float) -> str:
        return f"a run of {self.job.dag} failed {fmt.duration_s(value)} ago, and its hour has no result"


@dataclass(frozen=True, slots=True)
class OutputStale(JobRule):
    """Rule `output-stale/DAG`: the value is the age of the end of the newest hour whose result is there. `is_given`:
    whether the definition has the target, which else follows from how long the hours are."""

    kind: ClassVar[str] = "output-stale"

    is_given: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.job.dag}"

    @property
    def what(self) -> str:
        return f"age of the newest result of {self.job.dag}"

    def assess(self, view: PipelineView) -> Assessment:
        runs = self._runs(view)
        newest_s = max((run.hour.to_s for run in runs if run.state == "success"), default=None)
        if newest_s is None:
            return by_the_clock(view, None, False)
        age_s = view.now_s - newest_s
        longer_s = hour_s(self.job, runs, view.now_s) - self.job.span // 1_000  # than declared
        limit_s = self.target if self.is_given else self.target + max(0, 2 * longer_s)
        if age_s <= limit_s:
            return by_the_clock(view, age_s, False)
        hours = [self._hour(view, runs, to_s) for to_s in self._hours(view, runs) if to_s > newest_s]
        return self._breach(view, age_s, self._text(age_s, limit_s), hours)

    def text(self, value: float) -> str:
        return self._text(value, self.target)

    def _text(self, value: float, limit_s: float) -> str:
        age, limit = fmt.against(fmt.duration_s, value, limit_s)
        return f"the newest result of {self.job.dag} covers an hour that ended {age} ago, limit {limit}"


@dataclass(frozen=True, slots=True)
class RunLate(JobRule):
    """Rule `run-late/DAG`: the newest hour has waited longer for its result than is usual: `target` times the median of
    the newest results, by `least_s` at least and by more than chance lets them differ. The value is in times of it."""

    unit: ClassVar[Unit] = "times"
    kind: ClassVar[str] = "run-late"

    least_s: float = 60.0

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.job.dag}"

    @property
    def what(self) -> str:
        return f"time until a result of {self.job.dag}, relative to the usual time"

    def assess(self, view: PipelineView) -> Assessment:
        runs = self._runs(view)
        hours = self._hours(view, runs)
        delays_s = [run.delay_ms / 1_000 for run in _first_good(runs)[-_USUAL_OF:] if run.delay_ms is not None]
        if not hours or len(delays_s) < _LEAST_RESULTS:
            return by_the_clock(view, None, False)
        usual_s = max(1.0, float(np.median(delays_s)))
        spread_s = SIGMA_OF_MAD * float(np.median(np.abs(np.array(delays_s) - usual_s)))
        limit_s = max(self.target * usual_s, usual_s + self.least_s, usual_s + SPREADS * spread_s)
        waits_s = view.now_s - hours[-1]
        if good_end_ms(runs, hours[-1]) is not None or waits_s <= limit_s:
            return by_the_clock(view, min(waits_s / usual_s, self.target), False)
        text = (
            f"{self.job.dag} has no result {fmt.duration_s(waits_s)} after the end of its hour, "
            f"usually available after {fmt.duration_s(usual_s)}"
        )
        return self._breach(view, waits_s / usual_s, text, [self._hour(view, runs, hours[-1])])

    def text(self, value: float) -> str:
        took, limit = fmt.amount(value, "times"), fmt.amount(self.target, "times")
        return f"{self.job.dag} takes {took} its usual time, limit {limit}"


def waiting_words(view: PipelineView, hours: Sequence[TimeRange]) -> str:
    """Return the hours that wait, the newest by name, and how many records came in at them: `12,000 records of
    11:00–12:00 and 2 hours before wait`."""
    earlier = f" and {fmt.counted(len(hours) - 1, 'hour')} before" if len(hours) > 1 else ""
    newest = f"{fmt.clock(hours[-1].from_s, date=True)}–{fmt.clock(hours[-1].to_s)} UTC{earlier}"
    windows = records = 0
    counted_to_s = hours[0].from_s
    for hour in hours:
        to_s = max(hour.to_s, counted_to_s)
        more, messages = view.windows.sum_between("messages", max(hour.from_s, counted_to_s), to_s)
        windows, records, counted_to_s = windows + more, records + messages, to_s
    if not windows:
        return f"the hour {newest} is waiting; none of its windows is closed"
    return f"{fmt.counted(records, 'record')} of {newest} {'waits' if records == 1 else 'wait'}"


def runs_s(jobs: Iterable[JobSpec]) -> float:
    """Return how long ago the oldest runs that rules need are due: for a week, or a span, after the last moment at
    which their hour could open an incident."""
    spans = ((job.span / 1_000, (job.deadline or 0) / 1_000) for job in jobs)
    return max((max(RUNS_S, span_s) + span_s + deadline_s + HORIZON_S for span_s, deadline_s in spans), default=RUNS_S)


def _failed_ms(run: DagRun) -> int:
    return run.failed_ms or run.ended_ms or 0


def _first_good(runs: Iterable[DagRun]) -> list[DagRun]:
    """Return the runs that were first to give their hour's result, in time; hours that were repaired make no habit."""
    first: dict[int, DagRun] = {}
    for run in sorted(runs, key=lambda run: run.ended_ms or 0):
        if run.state == "success" and run.failed_ms is None:
            first.setdefault(run.hour.to_s, run)
    return [first[to_s] for to_s in sorted(first)]


def job_rules(definition: Definition) -> list[DeadlineMissed | RunFailed | OutputStale | RunLate]:
    """Return the rules of each job; that of its deadline only where one is declared."""
    alerts = definition.spec.alerts
    rules: list[DeadlineMissed | RunFailed | OutputStale | RunLate] = []
    for job in definition.spec.jobs:
        failed, missed = f"run-failed/{job.dag}", f"deadline/{job.dag}"
        if alerts.run_failed is not None:
            rules.append(RunFailed(job, alerts.run_failed.severity, 0.0))
        if alerts.deadline is not None and job.deadline is not None:
            rules.append(DeadlineMissed(job, alerts.deadline.severity, job.deadline / 1_000, (failed,)))
        if alerts.output_stale is not None:
            limits = alerts.output_stale.max
            most_ms = 2 * job.span + (job.deadline or 0) if limits is None else limits
            severity, is_given = alerts.output_stale.severity, limits is not None
            rules.append(OutputStale(job, severity, most_ms / 1_000, (failed, missed), is_given))
        if alerts.run_late is not None:
            late = alerts.run_late
            rules.append(RunLate(job, late.severity, late.times, (failed, missed), late.least / 1_000))
    return rules

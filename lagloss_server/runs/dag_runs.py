"""Runs of a job: what a DAG run and the tries of its tasks say of the hour that it processes.

A try that was left running when its run ended died without a report: its end is not known, and its run's end stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median
from typing import Final, Literal, TypedDict

from lagloss_server.base import format as fmt
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import FromTo, TimeRange
from lagloss_server.model.window import rfc3339

RunState = Literal["queued", "running", "success", "failed"]
TryState = Literal["running", "success", "failed", "skipped", "upstream_failed"]
ENDED: Final = ("success", "failed")
BAD: Final = ("failed", "upstream_failed")
UNMAPPED: Final = -1

TryDocument = TypedDict(
    "TryDocument",
    {
        "task": str,
        "map_index": int | None,
        "try": int,
        "state": TryState,
        "started_at": str | None,
        "ended_at": str | None,
        "duration_s": float | None,
    },
)
"""One try of a task in a run."""


class RunDocument(FromTo):
    """One run of a DAG, of the event time between `from` and `to`."""

    dag: str
    run_id: str
    state: RunState
    due_at: str | None
    started_at: str | None
    ended_at: str | None
    failed_at: str | None
    duration_s: float | None
    delay_s: float | None
    tasks: list[TryDocument]


class RepairsDocument(TypedDict):
    """Failures: how many were `repaired`, and the mean time to repair of these; the others are `open`."""

    repaired: int
    open: int
    mttr_s: float | None


class TaskStatsDocument(RepairsDocument):
    """A task over several runs."""

    task: str
    runs: int
    succeeded: int
    success_rate: float | None
    retried: int
    median_s: float | None
    max_s: float | None


class JobStatsDocument(RepairsDocument):
    """A job over several runs."""

    dag: str
    node: str | None
    runs: int
    succeeded: int
    success_rate: float | None
    median_s: float | None
    deadline_s: float | None
    in_time: int | None
    judged: int
    tasks: list[TaskStatsDocument]


@dataclass(frozen=True, slots=True)
class TaskTry:
    """One try of a task; times in epoch ms. `number` 0: the task never began."""

    task: str
    number: int
    state: TryState
    started_ms: int | None = None
    ended_ms: int | None = None
    map_index: int = UNMAPPED

    @property
    def label(self) -> str:
        return self.task if self.map_index == UNMAPPED else f"{self.task}[{self.map_index}]"

    @property
    def duration_ms(self) -> int | None:
        return None if self.started_ms is None or self.ended_ms is None else max(0, self.ended_ms - self.started_ms)

    def document(self) -> TryDocument:
        return {
            "task": self.task,
            "map_index": None if self.map_index == UNMAPPED else self.map_index,
            "try": self.number,
            "state": self.state,
            "started_at": _moment(self.started_ms),
            "ended_at": _moment(self.ended_ms),
            "duration_s": _seconds(self.duration_ms),
        }


@dataclass(frozen=True, slots=True)
class DagRun:
    """One run of a DAG; times in epoch ms. `hour`: the event time that it processes, an hour mostly. `failed_ms`:
    when it first failed, even if it succeeded later. `tries`: in the order in which they began."""

    dag: str
    run_id: str
    state: RunState
    due_ms: int
    hour: TimeRange
    started_ms: int | None = None
    ended_ms: int | None = None
    failed_ms: int | None = None
    tries: tuple[TaskTry, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def duration_ms(self) -> int | None:
        return None if self.started_ms is None or self.ended_ms is None else max(0, self.ended_ms - self.started_ms)

    @property
    def is_rerun(self) -> bool:
        """True if it was cleared and run again: Airflow's times, and `duration_ms`, are those of the last attempt."""
        ends = [task_try.ended_ms for task_try in self.tries if task_try.ended_ms is not None]
        return self.started_ms is not None and bool(ends) and min(ends) < self.started_ms

    @property
    def duration_words(self) -> str:
        """Return how long it took, as people read it: `24.5 s`, or `1.1 s (rerun)` of a rerun."""
        took = fmt.duration(self.duration_ms)
        return f"{took} (rerun)" if self.is_rerun and self.has_ended else took

    @property
    def delay_ms(self) -> int | None:
        """How long after the end of its hour it ended."""
        return None if self.ended_ms is None else self.ended_ms - 1_000 * self.hour.to_s

    @property
    def last_tries(self) -> list[TaskTry]:
        """The newest try of each task."""
        return list(
            {(task_try.task, task_try.map_index): task_try for task_try in sorted(self.tries, key=_by_number)}.values()
        )

    @property
    def bad_tasks(self) -> list[TaskTry]:
        """Tasks that failed in the end, in the order in which they did; those that never began for it last."""
        bad = [task_try for task_try in self.last_tries if task_try.state in BAD]
        return sorted(bad, key=lambda task_try: (task_try.state != "failed", task_try.ended_ms or 0, task_try.label))

    def as_of(self, now_ms: float) -> DagRun | None:
        """Return the run as it was known then; None if it had not begun. What was reported later is left out, and so
        is an earlier attempt of a run that was cleared."""
        if self.started_ms is None or self.started_ms > now_ms:
            return None
        tries = tuple(
            task_try if (task_try.ended_ms or 0) <= now_ms else replace(task_try, state="running", ended_ms=None)
            for task_try in self.tries
            if task_try.number and task_try.started_ms is not None and task_try.started_ms <= now_ms
        )
        failed_ms = self.failed_ms if self.failed_ms is not None and self.failed_ms <= now_ms else None
        if self.ended_ms is not None and self.ended_ms <= now_ms:
            return self
        return replace(self, state="running", ended_ms=None, failed_ms=failed_ms, tries=tries)

    def document(self) -> RunDocument:
        return {
            "dag": self.dag,
            "run_id": self.run_id,
            "state": self.state,
            **self.hour.bounds(),
            "due_at": _moment(self.due_ms),
            "started_at": _moment(self.started_ms),
            "ended_at": _moment(self.ended_ms),
            "failed_at": _moment(self.failed_ms),
            "duration_s": _seconds(self.duration_ms),
            "delay_s": _seconds(self.delay_ms),
            "tasks": [task_try.document() for task_try in self.tries],
        }


@dataclass(frozen=True, slots=True)
class Repairs:
    """Failures that were repaired, and after how long; `open` ones were not."""

    after_ms: tuple[int, ...] = ()
    open: int = 0

    @property
    def mttr_s(self) -> float | None:
        """The mean time to repair; None where nothing was repaired."""
        return sum(self.after_ms) / len(self.after_ms) / 1_000 if self.after_ms else None

    def document(self) -> RepairsDocument:
        return {"repaired": len(self.after_ms), "open": self.open, "mttr_s": self.mttr_s}


@dataclass(frozen=True, slots=True)
class TaskStats:
    """A task over several runs. `runs`: in which it ended; `succeeded`: of these, in the end; `retried`: with more than
    one try. Durations are of successful tries, in s, oldest first."""

    task: str
    runs: int
    succeeded: int
    retried: int
    durations_s: tuple[float, ...]
    repairs: Repairs

    @property
    def median_s(self) -> float | None:
        return median(self.durations_s) if self.durations_s else None

    @property
    def success_rate(self) -> float | None:
        return self.succeeded / self.runs if self.runs else None

    def document(self) -> TaskStatsDocument:
        return {
            "task": self.task,
            "runs": self.runs,
            "succeeded": self.succeeded,
            "success_rate": self.success_rate,
            "retried": self.retried,
            "median_s": self.median_s,
            "max_s": max(self.durations_s, default=None),
            **self.repairs.document(),
        }


@dataclass(frozen=True, slots=True)
class JobStats:
    """A job over several runs; `tasks`, the slowest first. `in_time`: hours whose result was there by the deadline, of
    the `judged` ones; None where no deadline is declared."""

    job: JobSpec
    runs: int
    succeeded: int
    durations_s: tuple[float, ...]
    repairs: Repairs
    tasks: tuple[TaskStats, ...] = field(default=())
    in_time: int | None = None
    judged: int = 0

    @property
    def success_rate(self) -> float | None:
        return self.succeeded / self.runs if self.runs else None

    @property
    def median_s(self) -> float | None:
        return median(self.durations_s) if self.durations_s else None

    def document(self) -> JobStatsDocument:
        return {
            "dag": self.job.dag,
            "node": self.job.node,
            "runs": self.runs,
            "succeeded": self.succeeded,
            "success_rate": self.success_rate,
            "median_s": self.median_s,
            "deadline_s": None if self.job.deadline is None else self.job.deadline / 1_000,
            "in_time": self.in_time,
            "judged": self.judged,
            **self.repairs.document(),
            "tasks": [task.document() for task in self.tasks],
        }


def stats_of(job: JobSpec, runs: Sequence[DagRun], now_s: float) -> JobStats:
    """Return what the runs of a job come to. Runs that have not ended count in no rate."""
    ended = [run for run in sorted(runs, key=lambda run: run.due_ms) if run.has_ended]
    judged = judged_hours(job, runs, now_s)
    return JobStats(
        job,
        runs=len(ended),
        succeeded=sum(run.state == "success" for run in ended),
        durations_s=tuple(
            run.duration_ms / 1_000 for run in ended if run.state == "success" and run.duration_ms and not run.is_rerun
        ),
        repairs=run_repairs(runs),
        tasks=tuple(sorted(_task_stats(ended), key=lambda task: (-(task.median_s or 0), task.task))),
        in_time=None if job.deadline is None else sum(judged.values()),
        judged=len(judged),
    )


def run_repairs(runs: Iterable[DagRun]) -> Repairs:
    """Return how long hours whose run failed were without a result: from the first failure to the first success after
    it, of the same run when it was cleared or of another run over the same hour. A later hour repairs nothing."""
    after, unrepaired = [], 0
    for _, of_hour in groupby(sorted(runs, key=_by_hour), key=_by_hour):
        these = list(of_hour)
        failed_ms = min((run.failed_ms for run in these if run.failed_ms is not None), default=None)
        if failed_ms is None:
            continue
        ends = [run.ended_ms for run in these if run.state == "success" and run.ended_ms is not None]
        later = [end for end in ends if end >= failed_ms]
        if later:
            after.append(min(later) - failed_ms)
        elif not ends:
            unrepaired += 1
    return Repairs(tuple(after), unrepaired)


def _task_stats(ended: Sequence[DagRun]) -> list[TaskStats]:
    """Return the statistics of each task that ran, mapped ones together."""
    tries_by_task: dict[str, list[tuple[DagRun, list[TaskTry]]]] = {}
    for run in ended:
        for task, tries in groupby(
            sorted(run.tries, key=lambda task_try: task_try.task), key=lambda task_try: task_try.task
        ):
            tries_by_task.setdefault(task, []).append((run, list(tries)))
    stats = []
    for task, by_run in tries_by_task.items():
        last = [(run, [task_try for task_try in run.last_tries if task_try.task == task]) for run, _ in by_run]
        began = [(run, tries) for run, tries in last if any(task_try.number for task_try in tries)]
        if not began:
            continue
        repairs = [_task_repairs(tries) for _, tries in by_run]
        stats.append(
            TaskStats(
                task,
                runs=len(began),
                succeeded=sum(all(task_try.state not in (*BAD, "running") for task_try in tries) for _, tries in began),
                retried=sum(any(task_try.number > 1 for task_try in tries) for _, tries in began),
                durations_s=tuple(
                    task_try.duration_ms / 1_000
                    for _, tries in last
                    for task_try in tries
                    if task_try.state == "success" and task_try.duration_ms is not None
                ),
                repairs=Repairs(
                    tuple(ms for repair in repairs for ms in repair.after_ms), sum(repair.open for repair in repairs)
                ),
            )
        )
    return stats


def _task_repairs(tries: Sequence[TaskTry]) -> Repairs:
    """Return the time from the first failed try of a task in a run to its success, by the index of mapped ones."""
    after, unrepaired = [], 0
    for _, these in groupby(
        sorted(tries, key=lambda task_try: (task_try.map_index, task_try.number)),
        key=lambda task_try: task_try.map_index,
    ):
        of_index = list(these)
        failed = [
            task_try.ended_ms for task_try in of_index if task_try.state == "failed" and task_try.ended_ms is not None
        ]
        good = [
            task_try.ended_ms for task_try in of_index if task_try.state == "success" and task_try.ended_ms is not None
        ]
        if failed and good and max(good) >= min(failed):
            after.append(max(good) - min(failed))
        elif failed and not good:
            unrepaired += 1
    return Repairs(tuple(after), unrepaired)


def good_end_ms(runs: Iterable[DagRun], to_s: int) -> int | None:
    """Return when the result of the hour that ends at `to_s` was first there: the first success of a run that reaches
    up to it. None: it is not."""
    well = [run for run in runs if run.hour.to_s == to_s and run.state == "success"]
    return min((run.ended_ms for run in well if run.ended_ms is not None), default=None)


def expected_hours(job: JobSpec, runs: Iterable[DagRun], now_s: float) -> list[int]:
    """Return the ends (epoch s) of the hours that a result is expected of: one after the other, from the first run's to
    the last that is over. None before the first run is known."""
    runs = list(runs)
    ends = sorted({run.hour.to_s for run in runs})
    if not ends:
        return []
    step_s = hour_s(job, runs, now_s)
    return sorted({*range(ends[0], int(now_s) + 1, step_s), *(end for end in ends if end <= now_s)})


def hour_s(job: JobSpec, runs: Iterable[DagRun], now_s: float) -> int:
    """Return how long the hours of a job are: the newest that has ended and has a run, or its span before that."""
    ended = [run.hour for run in runs if run.hour.to_s <= now_s]
    return max(ended, key=lambda hour: hour.to_s).length_s if ended else job.span // 1_000


def judged_hours(job: JobSpec, runs: Sequence[DagRun], now_s: float) -> dict[int, bool]:
    """Return whether the result was there by the deadline, of each expected hour whose deadline has passed or whose
    result is there; by the end of the hour. Empty without a deadline."""
    if job.deadline is None:
        return {}
    judged = {}
    for to_s in expected_hours(job, runs, now_s):
        good_ms, by_ms = good_end_ms(runs, to_s), 1_000 * to_s + job.deadline
        if good_ms is not None:
            judged[to_s] = good_ms <= by_ms
        elif 1_000 * now_s > by_ms:
            judged[to_s] = False
    return judged


def why_bad(job: JobSpec, run: DagRun) -> str | None:
    """Return what is wrong with a run that ended: `publish failed after 2 tries although aggregate succeeded`; None of
    a good one. A run whose tasks failed is bad even where its DAG says success."""
    bad = run.bad_tasks
    if not run.has_ended or (run.state == "success" and not bad):
        return None
    first = bad[0] if bad else None
    if first is None:
        text = f"{run.dag} failed, but no failed task was reported"
    else:
        tries = f" after {first.number} tries" if first.number > 1 else ""
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        text = f"{first.label}{more} failed{tries}"
        own = [task_try for task_try in run.last_tries if task_try.task == job.task]
        if own and first.task != job.task and all(task_try.state == "success" for task_try in own):
            text += f" although {job.task} succeeded"
    return f"{text}, but the run counts as a success" if run.state == "success" else text


@dataclass(frozen=True, slots=True)
class Bar:
    """One try on a Gantt chart, as shares of the run's length."""

    task_try: TaskTry
    start: float
    end: float


def bars_of(run: DagRun, now_ms: float) -> list[Bar]:
    """Return the tries of a run that began, from its start (0) to its end or now (1)."""
    begun = [task_try for task_try in run.tries if task_try.started_ms is not None]
    starts = [task_try.started_ms for task_try in begun if task_try.started_ms is not None]
    first = min([*starts, *([run.started_ms] if run.started_ms is not None else [])], default=0)
    until = run.ended_ms if run.ended_ms is not None else now_ms
    last = max([until, *(task_try.ended_ms for task_try in begun if task_try.ended_ms is not None)], default=until)
    length = max(1.0, last - first)
    return [
        Bar(
            task_try, ((task_try.started_ms or first) - first) / length, ((task_try.ended_ms or until) - first) / length
        )
        for task_try in begun
    ]


def _by_number(task_try: TaskTry) -> tuple[str, int, int]:
    return task_try.task, task_try.map_index, task_try.number


def _by_hour(run: DagRun) -> tuple[str, TimeRange]:
    return run.dag, run.hour


def _moment(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms / 1_000)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000

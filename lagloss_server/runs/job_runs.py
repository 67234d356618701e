"""Runs of a pipeline's jobs, each beside the records of the hour that it processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from lagloss_server.base.errors import UnknownRun
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Interval
from lagloss_server.runs.dag_runs import DagRun, JobStats, JobStatsDocument, RunDocument, stats_of, why_bad
from lagloss_server.runs.run_store import read_runs
from lagloss_server.store.periods import series
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import Rollup

MAX_SHOWN: Final = 200
LATEST: Final = "latest"


class LostDocument(TypedDict):
    """Bounds in messages: those that are lost for certain, and those whose loss cannot be ruled out."""

    min: int
    max: int


RecordsDocument = TypedDict(
    "RecordsDocument",
    {
        "minutes": int,
        "closed": int,
        "in": int,
        "out": int,
        "lost": LostDocument,
        "late": int,
        "duplicated": int | None,
        "corrupted": int | None,
    },
)
"""The records of a run's hour: see `HourRecords`."""


class HourRunDocument(RunDocument):
    """A run, what is wrong with it, and the records of its hour; null if none of it is closed."""

    why: str | None
    records: RecordsDocument | None


class JobRunsDocument(JobStatsDocument):
    """A job over a range, with its runs, the newest first."""

    list: Sequence[HourRunDocument]


@dataclass(frozen=True, slots=True)
class HourRecords:
    """Records of an hour: those that came `in`, those that were delivered, lost, late, seen twice, and changed on the
    way. None: nothing is known of it. `closed` of its `minutes` have a result."""

    minutes: int
    closed: int
    messages: int
    delivered: int
    lost: Interval
    late: int
    duplicated: int | None
    corrupted: int | None

    @classmethod
    def of(cls, hour: TimeRange, total: Rollup) -> HourRecords:
        counted = sum(checkpoint.counted for checkpoint in total.checkpoints.values())
        checked = sum(checks.checked for checks in total.checksums.values())
        return cls(
            minutes=hour.length_s // 60,
            closed=total.windows,
            messages=total.messages,
            delivered=total.delivered,
            lost=total.lost,
            late=total.on_time_of - total.on_time,
            duplicated=sum(checkpoint.duplicates for checkpoint in total.checkpoints.values()) if counted else None,
            corrupted=sum(checks.corrupted for checks in total.checksums.values()) if checked else None,
        )

    def document(self) -> RecordsDocument:
        return {
            "minutes": self.minutes,
            "closed": self.closed,
            "in": self.messages,
            "out": self.delivered,
            "lost": {"min": self.lost.min, "max": self.lost.max},
            "late": self.late,
            "duplicated": self.duplicated,
            "corrupted": self.corrupted,
        }


@dataclass(frozen=True, slots=True)
class HourRun:
    """A run, the records of its hour (None: none of it is closed), and what is wrong with it."""

    run: DagRun
    hour: HourRecords | None
    why: str | None

    def document(self) -> HourRunDocument:
        return {**self.run.document(), "why": self.why, "records": None if self.hour is None else self.hour.document()}


@dataclass(frozen=True, slots=True)
class JobRuns:
    """A job over a range: its statistics, and its runs, the newest first."""

    stats: JobStats
    runs: tuple[HourRun, ...]

    @property
    def job(self) -> JobSpec:
        return self.stats.job

    def document(self) -> JobRunsDocument:
        return {**self.stats.document(), "list": [run.document() for run in self.runs]}


def read_job_runs(
    store: Store, pipeline: str, from_s: float, to_s: float, now_s: float, *, limit: int = MAX_SHOWN
) -> list[JobRuns]:
    """Return the jobs of a pipeline with their runs that are due with from <= due < to, the newest `limit` of each.

    Raises:
        UnknownPipeline: there is none of this name.
    """
    jobs = store.pipeline(pipeline).definition.spec.jobs
    by_job = {job.dag: read_runs(store, pipeline, [job], from_s, to_s, limit=limit) for job in jobs}
    hours = _records(store, pipeline, [run for runs in by_job.values() for run in runs])
    return [
        JobRuns(
            stats_of(job, by_job[job.dag], min(now_s, to_s)),
            tuple(_with_hour(job, run, hours) for run in reversed(by_job[job.dag])),
        )
        for job in jobs
    ]


def read_run(store: Store, pipeline: str, run_id: str = LATEST, dag: str | None = None) -> HourRun:
    """Return one run, of this DAG if several have one of the name; `latest`: that which is due last.

    Raises:
        UnknownPipeline, UnknownRun: there is none of this name.
    """
    jobs = [job for job in store.pipeline(pipeline).definition.spec.jobs if dag in (None, job.dag)]
    runs_ = read_runs(store, pipeline, jobs, limit=1, run_id=None if run_id == LATEST else run_id)
    if not runs_:
        raise UnknownRun(pipeline=pipeline, run=run_id)
    run = runs_[-1]
    job = next(job for job in jobs if job.dag == run.dag)
    return _with_hour(job, run, _records(store, pipeline, [run]))


def _with_hour(job: JobSpec, run: DagRun, hours: Mapping[TimeRange, HourRecords]) -> HourRun:
    return HourRun(run, hours.get(run.hour), why_bad(job, run))


def _records(store: Store, pipeline: str, runs: Iterable[DagRun]) -> dict[TimeRange, HourRecords]:
    """Return the records of the hours of these runs, of those that have a closed minute, in a few statements."""
    hours = {run.hour for run in runs}
    records: dict[TimeRange, HourRecords] = {}
    for together in _neighbours(hours):
        edges = sorted({edge for hour in together for edge in (hour.from_s, hour.to_s)})
        parts = series(store, pipeline, edges)
        for hour in together:
            total = Rollup.merged(part.total for part in parts if hour.contains(part))
            if total.windows:
                records[hour] = HourRecords.of(hour, total)
    return records


def _neighbours(hours: Iterable[TimeRange]) -> list[Sequence[TimeRange]]:
    """Return hours in groups without gaps: what lies between them is not read."""
    groups: list[list[TimeRange]] = []
    reach_s = 0
    for hour in sorted(hours):
        if not groups or hour.from_s > reach_s:
            groups.append([])
        groups[-1].append(hour)
        reach_s = max(reach_s, hour.to_s)
    return list(groups)

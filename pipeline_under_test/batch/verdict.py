"""The verdict on the batch pipeline: its ledger beside lagloss's windows and beside the runs that lagloss knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.settings import Settings as LaglossSettings
from lagloss_server.runs.dag_runs import DagRun
from pipeline_under_test.batch.hourly.faults import TASKS
from pipeline_under_test.batch.ledger import Fact
from pipeline_under_test.batch.schema import COUNTED, EVENT, PUBLICATION
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.truth import batch_truths
from pipeline_under_test.harness.verdict import Verdict, verdicts_on


def verdicts_of(settings: BatchSettings, lagloss: LaglossSettings) -> list[Verdict]:
    """Compare the ledger with lagloss: the verdict on records, and that on files.

    Raises:
        NotEnoughData: the ledger is empty.
        LaglossError, KafkaException: a server cannot be reached, or lagloss has no such pipeline.
    """
    truths = batch_truths(settings)
    if not all(truth.windows for truth in truths.values()):
        raise NotEnoughData(detail=f"The ledger in {settings.ledger_dir} is empty. Start the process `landing`.")
    return verdicts_on(truths, lagloss)


FailedTry = tuple[int, str, int]
"""Hour (epoch s), task, number."""


@dataclass(frozen=True, slots=True)
class TrueRuns:
    """Hours that are to be processed, and the tries of tasks that were made to fail."""

    hours: frozenset[int]
    failed: frozenset[FailedTry]

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> TrueRuns:
        hours, failed = set(), set()
        for fact in facts:
            if fact["kind"] == "expected":
                hours.add(fact["hour"])
            elif fact["kind"] == "fault" and fact.get("node") in TASKS:
                failed.add((fact["hour"], fact["node"], fact["number"]))
        return cls(frozenset(hours), frozenset(failed))


def run_differences(truth: TrueRuns, runs: Iterable[DagRun], published: Mapping[int, int]) -> Iterator[str]:
    """Yield where lagloss's runs are not those of the ledger, and hours whose publication (events by hour) is not
    there."""
    by_hour = {run.hour.from_s: run for run in runs}
    for hour in sorted(truth.hours):
        run = by_hour.get(hour)
        if run is None or run.state != "success":
            yield f"expected a successful run of hour {hour}, found {run.state if run else 'none'}"
        if hour not in published:
            yield f"expected hour {hour} to be published"
    measured = {
        (hour, task_try.task, task_try.number)
        for hour, run in by_hour.items()
        for task_try in run.tries
        if task_try.state == "failed"
    }
    for hour, task, number in sorted(truth.failed ^ measured):
        where = "the ledger" if (hour, task, number) in truth.failed else "lagloss"
        yield f"attempt {number} of {task} for hour {hour} failed only according to {where}"


def published_hours(connection: Connection) -> dict[int, int]:
    """Return the events in each publication."""
    return {row.hour: row.events for row in connection.execute(select(PUBLICATION.c.hour, PUBLICATION.c.events))}


def late_hours(connection: Connection) -> set[int]:
    """Return the hours with events that are imported and not aggregated, of those that are published."""
    waiting = ~select(COUNTED.c.id).where(COUNTED.c.id == EVENT.c.id).exists()
    computed = EVENT.c.hour.in_(select(PUBLICATION.c.hour))
    return set(connection.execute(select(EVENT.c.hour).where(waiting, computed).distinct()).scalars())


def count_waiting(connection: Connection) -> int:
    """Return how many imported events are not aggregated."""
    waiting = ~select(COUNTED.c.id).where(COUNTED.c.id == EVENT.c.id).exists()
    return int(connection.execute(select(func.count()).select_from(EVENT).where(waiting)).scalar_one())

"""A run of the batch pipeline on a running stack: load, faults at their times, repairs, and the verdict at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx2

from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.ops.supervisor import Say
from lagloss_server.runs.job_runs import JobRuns, read_job_runs
from lagloss_server.store.store import Store
from pipeline_under_test.batch.faults import injections, parse
from pipeline_under_test.batch.hourly.faults import TaskFault, faults_of
from pipeline_under_test.batch.ledger import read_ledger
from pipeline_under_test.batch.operator import Operator, bury
from pipeline_under_test.batch.scenario import BatchScenario, FlowFault, JobFault, Redrive
from pipeline_under_test.batch.schema import open_database
from pipeline_under_test.batch.stack import BatchStack
from pipeline_under_test.batch.topology import files_pipeline
from pipeline_under_test.batch.truth import batch_truths
from pipeline_under_test.batch.verdict import TrueRuns, count_waiting, published_hours, run_differences, verdicts_of
from pipeline_under_test.harness.loss_watch import FalseLoss, LossWatch
from pipeline_under_test.harness.verdict import LATEST_S, Verdict

TICK_S: Final = 1.0
TAIL_S: Final = 3.0
"""The load ends this much early: no event of it is to lie in an hour that is not expected."""
LOOK_EVERY_S: Final = 5.0
"""Between looks at what takes a statement or more: runs, late data, losses, the verdict."""


@dataclass(frozen=True)
class BatchResult:
    """What came of a run: the verdicts on records and on files, and what differs in the job's runs."""

    verdicts: Sequence[Verdict]
    run_differences: tuple[str, ...]
    false_losses: tuple[FalseLoss, ...]
    hours: int
    failed_tries: int
    restated: int

    @property
    def agrees(self) -> bool:
        settled = all(verdict.agrees and not verdict.waiting for verdict in self.verdicts)
        return bool(self.verdicts) and settled and not self.run_differences and not self.false_losses

    def document(self) -> dict[str, Any]:
        return {
            "agree": self.agrees,
            "pipelines": [verdict.document() for verdict in self.verdicts],
            "runs": {
                "hours": self.hours,
                "failed_tries": self.failed_tries,
                "restated": self.restated,
                "differences": list(self.run_differences),
            },
            "false_losses": len(self.false_losses),
        }


class BatchRun:
    """The run of one scenario on a stack of its own."""

    def __init__(self, stack: BatchStack, scenario: BatchScenario, say: Say) -> None:
        self.stack = stack
        self.scenario = scenario
        self.say = say
        self._ledger = stack.settings.ledger_of("operator")
        self._store = Store(stack.lagloss.require_database())
        self._engine = open_database(stack.settings.database_url)
        self._begin_s = stack.start_s
        settings = stack.settings
        pipelines = (settings.pipeline, files_pipeline(settings.pipeline))
        self._watch = LossWatch(self._store, pipelines, partial(batch_truths, settings), self._begin_s)
        self._next_look = 0.0
        redrives = (fault for fault in scenario.faults if isinstance(fault, Redrive))
        self._redrives = sorted(redrives, key=lambda step: step.at)
        self.operator = Operator(self.stack, self._engine, self._ledger, self._repairs(), self.say)

    def close(self) -> None:
        self._ledger.close()
        self._store.close()
        self._engine.dispose()

    @property
    def hours(self) -> list[int]:
        """Starts of the hours that have events (epoch s)."""
        span_s = self.stack.settings.span_s
        count = math.ceil(self.scenario.load.minutes * 60 / span_s)
        return [self._begin_s + number * span_s for number in range(count)]

    def go(self) -> BatchResult:
        """Run all of it, and return the result once lagloss has settled every window, or its time is over."""
        self._inject()
        self.stack.begin(self._begin_s + self.scenario.run.backfill * self.stack.settings.span_s)
        for _ in self._ticks(until_s=self._begin_s + self.scenario.load.minutes * 60 - TAIL_S):
            pass
        self.say("stopped sending events; waiting for the last hour")
        self.stack.stop_landing()
        if self.scenario.run.backfill:
            self.operator.backfill(self.hours[: self.scenario.run.backfill])
        return self._settled()

    def _inject(self) -> None:
        """Request all faults, and note which hours are to be processed."""
        faults = injections(self.stack.settings)
        faults.begin_anew(())
        for order in self.scenario.faults:
            if isinstance(order, FlowFault):
                faults.add(parse(order.fault), order.for_ / 1000, self._begin_s + order.at / 1000 - time.time())
        for fault in self.operator.repairs:
            faults_of(self.stack.settings.data_dir).add(fault)
        for hour in self.hours:
            self._ledger.write("expected", hour=hour, run="")

    def _repairs(self) -> dict[TaskFault, float]:
        """Return the faults of tasks, and after how many seconds each is repaired once its run has failed."""
        return {
            TaskFault.parse(fault.task, self.hours[fault.hour - 1]): fault.repair / 1000
            for fault in self.scenario.faults
            if isinstance(fault, JobFault)
        }

    def _ticks(self, until_s: float) -> Iterator[None]:
        """Tend the stack, and do what an operator does, once a second."""
        while time.time() < until_s:
            self.stack.tend()
            while self._redrives and time.time() >= self._begin_s + self._redrives[0].at / 1000:
                self.operator.redrive(self._redrives.pop(0).redrive)
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + LOOK_EVERY_S
                self._look()
                yield
            time.sleep(TICK_S)

    def _look(self) -> None:
        for wrong in self._watch.look():
            self.say(f"false loss: {wrong}")
        try:
            self.operator.look()
        except httpx2.HTTPError as error:
            self.say(f"Airflow does not respond: {error}")

    def _settled(self) -> BatchResult:
        """Wait until every hour is published and every window settled, and return how all of it compares."""
        spec = self._store.pipeline(self.stack.settings.pipeline).definition.spec
        last_s = self.hours[-1] + self.stack.settings.span_s
        deadline = max(time.time(), last_s) + 3 * self.stack.settings.span_s + (spec.grace + spec.max_wait) / 1000
        result: BatchResult | None = None
        for _ in self._ticks(until_s=deadline + LATEST_S):
            differences = self._run_differences()
            with self._engine.connect() as connection:
                waiting = count_waiting(connection)
            if waiting or any("expected" in difference for difference in differences):
                continue
            result = self._result(differences)
            if result is not None and result.agrees:
                return result
        return result or self._result(self._run_differences()) or self._nothing()

    def _result(self, differences: tuple[str, ...]) -> BatchResult | None:
        bury(self.stack.aws, self.stack.infrastructure, self._ledger)
        try:
            verdicts = verdicts_of(self.stack.settings, self.stack.lagloss)
        except NotEnoughData:
            return None
        return self._made(verdicts, differences)

    def _nothing(self) -> BatchResult:
        return self._made([], ("expected windows, found none",))

    def _made(self, verdicts: Sequence[Verdict], differences: tuple[str, ...]) -> BatchResult:
        failed = len(self._true_runs().failed)
        return BatchResult(
            verdicts, differences, tuple(self._watch.found), len(self.hours), failed, self.operator.restated
        )

    def _run_differences(self) -> tuple[str, ...]:
        with self._engine.connect() as connection:
            published = published_hours(connection)
        runs = [run.run for job in self.job_runs() for run in job.runs]
        return tuple(run_differences(self._true_runs(), runs, published))

    def _true_runs(self) -> TrueRuns:
        return TrueRuns.of(read_ledger(self.stack.settings.ledger_dir))

    def job_runs(self) -> list[JobRuns]:
        """Return the jobs and their runs, as lagloss knows them."""
        now_s = time.time()
        return read_job_runs(self._store, self.stack.settings.pipeline, self._begin_s, now_s + WINDOW_S, now_s)


@contextmanager
def batch_run(stack: BatchStack, scenario: BatchScenario, say: Say) -> Iterator[BatchRun]:
    """Yield a run, and close what it has open."""
    run = BatchRun(stack, scenario, say)
    try:
        yield run
    finally:
        run.close()

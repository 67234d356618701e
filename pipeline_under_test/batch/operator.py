"""What an operator does during a run: repair tasks, run hours again that have late data, redrive, back-fill."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from lagloss_server.base import format as fmt
from lagloss_server.ops.supervisor import Say
from pipeline_under_test.batch import operations
from pipeline_under_test.batch.airflow_api import AirflowRun
from pipeline_under_test.batch.hourly.faults import TaskFault, faults_of
from pipeline_under_test.batch.ledger import FactLedger
from pipeline_under_test.batch.runs_verdict import count_waiting, late_hours
from pipeline_under_test.batch.stack import BatchStack


@dataclass
class Operator:
    """Looks after a running pipeline. `repairs`: the faults of tasks, each with the seconds after which it is repaired
    once its run has failed. Methods raise httpx2.HTTPError where Airflow does not answer."""

    stack: BatchStack
    engine: Engine
    ledger: FactLedger
    repairs: Mapping[TaskFault, float]
    say: Say
    restated: int = 0
    _failed_at: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        """Look once, do what is due, and report."""
        runs = self.stack.api.runs()
        self._repair({run.hour: run for run in runs})
        self._restate(runs)
        self._report(runs)

    def redrive(self, importer: str) -> None:
        self.say(f"redrive of the dead letters of {importer}")
        operations.redrive(self.stack.aws, self.stack.infrastructure, importer, self.ledger)

    def backfill(self, hours: Sequence[int]) -> None:
        self.say(f"back-fill of {fmt.counted(len(hours), 'hour')}")
        self.stack.api.backfill(hours[0], hours[-1] + self.stack.settings.span_s)

    def _repair(self, by_hour: Mapping[int | None, AirflowRun]) -> None:
        for fault, after_s in self.repairs.items():
            run = by_hour.get(fault.hour)
            if run is None or run.state != "failed":
                continue
            if time.time() >= self._failed_at.setdefault(run.run_id, time.time()) + after_s:
                self.say(f"{fault.text} is repaired, {run.run_id} goes on")
                faults_of(self.stack.settings.data_dir).lift(fault)
                self.stack.api.rerun(run.run_id, only_failed=True)
                del self._failed_at[run.run_id]

    def _restate(self, runs: Sequence[AirflowRun]) -> None:
        """Run hours again that have late data, once their runs have ended."""
        with self.engine.connect() as connection:
            late = late_hours(connection)
        for run in runs:
            if run.hour in late and run.state == "success":
                self.say(f"late data: {run.run_id} is run again")
                self.restated += 1
                self.stack.api.rerun(run.run_id)

    def _report(self, runs: Sequence[AirflowRun]) -> None:
        states = ", ".join(f"{fmt.clock(run.hour or 0)} {run.state}" for run in runs)
        waiting = [
            f"{sum(self.stack.aws.counts(url))} {node}" for node, url in self.stack.infrastructure.queues.items()
        ]
        with self.engine.connect() as connection:
            records = count_waiting(connection)
        self.say(f"hours: {states or 'none'}; files in queues: {', '.join(waiting)}; {records} records not aggregated")

"""What an operator does during a run: repair tasks, run hours again that have late data, redrive, back-fill."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from botocore.exceptions import ClientError
from sqlalchemy import Engine

from lagloss.files import BadNotification, objects_in
from lagloss_server.base import format as fmt
from lagloss_server.ops.supervisor import Say
from pipeline_under_test.batch.airflow_api import AirflowRun
from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.hourly.faults import TaskFault, faults_of
from pipeline_under_test.batch.ledger import FactLedger
from pipeline_under_test.batch.stack import BatchStack
from pipeline_under_test.batch.verdict import count_waiting, late_hours

HIDDEN_S: Final = 2
"""Visibility timeout of dead letters that are looked at: a look finds each once."""
PATIENCE_S: Final = 15.0
"""How long dead letters that others look at are waited for: they are invisible meanwhile."""
LOOK_EVERY_S: Final = 0.5


def dead_files(aws: Aws, queue_url: str) -> list[str]:
    """Return the ids of the files in a dead-letter queue; they stay there, invisible for a moment."""
    files: dict[str, list[str]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = aws.sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, VisibilityTimeout=HIDDEN_S)
        messages = answer.get("Messages", ())
        files |= {message["MessageId"]: _names(message["Body"]) for message in messages}
        if len(files) >= sum(aws.counts(queue_url)) or time.monotonic() > deadline:
            return list(dict.fromkeys(name for names in files.values() for name in names))
        if not messages:
            time.sleep(LOOK_EVERY_S)


def _names(body: str) -> list[str]:
    try:
        return [stored.message_id for stored in objects_in(body)]
    except BadNotification:
        return []


def bury(aws: Aws, infrastructure: Infrastructure, ledger: FactLedger) -> int:
    """Write the files in the dead-letter queues to the ledger; return their number."""
    number = 0
    for importer, url in infrastructure.dead.items():
        for name in dead_files(aws, url):
            ledger.write("buried", node=importer, file=name)
            number += 1
    return number


def redrive(aws: Aws, infrastructure: Infrastructure, importer: str, ledger: FactLedger) -> None:
    """Move an importer's dead letters back into its queue, by the queue's own move task.

    A task moves what is visible when it runs: another task moves those that were looked at meanwhile.
    """
    ledger.write("redriven", node=importer)
    url, deadline = infrastructure.dead[importer], time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        visible, in_flight = aws.counts(url)
        if visible == in_flight == 0:
            return
        if visible > 0:
            with suppress(ClientError):  # the task before is still at work
                aws.sqs.start_message_move_task(SourceArn=aws.arn(url))
        time.sleep(LOOK_EVERY_S)


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
        self.say(f"redriving the dead letters of {importer}")
        redrive(self.stack.aws, self.stack.infrastructure, importer, self.ledger)

    def backfill(self, hours: Sequence[int]) -> None:
        self.say(f"back-fill of {fmt.counted(len(hours), 'hour')}")
        self.stack.api.backfill(hours[0], hours[-1] + self.stack.settings.span_s)

    def _repair(self, by_hour: Mapping[int | None, AirflowRun]) -> None:
        for fault, after_s in self.repairs.items():
            run = by_hour.get(fault.hour)
            if run is None or run.state != "failed":
                continue
            if time.time() >= self._failed_at.setdefault(run.run_id, time.time()) + after_s:
                self.say(f"{fault.text} is repaired; {run.run_id} continues")
                faults_of(self.stack.settings.data_dir).lift(fault)
                self.stack.api.rerun(run.run_id, only_failed=True)
                del self._failed_at[run.run_id]

    def _restate(self, runs: Sequence[AirflowRun]) -> None:
        """Run hours again that have late data, once their runs have ended."""
        with self.engine.connect() as connection:
            late = late_hours(connection)
        for run in runs:
            if run.hour in late and run.state == "success":
                self.say(f"late data: rerunning {run.run_id}")
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

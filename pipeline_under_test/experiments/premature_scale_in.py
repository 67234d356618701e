"""Premature scale-in: importers that wait for their sink look idle by CPU, and are taken away while files still wait.

The sink takes 400 ms with each file (`wait:db-import:400ms:1`), so four processes take ten files a second and use
hardly any CPU. The queue is filled at once, and both policies begin with four processes. A process that is taken away
has a second to end, as a machine that is switched off: what it has in hand comes back after the visibility timeout, and
at its second return lies in the dead-letter queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lagloss.broker.connection import BOOTSTRAP_VARIABLE
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from pipeline_under_test.batch.aws import EMULATED, Aws, Infrastructure, create
from pipeline_under_test.batch.events import ScoreMaker
from pipeline_under_test.batch.faults import injections, parse
from pipeline_under_test.batch.landing import FileStore, landing_node
from pipeline_under_test.batch.ledger import Fact, read_ledger
from pipeline_under_test.batch.scaling import QueuePolicy, QueueSample, QueueScaler, importer_group
from pipeline_under_test.batch.schema import create_tables, open_database
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import DB_IMPORT
from pipeline_under_test.experiments import NotMeasured
from pipeline_under_test.experiments.chart import Chart, ChartLine, ChartPanel
from pipeline_under_test.experiments.sandbox import sandbox
from pipeline_under_test.harness.policies import LOW_CPU, Rules

WAIT: Final = "wait:db-import:400ms:1"
PROCESSES: Final = 4
RECORDS: Final = 100
"""Records in a file."""
LIMIT_S: Final = 600.0
RULES: Final = Rules(least=1, most=PROCESSES, trend_s=3, quiet_s=4, cool_down_s=5)
COMPARED: Final[tuple[QueuePolicy, ...]] = ("cpu", "queue")


@dataclass(frozen=True, slots=True)
class DrainRun:
    """A run: files sent, samples from the moment at which the queue was full, and when each receipt was (seconds after
    that)."""

    sent: int
    samples: Sequence[QueueSample]
    received_at_s: Sequence[float]

    @property
    def drained_s(self) -> float:
        """Seconds until nothing was visible or in flight any more."""
        return self.samples[-1].at_s - self.samples[0].at_s

    @property
    def dead(self) -> int:
        return self.samples[-1].dead


Runs = Mapping[QueuePolicy, DrainRun]


def measure(files: int, say: Callable[[str], None]) -> dict[QueuePolicy, DrainRun]:
    """Drain a queue of so many files under each policy; `say` is called with each."""
    runs: dict[QueuePolicy, DrainRun] = {}
    with (
        sandbox() as box,
        EmbeddedLocalStack(box.folder / "localstack") as localstack,
        EmbeddedPostgres(box.folder / "postgres") as postgres,
    ):
        for policy in COMPARED:
            say(f"policy {policy}: {files} files")
            settings = BatchSettings(
                data_dir=box.folder / policy,
                s3_endpoint=localstack.url,
                database_url=postgres.create_database(f"scores_{policy}"),
                pipeline=f"scores-{policy}",
                visibility_s=10,
                poll_s=1,
                batch=5,
                notified_within_s=10,
            )
            runs[policy] = _run(settings, policy, files, {**localstack.variables, BOOTSTRAP_VARIABLE: box.bootstrap})
    return runs


def _run(settings: BatchSettings, policy: QueuePolicy, files: int, env: Mapping[str, str]) -> DrainRun:
    aws = Aws.connect(settings, **EMULATED)
    engine = open_database(settings.database_url)
    create_tables(engine)
    engine.dispose()
    infrastructure = create(aws, settings)
    injections(settings).begin_anew([parse(WAIT)])
    _fill(settings, aws, infrastructure, files, env[BOOTSTRAP_VARIABLE])
    group = importer_group(settings, DB_IMPORT, least=1, most=PROCESSES, env=env, stop_timeout_s=1)
    scaler = QueueScaler(group, aws, infrastructure, policy, RULES)
    group.scale(PROCESSES)
    began, began_ms = time.monotonic(), time.time_ns() / 1e6
    try:
        while not (scaler.samples and _is_drained(scaler.samples[-1])):
            if time.monotonic() - began > LIMIT_S:
                raise NotMeasured(f"expected an empty queue within {LIMIT_S:.0f} s, found {scaler.samples[-1]}")
            scaler.step()
            time.sleep(0.1)
    finally:
        group.abort()
    return DrainRun(files, scaler.samples, _receipts(read_ledger(settings.ledger_dir), began_ms))


def _fill(settings: BatchSettings, aws: Aws, infrastructure: Infrastructure, files: int, bootstrap: str) -> None:
    """Store the files, and wait until the queue has heard of all."""
    maker, url = ScoreMaker(settings.seed), infrastructure.queues[DB_IMPORT]
    with landing_node(settings, bootstrap=bootstrap) as node, settings.ledger_of("landing") as ledger:
        store = FileStore(settings, node, aws, infrastructure, ledger, maker)
        for _ in range(files):
            store.store([maker.make(time.time_ns() // 1_000_000) for _ in range(RECORDS)])
    deadline = time.monotonic() + 60
    while aws.counts(url)[0] < files:
        if time.monotonic() > deadline:
            raise NotMeasured(f"expected {files} messages in the queue, found {aws.counts(url)[0]}")
        time.sleep(0.1)


def _is_drained(sample: QueueSample) -> bool:
    return sample.visible == 0 and sample.in_flight == 0


def _receipts(facts: Iterable[Fact], began_ms: float) -> list[float]:
    received = (fact for fact in facts if fact["kind"] == "received" and fact["node"] == DB_IMPORT)
    return [(fact["at_ms"] - began_ms) / 1000 for fact in received]


def figures(runs: Runs) -> dict[str, dict[str, Any]]:
    """Return the experiment's figures, by policy."""
    return {
        policy: {
            "files": run.sent,
            "time_to_drain_s": round(run.drained_s, 1),
            "received": len(run.received_at_s),
            "dead": run.dead,
            "least_processes_before_drained": min(sample.processes for sample in run.samples[:-1] or run.samples),
        }
        for policy, run in runs.items()
    }


def chart(runs: Runs) -> Chart:
    """Draw both policies, one panel for each quantity."""

    def lines(value: Callable[[DrainRun, QueueSample, float], float]) -> list[ChartLine]:
        return [
            ChartLine(
                f"policy {policy}, drained after {run.drained_s:.0f} s",
                [
                    (at_s, value(run, sample, at_s))
                    for sample in run.samples
                    for at_s in [sample.at_s - run.samples[0].at_s]
                ],
            )
            for policy, run in runs.items()
        ]

    def received(run: DrainRun, _: QueueSample, at_s: float) -> float:
        return sum(moment_s <= at_s for moment_s in run.received_at_s)

    def acknowledged(run: DrainRun, sample: QueueSample, _: float) -> float:
        return run.sent - sample.visible - sample.in_flight - sample.dead

    sent = max(run.sent for run in runs.values())
    return Chart(
        "Premature scale-in: I/O-bound importers, scaled by CPU and by their queue",
        "seconds",
        (
            ChartPanel("messages acknowledged", lines(acknowledged), (sent, "messages sent")),
            ChartPanel("messages received, including redeliveries", lines(received), (sent, "messages sent")),
            ChartPanel(
                "CPU of a process, % of a core",
                lines(lambda _, sample, __: 100 * sample.cpu),
                (100 * LOW_CPU, "remove a process below this"),
            ),
            ChartPanel("processes", lines(lambda _, sample, __: sample.processes)),
        ),
    )

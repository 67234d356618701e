"""Why CPU misleads: a node that waits, for a lock or an answer, is idle by its CPU and drowns by its queue.

event-norm's thread waits 8 ms with each event (`wait:event-norm:8ms:1`), so one process does about 110 events a second
and hardly uses its core. Traffic rises from half of that to twice as much. The policy `cpu` sees nothing to do;
`queue-lag` sees the queue, and adds processes until it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from pipeline_under_test.experiments.chart import Chart, ChartLine, ChartPanel
from pipeline_under_test.experiments.sandbox import Sandbox, sandbox
from pipeline_under_test.harness.policies import HIGH_CPU, Policy
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.processes.runner import Runner
from pipeline_under_test.stream.processes.scaling import Scaling
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import EVENT_NORM

WAIT: Final = "wait:event-norm:8ms:1"
RATE: Final = 60.0
RISES: Final = ((1 / 6, 2), (1 / 3, 3), (1 / 2, 4))
"""From which part of the time on there is how many times as much traffic."""
AT_END_S: Final = 20.0
"""Figures "at the end" are medians over so long."""
COMPARED: Final[tuple[Policy, ...]] = ("cpu", "queue-lag")


@dataclass(frozen=True, slots=True)
class CpuSample:
    """event-norm at a moment, `at_s` seconds after the load began; `cpu` is a share of a core, by process."""

    at_s: float
    events_per_s: float
    processes: int
    backlog: int
    lag_s: float
    cpu: float


Runs = Mapping[Policy, Sequence[CpuSample]]


def measure(seconds: float, say: Callable[[str], None]) -> dict[Policy, list[CpuSample]]:
    """Run the pipeline under the same rising load, once with each policy; `say` is called with each."""
    runs = {}
    with sandbox() as box:
        for policy in COMPARED:
            say(f"policy {policy}: {seconds:.0f} s of load")
            runs[policy] = list(_run(box, policy, seconds))
    return runs


def _run(box: Sandbox, policy: Policy, seconds: float) -> Iterator[CpuSample]:
    name = f"waits-{policy}"
    settings = ReferenceSettings(data_dir=box.folder / name, bootstrap=box.bootstrap, pipeline=name)
    settings.injections().begin_anew([parse(WAIT)])
    runner = Runner(settings, RATE, seconds / 60, 0, Scaling(policy))
    began = None
    for progress in runner.steps():
        if progress["phase"] == "load":
            if began is None:
                began = time.monotonic()
                _rise(settings, seconds)
            if EVENT_NORM in progress["observed"]:
                yield _sample(time.monotonic() - began, progress)
        elif began is not None:  # what still waits is of no interest
            runner.stop()


def _rise(settings: ReferenceSettings, seconds: float) -> None:
    starts = [share * seconds for share, _ in RISES]
    for (_, factor), start_s, end_s in zip(RISES, starts, [*starts[1:], seconds], strict=True):
        settings.injections().add(parse(f"burst:{factor}"), end_s - start_s, start_s)


def _sample(at_s: float, progress: Mapping[str, Any]) -> CpuSample:
    observed = progress["observed"][EVENT_NORM]
    return CpuSample(
        at_s, progress["events_per_s"], observed["processes"], observed["backlog"], observed["lag_s"], observed["cpu"]
    )


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the experiment's figures, by policy."""
    return {policy: _figures(samples) for policy, samples in runs.items()}


def _figures(samples: Sequence[CpuSample]) -> dict[str, float]:
    end = [sample for sample in samples if sample.at_s > samples[-1].at_s - AT_END_S]
    return {
        "processes_at_end": end[-1].processes,
        "events_per_s_at_end": round(median(sample.events_per_s for sample in end), 1),
        "cpu_at_end": round(median(sample.cpu for sample in end), 2),
        "lag_s_at_end": round(median(sample.lag_s for sample in end), 1),
        "lag_s_highest": max(sample.lag_s for sample in samples),
        "backlog_at_end": median(sample.backlog for sample in end),
        "backlog_highest": max(sample.backlog for sample in samples),
    }


def chart(runs: Runs) -> Chart:
    """Draw both policies, one panel for each quantity."""

    def lines(what: str, factor: float = 1.0) -> list[ChartLine]:
        return [
            ChartLine(f"policy {policy}", [(sample.at_s, factor * getattr(sample, what)) for sample in samples])
            for policy, samples in runs.items()
        ]

    return Chart(
        "An I/O-bound node under rising traffic: scaling by CPU and by queue lag",
        "seconds",
        (
            ChartPanel("traffic, events/s", lines("events_per_s")),
            ChartPanel(
                "CPU of a process, % of a core", lines("cpu", 100), (100 * HIGH_CPU, "add a process above this")
            ),
            ChartPanel("lag of event-norm, s", lines("lag_s")),
            ChartPanel("processes of event-norm", lines("processes")),
        ),
    )

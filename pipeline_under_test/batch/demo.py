"""The demo of the batch pipeline: three hours of two minutes, faults, and at the end what was measured beside them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from lagloss.errors import EXIT_BREACHED, EXIT_OK
from lagloss_server.base import format as fmt
from lagloss_server.base.settings import Settings
from lagloss_server.cli.runs_text import gantt_lines, job_lines
from lagloss_server.model.window import NONE_LOST, Interval
from lagloss_server.ops.demo.run import PLAIN_WIDTH, make_empty
from lagloss_server.ops.supervisor import Say
from lagloss_server.ops.up import progress_lines, signals_interrupt
from pipeline_under_test.batch.outcome import problems_of
from pipeline_under_test.batch.run import BatchResult, BatchRun, batch_run
from pipeline_under_test.batch.scenario import BatchScenario, JobFault, load_batch_scenario
from pipeline_under_test.batch.stack import BatchStack, Sizes

SCENARIO: Final = Path(__file__).with_name("demo.yaml")
COUNTS: Final = ("messages", "delivered", "dead", "lost")


def run(minutes: float | None = None, *, as_json: bool = False, settings: Settings | None = None) -> int:
    """Run the demo for `minutes` of load (by default its scenario's), then compare.

    Returns:
        0; 1 if injected and measured differ, or it was interrupted before it could compare.

    Raises:
        LaglossError: if something does not start; its message has advice.
    """
    settings = settings or Settings()
    settings = settings.model_copy(update={"data_dir": settings.data_dir.absolute() / "demo-batch"})
    scenario = demo_scenario(minutes)
    make_empty(settings.data_dir)
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    with signals_interrupt(), progress_lines(console) as say:
        try:
            with (
                BatchStack(settings, scenario.settings(), Sizes(importers=scenario.run.importers), say) as stack,
                batch_run(stack, scenario, say) as running,
            ):
                _say_endpoints(stack, say)
                result = running.go()
                for line in _pictures(running, console.width):
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            say("stopped")
            return EXIT_BREACHED
    if as_json:
        sys.stdout.write(json.dumps(result.document()) + "\n")
    else:
        _show(console, result, scenario)
    return EXIT_OK if result.agrees else EXIT_BREACHED


def demo_scenario(minutes: float | None = None) -> BatchScenario:
    """Return the demo's scenario, with the faults that fit into so many minutes."""
    whole = load_batch_scenario(SCENARIO)
    if minutes is None:
        return whole
    load = whole.load.model_copy(update={"minutes": minutes})
    hours = minutes * 60_000 / whole.run.span
    faults = [
        fault
        for fault in whole.faults
        if (fault.hour <= hours if isinstance(fault, JobFault) else fault.at < minutes * 60_000)
    ]
    return whole.model_copy(update={"load": load, "faults": tuple(faults)})


def _say_endpoints(stack: BatchStack, say: Say) -> None:
    for name, address in stack.endpoints.items():
        say(f"{name}: {address}")
    say(f"Airflow's user is admin, its password is in {stack.airflow.data_dir / 'passwords.json'}")


def _pictures(running: BatchRun, width: int) -> Iterator[str]:
    """Yield the job's statistics, and its runs as Gantt charts."""
    now_ms = time.time() * 1000
    for job in running.job_runs():
        yield from job_lines(job.stats)
        for run in sorted(job.runs, key=lambda item: item.run.hour.from_s):
            yield ""
            yield from gantt_lines(run, now_ms, width)


def _show(console: Console, result: BatchResult, scenario: BatchScenario) -> None:
    """Print what was injected beside what was measured, and what differs."""
    table = Table("pipeline", *(f"{name}: injected / measured" for name in COUNTS), "links and nodes")
    for document in result.document()["pipelines"]:
        table.add_row(document["pipeline"], *(_pair(document, name) for name in COUNTS), _by_place(document))
    console.print(table)
    problems = problems_of(result, scenario.expect.model_copy(update={"lost": {}})) if not result.agrees else []
    for problem in problems:
        console.print(problem, style="red", markup=False)
    if result.agrees:
        hours = fmt.counted(result.hours, "hour")
        records, files = (verdict.document()["injected"]["messages"] for verdict in result.verdicts)
        console.print(
            f"measured = injected: {records:,} records and {files:,} files, id by id, and the runs of {hours} with "
            f"{fmt.count(result.failed_tries)} failed task attempts, {result.restated} rerun for late data",
            style="bold green",
        )


def _pair(document: dict[str, Any], name: str) -> str:
    measured = document["measured"][name]
    shown = fmt.count_interval(Interval(**measured)) if name == "lost" else f"{measured:,}"
    return f"{document['injected'][name]:,} / {shown}"


def _by_place(document: dict[str, Any]) -> str:
    injected, measured = document["injected"]["lost_at"], document["measured"]["lost_at"]
    bounds = {place: Interval(**lost) for place, lost in measured.items()}
    return ", ".join(
        f"{place} {injected.get(place, 0)}/{fmt.count_interval(bounds.get(place, NONE_LOST))}"
        for place in sorted({*injected, *measured})
    )

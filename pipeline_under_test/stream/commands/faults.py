"""The commands that break a running pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from lagloss.errors import EXIT_USAGE
from pipeline_under_test.harness.commands import fail, say
from pipeline_under_test.harness.injections import Injection
from pipeline_under_test.stream.commands.options import DataDir, fault_of, require_target
from pipeline_under_test.stream.faults import Fault
from pipeline_under_test.stream.settings import ReferenceSettings

app = typer.Typer()


@app.command(
    epilog="Faults: see pipeline_under_test/stream/faults.py or docs/reference-pipeline.md, for instance "
    "lose:link:event-norm->event-router:0.02 or crash:conn-ga"
)
def fault(
    data_dir: DataDir,
    fault: Annotated[Fault | None, typer.Argument(parser=fault_of, metavar="FAULT")] = None,
    seconds: Annotated[float | None, typer.Option("--for", min=0, help="seconds; without it, until --end-all")] = None,
    wait: Annotated[float, typer.Option("--in", min=0, help="seconds until it begins")] = 1.0,
    end_all: Annotated[bool, typer.Option("--end-all", help="end all faults that are on")] = False,
) -> None:
    """Inject a fault into a running pipeline."""
    settings = ReferenceSettings.load(data_dir)
    injections = settings.injections()
    if end_all == (fault is not None):
        fail("expected a FAULT or --end-all", EXIT_USAGE)
    if fault is None:
        injections.end_all()
        return
    require_target(fault, settings)
    made = injections.add(fault, seconds, wait)
    say(_asked(made))


@app.command()
def play(
    data_dir: DataDir,
    scenario: Annotated[str, typer.Argument(metavar="NAME|FILE", help="one of scenarios/, or a file like them")],
) -> None:
    """Inject a scenario's faults, at their times from now on, into a running pipeline."""
    from pipeline_under_test.stream.scenario import BROKER_FAULTS, find_scenario, load_scenario

    settings = ReferenceSettings.load(data_dir)
    found = load_scenario(find_scenario(scenario))
    for one in found.faults:
        if one.fault.kind in BROKER_FAULTS:
            fail(f"expected no fault of brokers, which `pipeline scenario` has, found {one.fault.text}", EXIT_USAGE)
        require_target(one.fault, settings)
    faults = [_asked(made) for made in found.inject(settings.injections())]
    say({"scenario": found.name, "description": found.description, "faults": faults})


def _asked(made: Injection) -> dict[str, object]:
    return {"fault": made.fault.text, "from_ms": made.from_ms, "until_ms": made.until_ms}

"""Commands that say what became of the events, and how much a node sustains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base.settings import Settings as LaglossSettings
from pipeline_under_test.commands.answering import EXIT_DIFFERS, fail, say
from pipeline_under_test.commands.options import AsJson, DataDir, FaultOption, duration_s
from pipeline_under_test.rating.search import RateTrial
from pipeline_under_test.settings import NotThere, ReferenceSettings
from pipeline_under_test.topology import SCALED

app = typer.Typer()


@app.command()
def ledger(data_dir: DataDir) -> None:
    """Print what the ledger adds up to, as one JSON document."""
    from pipeline_under_test.ledger import LedgerReader
    from pipeline_under_test.truth.expected import Truth

    truth = Truth()
    truth.add(LedgerReader(data_dir / "ledger").new_entries())
    say({"windows": truth.documents()})


@app.command()
def verdict(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Compare the ledger with lagloss's windows, id by id: exit 0 if they agree, 1 if not, 4 if it is too early."""
    from pipeline_under_test.tables import show_verdict
    from pipeline_under_test.truth.verdict import verdict_of

    found = verdict_of(ReferenceSettings.load(data_dir), LaglossSettings.load())
    if as_json:
        say(found.document())
    else:
        show_verdict(found.document())
    if not found.agrees:
        raise typer.Exit(EXIT_DIFFERS)


@app.command()
def scenario(
    files: Annotated[list[Path] | None, typer.Argument(help="YAML files, one scenario each", metavar="FILE...")] = None,
    every: Annotated[bool, typer.Option("--all", help="those of the repository")] = False,
    taps: Annotated[bool, typer.Option(help="nodes send no beacons: lagloss reads their topics and commits")] = False,
    as_json: AsJson = False,
) -> None:
    """Run scenarios on a lagloss of their own; exit 1 if one does not end as it expects."""
    from lagloss_server.ops.up import signals_interrupt
    from pipeline_under_test.scenarios.run import run_all
    from pipeline_under_test.scenarios.scenario import load_scenario, shipped_scenarios
    from pipeline_under_test.tables import show_outcomes

    if every == bool(files):
        fail("expected FILE... or --all", EXIT_USAGE)
    scenarios = [load_scenario(path) for path in files or shipped_scenarios()]
    if taps:
        scenarios = [scenario.tapped() for scenario in scenarios]
    with signals_interrupt():
        outcomes = [outcome.document() for outcome in run_all(scenarios, lambda line: typer.echo(line, err=True))]
    if as_json:
        say(outcomes)
    else:
        show_outcomes(outcomes)
    if not all(outcome["ok"] for outcome in outcomes):
        raise typer.Exit(EXIT_DIFFERS)


@app.command()
def rate(
    node: Annotated[str, typer.Argument(help=", ".join(SCALED))],
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT; by default that of the pipeline here")] = "",
    lag_target: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="for 95 % of the events")
    ] = "2s",  # type: ignore[assignment]  # typer parses it
    seconds: Annotated[float, typer.Option(min=1, help="that a trial measures, after its warm-up")] = 10.0,
    fault: FaultOption = [],  # noqa: B006 (typer copies it)
    as_json: AsJson = False,
) -> None:
    """Find the traffic that one process of a node sustains within a lag target; `run --scale rated` goes by it."""
    from pipeline_under_test.rating.load_test import NodeFailed
    from pipeline_under_test.rating.load_test import rate as rated
    from pipeline_under_test.rating.search import NothingSustained
    from pipeline_under_test.running.ratings import Ratings

    if node not in SCALED:
        fail(f"expected one of {', '.join(SCALED)}, found {node!r}", EXIT_USAGE)
    try:
        settings = ReferenceSettings.load(data_dir)
    except NotThere:
        settings = ReferenceSettings(data_dir=data_dir.absolute())
    kafka = bootstrap or settings.bootstrap or LaglossSettings.load().require_kafka()
    settings = settings.model_copy(update={"bootstrap": kafka})
    try:
        found = rated(settings, node, lag_target, seconds=seconds, faults=fault, say=_say_trial)
    except NodeFailed as problem:
        fail(str(problem), EXIT_UNREACHABLE)
    except NothingSustained as problem:
        fail(str(problem), EXIT_DIFFERS)
    Ratings({**Ratings.load(data_dir).root, node: found}).save(data_dir)
    if as_json:
        say({node: found.model_dump(mode="json")})
    else:
        typer.echo(f"{node}: {found.events_per_s:.0f} events/s within {lag_target:g} s")


def _say_trial(trial: RateTrial) -> None:
    lag = f"{trial.lag_p95_s:.2f} s" if math.isfinite(trial.lag_p95_s) else "too long to measure"
    typer.echo(f"{trial.sent_per_s:.0f} events/s: 95 % of them done within {lag}", err=True)

"""Commands that say what became of the events, and how much a node sustains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Column, Table

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base import format as fmt
from lagloss_server.base.settings import Settings as LaglossSettings
from lagloss_server.cli.options import out
from lagloss_server.model.window import Interval
from pipeline_under_test.harness.commands import EXIT_DIFFERS, AsJson, duration_s, fail, say
from pipeline_under_test.stream.commands.options import DataDir, FaultOption
from pipeline_under_test.stream.rating.search import RateTrial
from pipeline_under_test.stream.settings import NotThere, ReferenceSettings
from pipeline_under_test.stream.topology import SCALED

app = typer.Typer()
MAX_DIFFERENCES: Final = 20
"""Shown; --json has them all."""


@app.command()
def ledger(data_dir: DataDir) -> None:
    """Print the sums of ledger and table as one JSON document."""
    from pipeline_under_test.stream.verdict import followed_truth

    settings = ReferenceSettings.load(data_dir)
    say({"windows": followed_truth(settings)()[settings.pipeline].documents()})


@app.command()
def verdict(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Compare the ledger with lagloss's windows, id by id: exit 0 if they agree, 1 if not, 4 if it is too early."""
    from pipeline_under_test.stream.verdict import verdict_of

    verdict = verdict_of(ReferenceSettings.load(data_dir), LaglossSettings.load())
    if as_json:
        say(verdict.document())
    else:
        show_verdict(verdict.document())
    if not verdict.agrees:
        raise typer.Exit(EXIT_DIFFERS)


@app.command()
def scenario(
    files: Annotated[
        list[Path] | None, typer.Argument(help="YAML files with one scenario each", metavar="FILE...")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="run all scenarios of the repository")] = False,
    taps: Annotated[
        bool, typer.Option(help="use taps: nodes send no beacons, and lagloss reads their topics and commits")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run scenarios, each with its own lagloss; exit 1 if one of them does not end as expected."""
    from lagloss_server.ops.up import signals_interrupt
    from pipeline_under_test.stream.run import run_all
    from pipeline_under_test.stream.scenario import load_scenario, shipped_scenarios

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
    bootstrap: Annotated[
        str, typer.Option(help="Kafka's HOST:PORT (default: that of the pipeline in the data directory)")
    ] = "",
    lag_target: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="target for 95 % of the events")
    ] = "2s",  # type: ignore[assignment]  # typer parses it
    seconds: Annotated[float, typer.Option(min=1, help="measured seconds per trial, after its warm-up")] = 10.0,
    fault: FaultOption = [],  # noqa: B006 (typer copies it)
    as_json: AsJson = False,
) -> None:
    """Find the traffic that one process of a node sustains within a lag target; `run --scale rated` uses it."""
    from pipeline_under_test.stream.processes.scaling import Ratings
    from pipeline_under_test.stream.rating.load_test import NodeFailed
    from pipeline_under_test.stream.rating.load_test import rate as rated
    from pipeline_under_test.stream.rating.search import NothingSustained

    if node not in SCALED:
        fail(f"expected one of {', '.join(SCALED)}, found {node!r}", EXIT_USAGE)
    try:
        settings = ReferenceSettings.load(data_dir)
    except NotThere:
        settings = ReferenceSettings(data_dir=data_dir.absolute())
    kafka = bootstrap or settings.bootstrap or LaglossSettings.load().require_kafka()
    settings = settings.model_copy(update={"bootstrap": kafka})
    try:
        rating = rated(settings, node, lag_target, seconds=seconds, faults=fault, say=_say_trial)
    except NodeFailed as problem:
        fail(str(problem), EXIT_UNREACHABLE)
    except NothingSustained as problem:
        fail(str(problem), EXIT_DIFFERS)
    Ratings({**Ratings.load(data_dir).root, node: rating}).save(data_dir)
    if as_json:
        say({node: rating.model_dump(mode="json")})
    else:
        typer.echo(f"{node}: {rating.events_per_s:.0f} events/s within {lag_target:g} s")


def _say_trial(trial: RateTrial) -> None:
    lag = f"{trial.lag_p95_s:.2f} s" if math.isfinite(trial.lag_p95_s) else "more than can be measured"
    typer.echo(f"{trial.sent_per_s:.0f} events/s: 95 % of them processed within {lag}", err=True)


def show_verdict(document: Mapping[str, Any]) -> None:
    """Print window by window what was injected and measured, and what they disagree about."""
    console = out()
    right = [Column(title, justify="right") for title in ("messages", "delivered", "dead", "filtered", "pending")]
    table = Table("window", *right, "lost: injected", "measured", box=None)
    for row in document["windows"]:
        injected, measured = row["injected"], row["measured"]
        counts = [str(injected[what]) for what in ("messages", "delivered", "dead", "filtered", "pending")]
        lost = fmt.count_interval(measured and Interval(**measured["lost"]))
        table.add_row(row["window_start"], *counts, str(injected["lost"]), lost)
    console.print(table)
    for difference in document["differences"][:MAX_DIFFERENCES]:
        injected, measured, ids = difference["injected"], difference["measured"], ", ".join(difference["ids"])
        where = f"{difference['window_start_s']} {difference['what']}"
        console.print(f"{where}: injected {injected}, measured {measured}{ids and f'; {ids}'}", markup=False)
    if len(document["differences"]) > MAX_DIFFERENCES:
        console.print(f"and {len(document['differences']) - MAX_DIFFERENCES} more; use --json for all")
    waiting = document["waiting"]
    if waiting:
        console.print(f"{len(waiting)} windows are not settled yet: {', '.join(waiting)}")
    compared = len(document["windows"]) - len(waiting)
    console.print(f"{compared} windows compared: {'measured = injected' if document['agree'] else 'they differ'}")


def show_outcomes(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print a row for each scenario, and what was not as expected below."""
    console = out()
    titles = ("messages", "lost: injected", "measured", "duplicates", "false loss", "max lag")
    table = Table("scenario", *(Column(title, justify="right") for title in titles), "result", box=None)
    outcomes = list(documents)
    for outcome in outcomes:
        injected, measured = outcome["injected"], outcome["measured"]
        counts = ("", "", "", "")
        if injected is not None and measured is not None:
            lost = (str(injected["lost"]), fmt.count_interval(Interval(**measured["lost"])))
            counts = (str(injected["messages"]), *lost, str(measured["duplicates"]))
        result = "as expected" if outcome["ok"] else f"{len(outcome['problems'])} problems"
        lag = fmt.duration(outcome["max_lag_ms"])
        table.add_row(outcome["scenario"], *counts, str(outcome["false_losses"]), lag, result)
    console.print(table)
    for outcome in outcomes:
        for problem in outcome["problems"]:
            console.print(f"{outcome['scenario']}: {problem}", markup=False)

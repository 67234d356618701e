"""Commands that run the whole pipeline, or its brokers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base.settings import Settings as LaglossSettings
from pipeline_under_test.commands.answering import fail, say
from pipeline_under_test.commands.options import DataDir, FaultOption, Rate, require_target
from pipeline_under_test.commands.signals import on_end
from pipeline_under_test.events.schema import producers_schema
from pipeline_under_test.faults.injections import LOOK_EVERY_S
from pipeline_under_test.kafka.topics import PARTITIONS
from pipeline_under_test.running.policies import Policy
from pipeline_under_test.settings import ReferenceSettings, Retry
from pipeline_under_test.topology import PIPELINE, TIERS_S

app = typer.Typer()


@app.command()
def run(
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT; by default that of `lagloss up`")] = "",
    brokers: Annotated[int, typer.Option(min=0, help="run this many brokers of its own, instead of --bootstrap")] = 0,
    pipeline: Annotated[str, typer.Option(help="topics and groups begin with it")] = PIPELINE,
    rate: Rate = 100.0,
    minutes: Annotated[float | None, typer.Option(help="of load; without it, until Ctrl-C")] = None,
    settle: Annotated[float, typer.Option(help="seconds that the nodes stay at the end")] = 8.0,
    fault: FaultOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[int, typer.Option(help="of faults and traffic")] = 0,
    exactly_once: Annotated[bool, typer.Option(help="event-norm works in transactions")] = False,
    taps: Annotated[bool, typer.Option(help="nodes send no beacons: lagloss reads their topics and commits")] = False,
    shadow: Annotated[bool, typer.Option(help="a second event-norm beside production, on trial")] = False,
    schema: Annotated[Path | None, typer.Option(help="Avro schema that col-service writes events with")] = None,
    retry: Annotated[Retry, typer.Option(help="what connectors do with what a vendor does not take")] = "global",
    batch: Annotated[int, typer.Option(min=1, help="events in a request to a vendor")] = 100,
    parallel: Annotated[int, typer.Option(min=1, help="requests to a vendor at a time")] = 4,
    tier: Annotated[list[float], typer.Option(help="seconds in a tier of the retrier, once a tier")] = list(TIERS_S),  # noqa: B006
    scale: Annotated[Policy, typer.Option(help="what decides how many processes a node has")] = "none",
    least: Annotated[int, typer.Option(min=1, help="processes of a node")] = 1,
    most: Annotated[
        int, typer.Option(min=1, help="processes of a node; of a consumer at most its partitions")
    ] = PARTITIONS,
) -> None:
    """Start everything, load it, end it; progress as JSON lines. Ctrl-C ends it in order, twice: now."""
    from pipeline_under_test.running.brokers import own_brokers
    from pipeline_under_test.running.runner import NotStarted, Runner
    from pipeline_under_test.running.scaling import NotRated, Scaling

    if bootstrap and brokers:
        fail("expected --bootstrap or --brokers, found both", EXIT_USAGE)
    settings = ReferenceSettings(
        data_dir=data_dir.absolute(),
        bootstrap=bootstrap or ("" if brokers else LaglossSettings.load().require_kafka()),
        pipeline=pipeline,
        seed=seed,
        exactly_once=exactly_once,
        taps=taps,
        shadow=shadow,
        schema_path=schema and schema.absolute(),
        retry=retry,
        batch=batch,
        parallel=parallel,
        tiers_s=tuple(tier),
    )
    for asked in fault:
        require_target(asked, settings)
    producers_schema(settings.schema_path)
    settings.injections().begin_anew(fault)
    with own_brokers(settings, brokers) as (settings, faults):
        try:
            runner = Runner(settings, rate, minutes, settle, Scaling(scale, least, most), faults)
            on_end(runner.stop)
            for progress in runner.steps():
                say(progress)
        except NotRated as problem:
            fail(str(problem), EXIT_USAGE)
        except NotStarted as problem:
            fail(str(problem), EXIT_UNREACHABLE)


@app.command()
def brokers(
    data_dir: DataDir,
    count: Annotated[int, typer.Option(min=1, help="how many; each record is on three of them")] = 3,
) -> None:
    """Run Kafka brokers for a pipeline, and carry out the faults of brokers, until Ctrl-C."""
    from pipeline_under_test.running.brokers import own_brokers

    with own_brokers(ReferenceSettings(data_dir=data_dir.absolute()), count) as (settings, faults):
        ends: list[bool] = []  # an Event has a lock, which the interrupted thread may hold
        on_end(lambda: ends.append(True))
        say({"kafka": settings.bootstrap})
        while not ends:
            time.sleep(LOOK_EVERY_S)
            faults.step()

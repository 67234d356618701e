"""Commands that run the whole pipeline, its brokers, or one process of it, and that break it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base.settings import Settings as LaglossSettings
from pipeline_under_test.harness.commands import ENDING, StopFlag, fail, on_end, say
from pipeline_under_test.harness.faults import LOOK_EVERY_S, Fault, Injection
from pipeline_under_test.harness.policies import Policy
from pipeline_under_test.stream.commands.options import DataDir, FaultOption, Fd, Port, Rate, fault_of, require_target
from pipeline_under_test.stream.events.schema import producers_schema
from pipeline_under_test.stream.kafka.topics import PARTITIONS
from pipeline_under_test.stream.settings import ReferenceSettings, Retry
from pipeline_under_test.stream.topology import ALL_CONSUMERS, COL_SERVICE, PIPELINE, TIERS_S

app = typer.Typer()


@app.command()
def run(
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT (default: that of `lagloss up`)")] = "",
    brokers: Annotated[int, typer.Option(min=0, help="number of brokers to start, instead of using --bootstrap")] = 0,
    database: Annotated[
        str,
        typer.Option(
            help="postgresql://… in which the warehouse stores clicks (default: that of `lagloss up`; with --bootstrap "
            "or --brokers there is no warehouse)"
        ),
    ] = "",
    pipeline: Annotated[str, typer.Option(help="name of the pipeline, and prefix of its topics and groups")] = PIPELINE,
    rate: Rate = 100.0,
    minutes: Annotated[float | None, typer.Option(help="minutes of load (default: until Ctrl-C)")] = None,
    settle: Annotated[float, typer.Option(help="seconds that the nodes keep running after the load")] = 8.0,
    fault: FaultOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[int, typer.Option(help="random seed of faults and traffic")] = 0,
    exactly_once: Annotated[bool, typer.Option(help="run event-norm with transactions")] = False,
    taps: Annotated[
        bool, typer.Option(help="use taps: nodes send no beacons, and lagloss reads their topics and commits")
    ] = False,
    shadow: Annotated[bool, typer.Option(help="run a second event-norm as a trial, next to production")] = False,
    schema: Annotated[Path | None, typer.Option(help="Avro schema for the events that col-service writes")] = None,
    retry: Annotated[Retry, typer.Option(help="how connectors handle events that a vendor rejects")] = "global",
    batch: Annotated[int, typer.Option(min=1, help="events per request to a vendor")] = 100,
    parallel: Annotated[int, typer.Option(min=1, help="parallel requests to a vendor")] = 4,
    tier: Annotated[list[float], typer.Option(help="seconds per retrier tier (repeatable)")] = list(TIERS_S),  # noqa: B006
    scale: Annotated[Policy, typer.Option(help="policy that decides the number of processes per node")] = "none",
    least: Annotated[int, typer.Option(min=1, help="minimum processes per node")] = 1,
    most: Annotated[
        int, typer.Option(min=1, help="maximum processes per node; for a consumer, at most its number of partitions")
    ] = PARTITIONS,
) -> None:
    """Start the pipeline, send load, stop it; prints JSON lines. Ctrl-C stops gracefully, twice: immediately."""
    from pipeline_under_test.harness.brokers import own_brokers
    from pipeline_under_test.stream.processes.runner import NotStarted, Runner
    from pipeline_under_test.stream.processes.scaling import NotRated, Scaling

    if bootstrap and brokers:
        fail("expected either --bootstrap or --brokers, found both", EXIT_USAGE)
    lagloss = None if bootstrap or brokers else LaglossSettings.load()
    if lagloss is not None and not database and lagloss.database_url:
        database = lagloss.require_database()
    settings = ReferenceSettings(
        data_dir=data_dir.absolute(),
        bootstrap=bootstrap if lagloss is None else lagloss.require_kafka(),
        database_url=database,
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
    for fault_ in fault:
        require_target(fault_, settings)
    producers_schema(settings.schema_path)
    settings.injections().begin_anew(fault)
    with own_brokers(settings.data_dir, settings.injections(), brokers) as (own, faults):
        if own:
            settings = settings.model_copy(update={"bootstrap": own})
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
    count: Annotated[int, typer.Option(min=1, help="number of brokers; each record is stored on three of them")] = 3,
) -> None:
    """Run Kafka brokers for a pipeline and inject broker faults, until Ctrl-C."""
    from pipeline_under_test.harness.brokers import own_brokers

    settings = ReferenceSettings(data_dir=data_dir.absolute())
    with own_brokers(settings.data_dir, settings.injections(), count) as (bootstrap, faults):
        stop = StopFlag()
        on_end(stop.set)
        say({"kafka": bootstrap})
        while not stop.wait(LOOK_EVERY_S):
            faults.step()


@app.command(
    epilog="See pipeline_under_test/stream/faults.py or docs/reference-pipeline.md for faults, for example "
    "lose:link:event-norm->event-router:0.02 or crash:conn-ga"
)
def fault(
    data_dir: DataDir,
    fault: Annotated[Fault | None, typer.Argument(parser=fault_of, metavar="FAULT")] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, help="duration in seconds (default: until --end-all)")
    ] = None,
    wait: Annotated[float, typer.Option("--in", min=0, help="seconds until the fault begins")] = 1.0,
    end_all: Annotated[bool, typer.Option("--end-all", help="end all active faults")] = False,
) -> None:
    """Inject a fault into a running pipeline."""
    settings = ReferenceSettings.load(data_dir)
    injections = settings.injections()
    if end_all == (fault is not None):
        fail("expected either a FAULT or --end-all", EXIT_USAGE)
    if fault is None:
        injections.end_all()
        return
    require_target(fault, settings)
    injection = injections.add(fault, seconds, wait)
    say(_asked(injection))


@app.command()
def play(
    data_dir: DataDir,
    scenario: Annotated[str, typer.Argument(metavar="NAME|FILE", help="name of one of scenarios/, or a scenario file")],
) -> None:
    """Inject a scenario's faults into a running pipeline, with their times counted from now."""
    from pipeline_under_test.harness.scenario import find_scenario
    from pipeline_under_test.stream.scenario import BROKER_FAULTS, load_scenario

    settings = ReferenceSettings.load(data_dir)
    scenario_ = load_scenario(find_scenario(scenario))
    for fault in scenario_.faults:
        if fault.fault.kind in BROKER_FAULTS:
            fail(f"expected no broker faults (use `pipeline scenario` for them), found {fault.fault.text}", EXIT_USAGE)
        require_target(fault.fault, settings)
    faults = [_asked(injection) for injection in scenario_.inject(settings.injections())]
    say({"scenario": scenario_.name, "description": scenario_.description, "faults": faults})


def _asked(injection: Injection) -> dict[str, object]:
    return {"fault": injection.fault.text, "from_ms": injection.from_ms, "until_ms": injection.until_ms}


# -- single processes, which `run` starts -----------------------------------------------------------------------


@app.command()
def node(node: Annotated[str, typer.Argument(help=", ".join(ALL_CONSUMERS))], data_dir: DataDir) -> None:
    """Run one process of a consuming node in a running pipeline."""
    from pipeline_under_test.stream.nodes.process import PROCESSES

    if node not in PROCESSES:
        fail(f"expected one of {', '.join(PROCESSES)}, found {node!r}", EXIT_USAGE)
    loop, outlet = PROCESSES[node](ReferenceSettings.load(data_dir))
    on_end(loop.stop)
    loop.run(outlet)


@app.command(name=COL_SERVICE)
def col_service(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the first node, which receives events over HTTP."""
    from pipeline_under_test.stream.nodes import col_service
    from pipeline_under_test.stream.nodes.serving import listening_socket, serve

    serve(col_service.create_app(ReferenceSettings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def receiver(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the simulated vendors."""
    from pipeline_under_test.stream.nodes import receiver
    from pipeline_under_test.stream.nodes.serving import listening_socket, serve

    serve(receiver.create_app(ReferenceSettings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def load(data_dir: DataDir, rate: Rate = 100.0) -> None:
    """Send events to col-service until stopped."""
    from pipeline_under_test.stream.traffic.load import Load, Mix

    async def send() -> None:
        load = Load(ReferenceSettings.load(data_dir), rate, Mix())
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, load.stop)
        await load.run()

    asyncio.run(send())

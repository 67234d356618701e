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
from pipeline_under_test.stream.topology import COL_SERVICE, CONSUMERS, PIPELINE, TIERS_S

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
    from pipeline_under_test.harness.brokers import own_brokers
    from pipeline_under_test.stream.processes.runner import NotStarted, Runner
    from pipeline_under_test.stream.processes.scaling import NotRated, Scaling

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
    count: Annotated[int, typer.Option(min=1, help="how many; each record is on three of them")] = 3,
) -> None:
    """Run Kafka brokers for a pipeline, and carry out the faults of brokers, until Ctrl-C."""
    from pipeline_under_test.harness.brokers import own_brokers

    settings = ReferenceSettings(data_dir=data_dir.absolute())
    with own_brokers(settings.data_dir, settings.injections(), count) as (bootstrap, faults):
        stop = StopFlag()
        on_end(stop.set)
        say({"kafka": bootstrap})
        while not stop.wait(LOOK_EVERY_S):
            faults.step()


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
    injection = injections.add(fault, seconds, wait)
    say(_asked(injection))


@app.command()
def play(
    data_dir: DataDir,
    scenario: Annotated[str, typer.Argument(metavar="NAME|FILE", help="one of scenarios/, or a file like them")],
) -> None:
    """Inject a scenario's faults, at their times from now on, into a running pipeline."""
    from pipeline_under_test.harness.scenario import find_scenario
    from pipeline_under_test.stream.scenario import BROKER_FAULTS, load_scenario

    settings = ReferenceSettings.load(data_dir)
    scenario_ = load_scenario(find_scenario(scenario))
    for fault in scenario_.faults:
        if fault.fault.kind in BROKER_FAULTS:
            fail(f"expected no fault of brokers, which `pipeline scenario` has, found {fault.fault.text}", EXIT_USAGE)
        require_target(fault.fault, settings)
    faults = [_asked(injection) for injection in scenario_.inject(settings.injections())]
    say({"scenario": scenario_.name, "description": scenario_.description, "faults": faults})


def _asked(injection: Injection) -> dict[str, object]:
    return {"fault": injection.fault.text, "from_ms": injection.from_ms, "until_ms": injection.until_ms}


# -- single processes, which `run` starts -----------------------------------------------------------------------


@app.command()
def node(node: Annotated[str, typer.Argument(help=", ".join(CONSUMERS))], data_dir: DataDir) -> None:
    """Run one process of a consuming node of a running pipeline."""
    from pipeline_under_test.stream.nodes.process import PROCESSES

    if node not in PROCESSES:
        fail(f"expected one of {', '.join(PROCESSES)}, found {node!r}", EXIT_USAGE)
    loop, outlet = PROCESSES[node](ReferenceSettings.load(data_dir))
    on_end(loop.stop)
    loop.run(outlet)


@app.command(name=COL_SERVICE)
def col_service(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the first node, over HTTP."""
    from pipeline_under_test.stream.nodes import col_service
    from pipeline_under_test.stream.nodes.serving import listening_socket, serve

    serve(col_service.create_app(ReferenceSettings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def receiver(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the vendors' stand-in."""
    from pipeline_under_test.stream.nodes import receiver
    from pipeline_under_test.stream.nodes.serving import listening_socket, serve

    serve(receiver.create_app(ReferenceSettings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def load(data_dir: DataDir, rate: Rate = 100.0) -> None:
    """Send events to col-service until asked to end."""
    from pipeline_under_test.stream.traffic.load import Load, Mix

    async def send() -> None:
        load = Load(ReferenceSettings.load(data_dir), rate, Mix())
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, load.stop)
        await load.run()

    asyncio.run(send())

"""The command `pipeline`: runs the reference pipeline or a process of it, breaks it, and tells what became of it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from lagloss.errors import BadTime, LaglossError
from lagloss.fields import parse_duration_ms
from lagloss.result import rfc3339
from lagloss.settings import Settings as LaglossSettings
from lagloss.times import parse_time_s
from lagloss.wire import name_fits
from pipeline_under_test.faults import BadFault, Fault, parse
from pipeline_under_test.faults.injections import LOOK_EVERY_S
from pipeline_under_test.kafka import PARTITIONS
from pipeline_under_test.rating.search import Trial
from pipeline_under_test.redrive import Busy, Wanted, redriven
from pipeline_under_test.replay import REPLAY_RATE, replayed
from pipeline_under_test.running.policies import Policy
from pipeline_under_test.running.skewed_clock import NoFaketime, library
from pipeline_under_test.schema import NotReadable, producers_schema
from pipeline_under_test.settings import NotThere, Retry, Settings
from pipeline_under_test.topology import COL_SERVICE, CONSUMERS, PIPELINE, SCALED, TIERS_S

EXIT_OK, EXIT_DIFFERS, EXIT_USAGE, EXIT_UNREACHABLE = 0, 1, 2, 3

app = typer.Typer(name="pipeline", help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


def default_data_dir() -> Path:
    return LaglossSettings().data_dir / "pipeline"


def _fault(text: str) -> Fault:
    try:
        asked = parse(text)
        if asked.kind == "skew":
            library()
    except (BadFault, NoFaketime) as problem:
        raise typer.BadParameter(str(problem)) from problem
    return asked


def _duration(text: str) -> float:
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem


def _time_s(text: str) -> float:
    try:
        return parse_time_s(text)
    except BadTime as problem:
        raise typer.BadParameter(str(problem)) from problem


DataDir = Annotated[
    Path, typer.Option(envvar="PIPELINE_DATA_DIR", default_factory=default_data_dir, help="its settings, ledger, logs")
]
FaultOption = Annotated[list[Fault], typer.Option(parser=_fault, metavar="FAULT", help="from the start; see `fault`")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document on stdout, nothing else there")]
Rate = Annotated[float, typer.Option(min=0, help="events a second")]
Port = Annotated[int, typer.Option(help="to listen on; by default any")]
Fd = Annotated[int | None, typer.Option(help="a listening socket that is inherited, instead of a port")]


@app.command()
def run(
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT; by default that of `lagloss up`")] = "",
    brokers: Annotated[int, typer.Option(min=0, help="run so many brokers of its own, instead of --bootstrap")] = 0,
    pipeline: Annotated[str, typer.Option(help="topics and groups begin with it")] = PIPELINE,
    rate: Rate = 100.0,
    minutes: Annotated[float | None, typer.Option(help="of load; without it, until Ctrl-C")] = None,
    settle: Annotated[float, typer.Option(help="seconds that the nodes stay at the end")] = 8.0,
    fault: FaultOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[int, typer.Option(help="of faults and traffic")] = 0,
    exactly_once: Annotated[bool, typer.Option(help="event-norm works in transactions")] = False,
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
        _fail("expected --bootstrap or --brokers, found both", EXIT_USAGE)
    settings = Settings(
        data_dir=data_dir.absolute(),
        bootstrap=bootstrap or ("" if brokers else LaglossSettings.load().require_kafka()),
        pipeline=pipeline,
        seed=seed,
        exactly_once=exactly_once,
        shadow=shadow,
        schema_path=schema and schema.absolute(),
        retry=retry,
        batch=batch,
        parallel=parallel,
        tiers_s=tuple(tier),
    )
    producers_schema(settings.schema_path)
    settings.injections().begin_anew(fault)
    with own_brokers(settings, brokers) as (settings, faults):
        try:
            runner = Runner(settings, rate, minutes, settle, Scaling(scale, least, most), faults)
            _on_end(runner.stop)
            for progress in runner.steps():
                _say(progress)
        except NotRated as problem:
            _fail(str(problem), EXIT_USAGE)
        except NotStarted as problem:
            _fail(str(problem), EXIT_UNREACHABLE)


@app.command()
def brokers(
    data_dir: DataDir,
    count: Annotated[int, typer.Option(min=1, help="how many; each record is on three of them")] = 3,
) -> None:
    """Run Kafka brokers for a pipeline, and carry out the faults of brokers, until Ctrl-C."""
    from pipeline_under_test.running.brokers import own_brokers

    with own_brokers(Settings(data_dir=data_dir.absolute()), count) as (settings, faults):
        ended = threading.Event()
        _on_end(ended.set)
        _say({"kafka": settings.bootstrap})
        while not ended.wait(LOOK_EVERY_S):
            faults.step()


@app.command()
def rate(
    node: Annotated[str, typer.Argument(help=", ".join(SCALED))],
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT; by default that of the pipeline here")] = "",
    lag_target: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="for 95 % of the events")
    ] = "2s",  # type: ignore[assignment]  # typer parses it
    seconds: Annotated[float, typer.Option(min=1, help="that a trial measures, after its warm-up")] = 10.0,
    fault: FaultOption = [],  # noqa: B006 (typer copies it)
    as_json: AsJson = False,
) -> None:
    """Find the traffic that one process of a node sustains within a lag target; `run --scale rated` goes by it."""
    from pipeline_under_test.rating.load_test import NodeFailed
    from pipeline_under_test.rating.load_test import rate as rated
    from pipeline_under_test.rating.ratings import Ratings
    from pipeline_under_test.rating.search import NothingSustained

    if node not in SCALED:
        _fail(f"expected one of {', '.join(SCALED)}, found {node!r}", EXIT_USAGE)
    try:
        settings = Settings.load(data_dir)
    except NotThere:
        settings = Settings(data_dir=data_dir.absolute())
    kafka = bootstrap or settings.bootstrap or LaglossSettings.load().require_kafka()
    settings = settings.model_copy(update={"bootstrap": kafka})
    try:
        found = rated(settings, node, lag_target, seconds=seconds, faults=fault, say=_say_trial)
    except NodeFailed as problem:
        _fail(str(problem), EXIT_UNREACHABLE)
    except NothingSustained as problem:
        _fail(str(problem), EXIT_DIFFERS)
    Ratings({**Ratings.load(data_dir).root, node: found}).save(data_dir)
    if as_json:
        _say({node: found.model_dump(mode="json")})
    else:
        typer.echo(f"{node}: {found.events_per_s:.0f} events/s within {lag_target:g} s")


def _say_trial(trial: Trial) -> None:
    lag = f"{trial.lag_p95_s:.2f} s" if math.isfinite(trial.lag_p95_s) else "too long to tell"
    typer.echo(f"{trial.sent_per_s:.0f} events/s: 95 % of them done within {lag}", err=True)


@app.command()
def node(node: Annotated[str, typer.Argument(help=", ".join(CONSUMERS))], data_dir: DataDir) -> None:
    """Run one process of a consuming node of a running pipeline."""
    from pipeline_under_test.nodes.process import PROCESSES

    if node not in PROCESSES:
        _fail(f"expected one of {', '.join(PROCESSES)}, found {node!r}", EXIT_USAGE)
    loop, outlet = PROCESSES[node](Settings.load(data_dir))
    _on_end(loop.stop)
    loop.run(outlet)


@app.command(name=COL_SERVICE)
def col_service(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the first node, over HTTP."""
    from pipeline_under_test.nodes import col_service
    from pipeline_under_test.nodes.serving import listening_socket, serve

    serve(col_service.create_app(Settings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def receiver(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the vendors' stand-in."""
    from pipeline_under_test.nodes import receiver
    from pipeline_under_test.nodes.serving import listening_socket, serve

    serve(receiver.create_app(Settings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def load(data_dir: DataDir, rate: Rate = 100.0) -> None:
    """Send events to col-service until told to end."""
    from pipeline_under_test.load import Load, Mix

    async def send() -> None:
        load = Load(Settings.load(data_dir), rate, Mix())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, load.stop)
        await load.run()

    asyncio.run(send())


@app.command()
def history(
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT; by default that of `lagloss up`")] = "",
    pipeline: Annotated[str, typer.Option(help="its name")] = PIPELINE,
    minutes: Annotated[int, typer.Option(min=1, help="of the past")] = 60,
    rate: Rate = 15.0,
    seed: Annotated[int, typer.Option(help="of the traffic")] = 0,
) -> None:
    """Send an hour of the past: beacons only, as the nodes would have sent them."""
    from pipeline_under_test.history import History

    bootstrap = bootstrap or LaglossSettings.load().require_kafka()
    settings = Settings(data_dir=data_dir.absolute(), bootstrap=bootstrap, pipeline=pipeline, seed=seed)
    for sent, beacons in History(settings, rate).send(minutes):
        _say({"minutes": sent, "of": minutes, "beacons": beacons})


@app.command()
def ledger(data_dir: DataDir) -> None:
    """Print what the ledger adds up to, as one JSON document."""
    from pipeline_under_test.ledger import LedgerReader
    from pipeline_under_test.truth import Truth

    truth = Truth()
    truth.add(LedgerReader(data_dir / "ledger").new_entries())
    _say({"windows": truth.documents()})


@app.command()
def verdict(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Compare the ledger with lagloss's windows, id by id: exit 0 if they agree, 1 if not, 4 if it is too early."""
    from pipeline_under_test.tables import show_verdict
    from pipeline_under_test.verdict import verdict_of

    found = verdict_of(Settings.load(data_dir), LaglossSettings.load())
    if as_json:
        _say(found.document())
    else:
        show_verdict(found.document())
    if not found.agrees:
        raise typer.Exit(EXIT_DIFFERS)


@app.command()
def scenario(
    files: Annotated[list[Path] | None, typer.Argument(help="YAML files, one scenario each", metavar="FILE...")] = None,
    every: Annotated[bool, typer.Option("--all", help="those of the repository")] = False,
    as_json: AsJson = False,
) -> None:
    """Run scenarios on a lagloss of their own; exit 1 if one does not end as it expects."""
    from lagloss.up import signals_interrupt
    from pipeline_under_test.scenarios.run import run_all
    from pipeline_under_test.scenarios.scenario import DIRECTORY, load_scenario
    from pipeline_under_test.tables import show_outcomes

    if every == bool(files):
        _fail("expected FILE... or --all", EXIT_USAGE)
    scenarios = [load_scenario(path) for path in files or sorted(DIRECTORY.glob("*.yaml"))]
    with signals_interrupt():
        outcomes = [outcome.document() for outcome in run_all(scenarios, lambda line: typer.echo(line, err=True))]
    if as_json:
        _say(outcomes)
    else:
        show_outcomes(outcomes)
    if not all(outcome["ok"] for outcome in outcomes):
        raise typer.Exit(EXIT_DIFFERS)


@app.command(
    epilog="Faults: see pipeline_under_test/faults/grammar.py or docs/reference-pipeline.md, for instance "
    "lose:link:event-norm->event-router:0.02 or crash:conn-ga"
)
def fault(
    data_dir: DataDir,
    fault: Annotated[Fault | None, typer.Argument(parser=_fault, metavar="FAULT")] = None,
    seconds: Annotated[float | None, typer.Option("--for", min=0, help="seconds; without it, until --end-all")] = None,
    wait: Annotated[float, typer.Option("--in", min=0, help="seconds until it begins")] = 1.0,
    end_all: Annotated[bool, typer.Option("--end-all", help="end all faults that are on")] = False,
) -> None:
    """Inject a fault into a running pipeline."""
    injections = Settings.load(data_dir).injections()
    if end_all == (fault is not None):
        _fail("expected a FAULT or --end-all", EXIT_USAGE)
    if fault is None:
        injections.end_all()
        return
    made = injections.add(fault, seconds, wait)
    _say({"fault": made.fault.text, "from_ms": made.from_ms, "until_ms": made.until_ms})


@app.command()
def replay(
    data_dir: DataDir,
    from_: Annotated[float, typer.Option("--from", parser=_time_s, metavar="T", help="RFC 3339, or relative: -2h")],
    to: Annotated[float | None, typer.Option(parser=_time_s, metavar="T", help="by default until now")] = None,
    name: Annotated[str, typer.Option(help="of the replay, in beacons; by default the time")] = "",
    rate: Annotated[float, typer.Option(min=1, help="events a second, at most")] = REPLAY_RATE,
) -> None:
    """Bring events of the past through the pipeline again; progress as JSON lines."""
    until = time.time() if to is None else to
    if from_ >= until:
        _fail("expected --from to be before --to", EXIT_USAGE)
    if not name_fits(name):
        _fail("expected --name to have 500 bytes at most", EXIT_USAGE)
    for progress in replayed(Settings.load(data_dir), name or _name("replay"), from_, until, rate):
        _say(progress)


@app.command()
def redrive(
    data_dir: DataDir,
    node: Annotated[str | None, typer.Option(help="only what this node set aside")] = None,
    reason: Annotated[str, typer.Option(help="only what was set aside for a reason that holds this")] = "",
    most: Annotated[int | None, typer.Option("--max", min=1, help="so many at most")] = None,
) -> None:
    """Send letters from the dead-letter queue back to their nodes; progress as JSON lines."""
    if node is not None and node not in CONSUMERS:
        _fail(f"expected one of {', '.join(CONSUMERS)}, found {node!r}", EXIT_USAGE)
    try:
        for progress in redriven(Settings.load(data_dir), _name("redrive"), Wanted(node, reason, most)):
            _say(progress)
    except Busy as problem:
        _fail(str(problem), EXIT_USAGE)


def _name(kind: str) -> str:
    return f"{kind}-{rfc3339(int(time.time()))}"


def _say(document: object) -> None:
    print(json.dumps(document, separators=(",", ":")), flush=True)  # noqa: T201 (it is the output)


def _fail(why: str, code: int) -> None:
    typer.echo(why, err=True)
    raise typer.Exit(code)


def _on_end(call: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: call())


@contextmanager
def _said() -> Iterator[None]:
    """Errors that a user can do something about, in a sentence and with their exit code."""
    try:
        yield
    except (NotThere, NotReadable) as problem:
        typer.echo(str(problem), err=True)
        sys.exit(EXIT_USAGE)
    except LaglossError as problem:
        typer.echo(str(problem), err=True)
        sys.exit(problem.exit_code)
    except KafkaException as problem:
        typer.echo(f"Kafka: {problem}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def main() -> None:
    """Runs a command; ends with its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with _said():
        app()

"""The commands of the batch pipeline: a process of it, or an act on it. Settings are variables SCORES_…."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from lagloss.errors import EXIT_USAGE
from lagloss_server.base.settings import Settings as LaglossSettings
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import IMPORTERS
from pipeline_under_test.harness.commands import (
    EXIT_DIFFERS,
    AsJson,
    StopFlag,
    duration_s,
    fail,
    on_end,
    run_app,
    say,
)

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
ImporterName = Annotated[str, typer.Argument(help=", ".join(IMPORTERS))]
ForSeconds = Annotated[
    float | None,
    typer.Option(
        "--for", parser=duration_s, metavar="DURATION", help="how long the fault lasts (default: until it is ended)"
    ),
]


def _stopped_by_signals() -> StopFlag:
    stop = StopFlag()
    on_end(stop.set)
    return stop


def _checked(importer: str) -> str:
    if importer not in IMPORTERS:
        fail(f"expected one of {', '.join(IMPORTERS)}, found {importer!r}", EXIT_USAGE)
    return importer


@app.command()
def prepare() -> None:
    """Create the missing bucket, topic, queues, database and tables, define both pipelines for lagloss,
    and print the result."""
    from pipeline_under_test.batch.aws import Aws
    from pipeline_under_test.batch.stack import create_database
    from pipeline_under_test.batch.stack import prepare as prepared

    settings, lagloss_url = BatchSettings(), LaglossSettings.load().require_database()
    create_database(lagloss_url, urlsplit(settings.database_url).path.lstrip("/"))
    prepared_ = prepared(Aws.connect(settings), settings, lagloss_url)
    say({"bucket": prepared_.bucket, "topic": prepared_.topic, "queues": prepared_.queues, "dead": prepared_.dead})


@app.command()
def airflow(port: Annotated[int, typer.Option(help="port of Airflow's page and API")] = 8080) -> None:
    """Run Airflow with the hourly job until stopped; its user is `admin`, the password is in
    `airflow/password.secret` of the data directory. Its tasks need LAGLOSS_COLLECTOR_URL and
    LAGLOSS_KAFKA_BOOTSTRAP."""
    from pipeline_under_test.batch.stack import airflow_of

    settings, stop = BatchSettings(), _stopped_by_signals()
    address = LaglossSettings.load().bind_address
    with airflow_of(settings, settings.data_dir / "airflow", {}, port, address) as running:
        while not stop.wait(1):
            running.check()


@app.command()
def landing() -> None:
    """Generate events and store them in files until stopped."""
    from pipeline_under_test.batch.landing import run

    run(BatchSettings(), _stopped_by_signals())


@app.command()
def importer(name: ImporterName) -> None:
    """Run one process of an importer until stopped."""
    from pipeline_under_test.batch.importer import run

    run(BatchSettings(), _checked(name), _stopped_by_signals())


@app.command()
def fault(text: Annotated[str, typer.Argument(metavar="FAULT")], for_s: ForSeconds = None) -> None:
    """Inject a fault; see `pipeline_under_test.batch.faults` for the syntax."""
    from pipeline_under_test.batch.faults import injections, parse
    from pipeline_under_test.harness.faults import BadFault

    try:
        fault_ = parse(text)
    except BadFault as problem:
        fail(str(problem), EXIT_USAGE)
    injection = injections(BatchSettings()).add(fault_, for_s)
    say({"fault": fault_.text, "from_ms": injection.from_ms, "until_ms": injection.until_ms})


@app.command(name="end-faults")
def end_faults() -> None:
    """End all faults."""
    from pipeline_under_test.batch.faults import injections

    injections(BatchSettings()).end_all()


@app.command()
def redrive(name: ImporterName) -> None:
    """Move an importer's dead letters back into its queue."""
    from pipeline_under_test.batch.aws import Aws, Infrastructure
    from pipeline_under_test.batch.operator import redrive as moved

    importer, settings = _checked(name), BatchSettings()
    aws = Aws.connect(settings)
    with settings.ledger_of("operator") as ledger:
        moved(aws, Infrastructure.find(aws, settings), importer, ledger)


@app.command()
def verdict() -> None:
    """Compare the ledger with lagloss's windows, for records and files: exit 0 if they agree, 1 if not."""
    from pipeline_under_test.batch.aws import Aws, Infrastructure
    from pipeline_under_test.batch.operator import bury
    from pipeline_under_test.batch.verdict import verdicts_of

    settings = BatchSettings()
    aws = Aws.connect(settings)
    with settings.ledger_of("operator") as ledger:
        bury(aws, Infrastructure.find(aws, settings), ledger)
    verdicts = verdicts_of(settings, LaglossSettings.load())
    say([result.document() for result in verdicts])
    if not all(result.agrees for result in verdicts):
        raise typer.Exit(EXIT_DIFFERS)


@app.command()
def demo(
    minutes: Annotated[float | None, typer.Option(min=1, help="minutes of load (default: 6)")] = None,
    as_json: AsJson = False,
) -> None:
    """Run everything on this machine with some faults: exit 0 if measured = injected, 1 if not."""
    from pipeline_under_test.batch.demo import run

    raise typer.Exit(run(minutes, as_json=as_json))


@app.command()
def scenario(
    files: Annotated[
        list[Path] | None, typer.Argument(help="YAML files with one scenario each", metavar="FILE...")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="run all scenarios of the repository")] = False,
) -> None:
    """Run scenarios, each on its own servers; exit 1 if one of them does not end as expected."""
    from lagloss_server.ops.up import signals_interrupt
    from pipeline_under_test.batch.outcome import run_batch_scenarios
    from pipeline_under_test.batch.scenario import batch_scenarios, load_batch_scenario

    if every == bool(files):
        fail("expected FILE... or --all", EXIT_USAGE)
    scenarios = [load_batch_scenario(path) for path in files or batch_scenarios()]
    with signals_interrupt():
        outcomes = [
            outcome.document() for outcome in run_batch_scenarios(scenarios, lambda line: typer.echo(line, err=True))
        ]
    say(outcomes)
    if not all(outcome["ok"] for outcome in outcomes):
        raise typer.Exit(EXIT_DIFFERS)


if __name__ == "__main__":
    run_app(app)

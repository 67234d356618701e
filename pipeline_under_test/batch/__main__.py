"""`python -m pipeline_under_test.batch COMMAND`: a process or an act of the batch pipeline. Settings: SCORES_…."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from lagloss.errors import EXIT_USAGE
from lagloss_server.settings import Settings as LaglossSettings
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.stop_flag import StopFlag
from pipeline_under_test.batch.topology import IMPORTERS
from pipeline_under_test.commands.answering import EXIT_DIFFERS, fail, say
from pipeline_under_test.commands.options import duration_s
from pipeline_under_test.commands.signals import on_end

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
ImporterName = Annotated[str, typer.Argument(help=", ".join(IMPORTERS))]
ForSeconds = Annotated[
    float | None, typer.Option("--for", parser=duration_s, metavar="DURATION", help="by default for good")
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
    """Create bucket, topic, queues and tables, as far as they are missing; print what there is."""
    from pipeline_under_test.batch.aws import Aws, create
    from pipeline_under_test.batch.schema import create_tables, open_database

    settings = BatchSettings()
    made = create(Aws.connect(settings), settings)
    create_tables(open_database(settings.database_url))
    say({"bucket": made.bucket, "topic": made.topic, "queues": made.queues, "dead": made.dead})


@app.command()
def landing() -> None:
    """Make events and store them in files until asked to end."""
    from pipeline_under_test.batch.landing import run

    run(BatchSettings(), _stopped_by_signals())


@app.command()
def importer(name: ImporterName) -> None:
    """Run one process of an importer until asked to end."""
    from pipeline_under_test.batch.importer import run

    run(BatchSettings(), _checked(name), _stopped_by_signals())


@app.command()
def fault(text: Annotated[str, typer.Argument(metavar="FAULT")], for_s: ForSeconds = None) -> None:
    """Inject a fault; see `pipeline_under_test.batch.faults` for how it is written."""
    from pipeline_under_test.batch.faults import injections, parse
    from pipeline_under_test.faults import BadFault

    try:
        asked = parse(text)
    except BadFault as problem:
        fail(str(problem), EXIT_USAGE)
    made = injections(BatchSettings()).add(asked, for_s)
    say({"fault": asked.text, "from_ms": made.from_ms, "until_ms": made.until_ms})


@app.command(name="end-faults")
def end_faults() -> None:
    """End all faults."""
    from pipeline_under_test.batch.faults import injections

    injections(BatchSettings()).end_all()


@app.command()
def redrive(name: ImporterName) -> None:
    """Move an importer's dead letters back into its queue."""
    from pipeline_under_test.batch.aws import Aws, Infrastructure
    from pipeline_under_test.batch.operations import redrive as moved

    importer, settings = _checked(name), BatchSettings()
    aws = Aws.connect(settings)
    with settings.ledger_of("operator") as ledger:
        moved(aws, Infrastructure.find(aws, settings), importer, ledger)


@app.command()
def verdict() -> None:
    """Compare the ledger with lagloss's windows, for records and for files: exit 0 if they agree, 1 if not."""
    from pipeline_under_test.batch.aws import Aws, Infrastructure
    from pipeline_under_test.batch.operations import bury
    from pipeline_under_test.batch.verdict import verdicts_of

    settings = BatchSettings()
    aws = Aws.connect(settings)
    with settings.ledger_of("operator") as ledger:
        bury(aws, Infrastructure.find(aws, settings), ledger)
    found = verdicts_of(settings, LaglossSettings.load())
    say([each.document() for each in found])
    if not all(each.agrees for each in found):
        raise typer.Exit(EXIT_DIFFERS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app()

"""The command `pipeline`: runs the reference pipeline or a process of it, breaks it, and compares it with lagloss."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from confluent_kafka import KafkaException

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE, LaglossError
from pipeline_under_test.batch import cli as batch
from pipeline_under_test.stream.commands import judging, past, processes, running
from pipeline_under_test.stream.events.schema import NotReadable
from pipeline_under_test.stream.settings import NotThere

app = typer.Typer(name="pipeline", help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
for group in (running, processes, past, judging):
    app.add_typer(group.app)
app.add_typer(batch.app, name="batch")


@contextmanager
def _said() -> Iterator[None]:
    """Print errors that a user can do something about as one sentence, and exit with their code."""
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
    """Run a command, and exit with its code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with _said():
        app()

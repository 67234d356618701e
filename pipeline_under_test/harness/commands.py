"""What the commands of both pipelines share: how they answer, and how they end."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, NoReturn

import psycopg
import typer
from confluent_kafka import KafkaException

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE, LaglossError
from lagloss_server.base.fields import parse_duration_ms

EXIT_DIFFERS: Final = 1
"""The result differs from the expectation; the other codes are those of `lagloss`."""


ENDING: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals that end a command: as by a supervisor, or as by Ctrl-C."""
LOOK_EVERY_S: Final = 0.05
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document on stdout and nothing else")]


def say(document: object) -> None:
    """Print a document as one line, at once."""
    print(json.dumps(document, separators=(",", ":")), flush=True)  # noqa: T201 (it is the output)


@contextmanager
def reported(*problems: type[Exception]) -> Iterator[None]:
    """Print errors that a user can do something about as one sentence, and exit with their code: these with that of
    wrong usage."""
    try:
        yield
    except problems as problem:
        typer.echo(str(problem), err=True)
        sys.exit(EXIT_USAGE)
    except LaglossError as problem:
        typer.echo(str(problem), err=True)
        sys.exit(problem.exit_code)
    except KafkaException as problem:
        typer.echo(f"Kafka: {problem}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    except psycopg.Error as problem:
        typer.echo(f"PostgreSQL: {problem}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def run_app(app: typer.Typer, *problems: type[Exception]) -> None:
    """Run a command, and exit with its code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with reported(*problems):
        app()


def fail(why: str, code: int) -> NoReturn:
    """End the command."""
    typer.echo(why, err=True)
    raise typer.Exit(code)


def on_end(call: Callable[[], None]) -> None:
    """Call `call` each time that this process is asked to end."""
    for number in ENDING:
        signal.signal(number, lambda *_: call())


class StopFlag:
    """A flag that a signal handler may set: `threading.Event` takes a lock, which the interrupted thread may hold."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Return True as soon as it is set, False if it is not after so many seconds."""
        deadline = time.monotonic() + seconds
        while not self._is_set and (remaining_s := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining_s, LOOK_EVERY_S))
        return self._is_set


def duration_s(text: str) -> float:
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem

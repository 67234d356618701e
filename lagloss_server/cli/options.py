"""Options, tables on stdout and database access that several commands share."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from lagloss.errors import UsageError
from lagloss_server.base.invalid import explain
from lagloss_server.base.settings import Settings

if TYPE_CHECKING:
    from lagloss_server.store.store import Store
    from lagloss_server.store.unreadable import UnreadableRow

UNBOUNDED_COLUMNS = 100_000
DataDir = Annotated[Path | None, typer.Option(help="directory of data, logs and endpoints (LAGLOSS_DATA_DIR)")]
PipelineName = Annotated[str, typer.Argument(help="name of the pipeline", metavar="PIPELINE")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document on stdout and nothing else")]


def out() -> Console:
    """Return a console for tables on stdout; into a pipe, each row is one line, however wide."""
    console = Console()
    return console if console.is_terminal else Console(width=UNBOUNDED_COLUMNS)


def note_set_aside(rows: Iterable[UnreadableRow]) -> None:
    """Name on stderr the rows that this version cannot read, which what is printed lacks."""
    for row in rows:
        typer.echo(f"Skipped an unreadable row: {row}", err=True)


def demand(kind: Any, option: str, text: str) -> None:
    """Check the text of an option by the type of a definition's field.

    Raises:
        UsageError: what was expected, and what was found.
    """
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise UsageError(detail=f"{option}: {next(explain(error, text)).problem}") from error


@contextmanager
def open_store(settings: Settings) -> Iterator[Store]:
    """Open the database, check that it answers, and close it at the end. What is done in between is done by the user
    of this machine who typed the command."""
    from lagloss_server.store.audit import Actor, acting_as
    from lagloss_server.store.store import Store

    store = Store(settings.require_database())
    try:
        store.check()
        with acting_as(Actor(_user(), "command", socket.gethostname())):
            yield store
    finally:
        store.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"

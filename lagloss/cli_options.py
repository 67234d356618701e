"""What several commands share: options, tables on stdout, and the database for as long as a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lagloss.settings import Settings

if TYPE_CHECKING:
    from lagloss.store import Store

UNBOUNDED_COLUMNS = 100_000
DataDir = Annotated[Path | None, typer.Option(help="where data, logs and endpoints are kept (LAGLOSS_DATA_DIR)")]
PipelineName = Annotated[str, typer.Argument(help="name of the pipeline", metavar="PIPELINE")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document on stdout, nothing else there")]


def out() -> Console:
    """For tables on stdout: in a pipe, a row is a line of its own, however wide."""
    console = Console()
    return console if console.is_terminal else Console(width=UNBOUNDED_COLUMNS)


@contextmanager
def open_store(settings: Settings) -> Iterator[Store]:
    """The database, found to answer, for as long as the command runs."""
    from lagloss.store import Store

    store = Store(settings.require_database())
    try:
        store.check()
        yield store
    finally:
        store.close()

"""How a command answers: JSON on stdout, or a sentence on stderr with its exit code."""

from __future__ import annotations

import json
from typing import Final, NoReturn

import typer

EXIT_DIFFERS: Final = 1
"""The result differs from the expectation; the other codes are those of `lagloss`."""


def say(document: object) -> None:
    """Print a document as one line, at once."""
    print(json.dumps(document, separators=(",", ":")), flush=True)  # noqa: T201 (it is the output)


def fail(why: str, code: int) -> NoReturn:
    """End the command."""
    typer.echo(why, err=True)
    raise typer.Exit(code)

"""The command `pipeline`: runs the reference pipeline or a process of it, breaks it, and compares it with lagloss."""

from __future__ import annotations

import typer

from pipeline_under_test.batch.__main__ import app as batch
from pipeline_under_test.harness.commands import run_app
from pipeline_under_test.stream.commands import judging, past, running
from pipeline_under_test.stream.events.schema import NotReadable
from pipeline_under_test.stream.settings import NotThere

app = typer.Typer(name="pipeline", help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
for group in (running, past, judging):
    app.add_typer(group.app)
app.add_typer(batch, name="batch")


def main() -> None:
    """Run a command, and exit with its code."""
    run_app(app, NotThere, NotReadable)


if __name__ == "__main__":
    main()

"""`lagloss tap`: the commands for taps, which `lagloss` runs as `python -m taps.cli.main`."""

from __future__ import annotations

import typer

from lagloss_server.cli.main import run_app
from taps.cli.discover import discover
from taps.cli.trial import try_topic

app = typer.Typer(
    name="tap",
    help="Inspect topics before tapping them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("try")(try_topic)
app.command()(discover)


def main() -> None:
    run_app(app, "lagloss tap")


if __name__ == "__main__":
    main()

"""`lagloss alerts`: the commands for incidents and rules, which `lagloss` runs as `python -m alerting.cli.main`."""

from __future__ import annotations

import typer

from alerting.backtest.backtest import backtest
from alerting.cli import incidents as incident_cli
from alerting.cli.check import check
from lagloss_server.cli.main import run_app

app = typer.Typer(
    name="alerts",
    help="Manage incidents, silences, receivers and alerting rules.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(incident_cli.app)
app.command()(backtest)
app.command()(check)


def main() -> None:
    run_app(app, "lagloss alerts")


if __name__ == "__main__":
    main()

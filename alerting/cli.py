"""`lagloss alerts`: the commands about rules and incidents. `python -m alerting.cli` is what `lagloss` becomes."""

from __future__ import annotations

import typer

from alerting import incident_cli
from alerting.backtest import backtest
from alerting.checking import check
from lagloss.cli import run_app

app = typer.Typer(
    name="alerts",
    help="Rules and incidents: what is wrong, who takes it, who is told.",
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

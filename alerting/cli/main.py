"""`lagloss alerts`: the commands for incidents and rules, which `lagloss` runs as `python -m alerting.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from alerting.backtest.backtest import backtest
from alerting.cli import incidents as incident_cli
from alerting.config import RouteSpec, load_alerting
from alerting.delivery.transports.kinds import build
from lagloss_server.base.settings import Settings
from lagloss_server.cli.main import run_app
from lagloss_server.cli.options import DataDir, out

app = typer.Typer(
    name="alerts",
    help="Manage incidents, silences, receivers and alerting rules.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(incident_cli.app)
app.command()(backtest)


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="the file; by default LAGLOSS_ALERTING_FILE", metavar="FILE")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Check an alerting file and its secrets, and show its receivers and routes; nothing is sent."""
    config = load_alerting(Settings.load(alerting_file=file, data_dir=data_dir))
    for receiver in config.receivers:
        build(receiver.kind, receiver.config).close()
    receivers = Table("receiver", "kind", box=None)
    for receiver in config.receivers:
        receivers.add_row(receiver.name, receiver.kind + (" (fallback)" if receiver.name == config.fallback else ""))
    routes = Table("route", "incidents", "to", "then", box=None)
    for number, route in enumerate(config.routes, 1):
        matchers = ", ".join(map(str, route.match)) or "all"
        routes.add_row(str(number), matchers, ", ".join(route.to) or "no receiver", _then(route))
    console = out()
    console.print(receivers if config.receivers else "no receivers: incidents are recorded, no notifications are sent")
    if config.routes:
        console.print(routes)
    for window in config.maintenance:
        console.print(f"maintenance {window.name}: {', '.join(map(str, window.match))}; {window.rrule}", markup=False)


def _then(route: RouteSpec) -> str:
    steps = [f"after {step.after / 60_000:g} min {', '.join(step.to)}" for step in route.escalate]
    return "; ".join([*steps, *(["continue with the next route"] if route.continue_ else [])])


def main() -> None:
    run_app(app, "lagloss alerts")


if __name__ == "__main__":
    main()

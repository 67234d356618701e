"""Commands of `lagloss access`, which `lagloss` runs as `python -m dashboard.access.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dashboard.access.policy import TeamSpec, load_access
from lagloss.errors import UsageError
from lagloss_server.base.settings import Settings
from lagloss_server.cli.main import run_app
from lagloss_server.cli.options import DataDir, open_store, out
from lagloss_server.incidents.actions import pipeline_labels
from lagloss_server.model.matchers import reach

app = typer.Typer(
    name="access",
    help="Check which pipelines teams can see on the dashboard.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class NoAccessFile(UsageError):
    """No access file is configured. Name one in LAGLOSS_ACCESS_FILE; start from examples/access.yaml."""


@app.callback()
def commands() -> None:
    """Check which pipelines teams can see on the dashboard."""


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="the file; by default LAGLOSS_ACCESS_FILE", metavar="FILE")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Check an access file, and show which pipelines each team sees now, and its members."""
    settings = Settings.load(access_file=file, data_dir=data_dir)
    access = load_access(settings)
    if access is None:
        raise NoAccessFile
    with open_store(settings) as store, store.engine.connect() as connection:
        labels, names = pipeline_labels(connection), store.names()
    own = {name: labels[name] for name in names if name in labels}
    table = Table("team", "role", "message ids", "members", "matchers", "pipelines", box=None)
    for team in access.teams:
        pipelines = ", ".join(sorted(reach(team.pipelines, own))) or "none"
        matchers = ", ".join(map(str, team.pipelines))
        table.add_row(
            team.name, team.role, "shown" if team.ids == "show" else "hidden", _members(team), matchers, pipelines
        )
    out().print(table)


def _members(team: TeamSpec) -> str:
    return ", ".join([*(f"group {group}" for group in team.groups), *(f"user {user}" for user in team.users)])


def main() -> None:
    run_app(app, "lagloss access")


if __name__ == "__main__":
    main()

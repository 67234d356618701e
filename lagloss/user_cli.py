"""`lagloss users`: adds, changes and removes the people who may log in to the dashboard by a password."""

from __future__ import annotations

import json
import sys
from getpass import getpass
from typing import Annotated

import typer

from lagloss.cli_options import AsJson, DataDir, open_store, out
from lagloss.errors import UsageError
from lagloss.roles import Role
from lagloss.settings import Settings

app = typer.Typer(name="users", help="Add, change and remove people who log in to the dashboard.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="what the person logs in as", metavar="NAME")]
RoleOption = Annotated[Role, typer.Option(help="viewer: may look; operator: may also act")]


@app.command()
def add(name: Name, role: RoleOption = "viewer", data_dir: DataDir = None) -> None:
    """Add somebody. The password is asked for twice on a terminal, else it is one line from stdin."""
    from lagloss import users

    password = _new_password()
    with open_store(Settings.load(data_dir=data_dir)) as store:
        user = users.add(store, name, role, password)
    typer.echo(f"{user.name}: {role}")


@app.command()
def passwd(name: Name, data_dir: DataDir = None) -> None:
    """Give somebody another password, read as by `add`; they have to log in again."""
    from lagloss import users

    password = _new_password()
    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_password(store, name, password)
    typer.echo(f"{name}: password changed, sessions ended")


@app.command("role")
def role_(
    name: Name,
    role: Annotated[Role, typer.Argument(help="viewer: may look; operator: may also act", metavar="ROLE")],
    data_dir: DataDir = None,
) -> None:
    """Make somebody a viewer or an operator, from their next request on."""
    from lagloss import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_role(store, name, role)
    typer.echo(f"{name}: {role}")


@app.command()
def remove(name: Name, data_dir: DataDir = None) -> None:
    """Remove somebody; their sessions end within seconds."""
    from lagloss import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.remove(store, name)
    typer.echo(f"{name}: removed")


@app.command()
def logout(name: Name, data_dir: DataDir = None) -> None:
    """End somebody's sessions within seconds, those by a provider too. They may log in again."""
    from lagloss import users

    with open_store(Settings.load(data_dir=data_dir)) as store, store.engine.begin() as connection:
        count = users.end_sessions(connection, name)
    typer.echo(f"{name}: {count} sessions ended")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show who may log in by a password, by name."""
    from rich.table import Table

    from lagloss import users
    from lagloss.result import rfc3339

    with open_store(Settings.load(data_dir=data_dir)) as store, store.engine.connect() as connection:
        found = users.read(connection)
    documents = [
        {"name": user.name, "role": user.role, "created_at": rfc3339(user.created_at.timestamp())} for user in found
    ]
    if as_json:
        typer.echo(json.dumps(documents))
        return
    table = Table("name", "role", "created_at", box=None)
    for document in documents:
        table.add_row(*document.values())
    out().print(table)


def _new_password() -> str:
    """From the terminal, unseen, or from a pipe. Never an argument: others on this machine see those."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass("Password: ")
    if getpass("The same again: ") != password:
        raise UsageError(detail="The two passwords differ. Nothing was changed; try again.")
    return password

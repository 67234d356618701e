"""`lagloss users`: add, change and remove the users who log in to the dashboard with a password."""

from __future__ import annotations

import json
import sys
from getpass import getpass
from typing import Annotated

import typer

from lagloss.errors import UsageError
from lagloss_server.base.settings import Settings
from lagloss_server.cli.options import AsJson, DataDir, note_set_aside, open_store, out
from lagloss_server.model.roles import Role

app = typer.Typer(name="users", help="Add, change and remove dashboard users.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="login name", metavar="NAME")]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", help="group of the user, which teams refer to (repeatable)")
]
RoleOption = Annotated[Role, typer.Option(help="viewer: read-only; operator: can also act")]


@app.command()
def add(name: Name, role: RoleOption = "viewer", group: GroupOption = None, data_dir: DataDir = None) -> None:
    """Add a user. The password is prompted for on a terminal, otherwise read as one line from stdin."""
    from lagloss_server.store import users

    password = _new_password()
    with open_store(Settings.load(data_dir=data_dir)) as store:
        user = users.add(store, name, role, password, group or ())
    typer.echo(f"{user.name}: {role}")


@app.command()
def passwd(name: Name, data_dir: DataDir = None) -> None:
    """Change a user's password (read like in `add`) and end the user's sessions."""
    from lagloss_server.store import users

    password = _new_password()
    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_password(store, name, password)
    typer.echo(f"{name}: password changed, sessions ended")


@app.command("role")
def role_(
    name: Name,
    role: Annotated[Role, typer.Argument(help="viewer: read-only; operator: can also act", metavar="ROLE")],
    data_dir: DataDir = None,
) -> None:
    """Change a user's role, starting with the next request."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_role(store, name, role)
    typer.echo(f"{name}: {role}")


@app.command()
def groups(
    name: Name,
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="all groups of the user; none: remove the user from all groups", metavar="GROUP"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Change a user's groups, which teams refer to, starting with the next request."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_groups(store, name, groups or ())
    typer.echo(f"{name}: {', '.join(groups or ()) or 'no groups'}")


@app.command()
def remove(name: Name, data_dir: DataDir = None) -> None:
    """Remove a user; the user's sessions end after a few seconds."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.remove(store, name)
    typer.echo(f"{name}: removed")


@app.command()
def logout(name: Name, data_dir: DataDir = None) -> None:
    """End a user's sessions, including those of a provider, after a few seconds. The user can log in again."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        count = users.log_out(store, name)
    typer.echo(f"{name}: ended {count} sessions")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the users who log in with a password, sorted by name."""
    from rich.table import Table

    from lagloss_server.model.window import rfc3339
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store, store.engine.connect() as connection:
        listed = users.read(connection)
    note_set_aside(listed.unreadable)
    documents = [
        {
            "name": user.name,
            "role": user.role,
            "groups": list(user.groups),
            "created_at": rfc3339(user.created_at.timestamp()),
        }
        for user in listed
    ]
    if as_json:
        typer.echo(json.dumps(documents))
        return
    table = Table("name", "role", "groups", "created_at", box=None)
    for document in documents:
        table.add_row(*(value if isinstance(value, str) else ", ".join(value) for value in document.values()))
    out().print(table)


def _new_password() -> str:
    """Read a password from the terminal, unseen, or from a pipe; never from an argument, which other users can see."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass("Password: ")
    if getpass("Repeat the password: ") != password:
        raise UsageError(detail="The passwords do not match. Nothing was changed; try again.")
    return password

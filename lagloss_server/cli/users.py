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

app = typer.Typer(name="users", help="Add, change and remove users of the dashboard.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="login name", metavar="NAME")]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", help="group of the user, by which teams know them; may be repeated")
]
RoleOption = Annotated[Role, typer.Option(help="viewer: read-only; operator: can also act")]


@app.command()
def add(name: Name, role: RoleOption = "viewer", group: GroupOption = None, data_dir: DataDir = None) -> None:
    """Add a user, with a password typed twice on a terminal, or else read as one line from stdin."""
    from lagloss_server.store import users

    password = _new_password()
    with open_store(Settings.load(data_dir=data_dir)) as store:
        user = users.add(store, name, role, password, group or ())
    typer.echo(f"{user.name}: {role}")


@app.command()
def passwd(name: Name, data_dir: DataDir = None) -> None:
    """Change a user's password, read as by `add`, and end their sessions."""
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
    """Change a user's role, effective with their next request."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_role(store, name, role)
    typer.echo(f"{name}: {role}")


@app.command()
def groups(
    name: Name,
    groups: Annotated[
        list[str] | None, typer.Argument(help="all their groups; none: no group", metavar="GROUP")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Change a user's groups, by which teams know them, effective with their next request."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.set_groups(store, name, groups or ())
    typer.echo(f"{name}: {', '.join(groups or ()) or 'no groups'}")


@app.command()
def remove(name: Name, data_dir: DataDir = None) -> None:
    """Remove a user; their sessions end within seconds."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        users.remove(store, name)
    typer.echo(f"{name}: removed")


@app.command()
def logout(name: Name, data_dir: DataDir = None) -> None:
    """End a user's sessions within seconds, those from a provider too; they can log in again."""
    from lagloss_server.store import users

    with open_store(Settings.load(data_dir=data_dir)) as store:
        count = users.log_out(store, name)
    typer.echo(f"{name}: {count} sessions ended")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the users who log in with a password, by name."""
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
        raise UsageError(detail="The two passwords differ. Nothing was changed; try again.")
    return password

"""`lagloss token`: create, list and revoke the tokens by which the collector admits clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from lagloss_server.base.settings import Settings
from lagloss_server.cli.options import AsJson, DataDir, PipelineName, note_set_aside, open_store, out
from lagloss_server.model.window import rfc3339

if TYPE_CHECKING:
    from lagloss_server.store.tokens import Token

app = typer.Typer(
    name="token", help="Create, list and revoke tokens for clients of the collector.", no_args_is_help=True
)


@app.command()
def create(
    pipeline: PipelineName,
    scope: Annotated[
        Literal["intake", "admin"], typer.Option(help="intake: can send beacons; admin: can also change the definition")
    ] = "intake",
    rate: Annotated[int | None, typer.Option(min=1, help="maximum beacons per second (default: no limit)")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Create a token for a pipeline and print it. It cannot be shown again.

    Once a pipeline has a token, the collector rejects clients without one.
    """
    from lagloss_server.store import tokens

    with open_store(Settings.load(data_dir=data_dir)) as store:
        token, text = tokens.create(store, pipeline, scope, rate)
    if as_json:
        typer.echo(json.dumps(_document(token) | {"token": text}))
    else:
        typer.echo(text)
        typer.echo(
            f"Token {token.id} of {pipeline}, scope {scope}. Save it now: it is not stored and cannot be shown again.",
            err=True,
        )


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all tokens, oldest first, without their secrets."""
    from lagloss_server.store import tokens

    with open_store(Settings.load(data_dir=data_dir)) as store, store.engine.connect() as connection:
        listed = tokens.read(connection)
    documents = [_document(token) for token in listed]
    note_set_aside(listed.unreadable)
    if as_json:
        typer.echo(json.dumps(documents))
        return
    columns = ("id", "pipeline", "scope", "rate", "created_at", "revoked_at")
    table = Table(*columns, box=None)
    for document in documents:
        table.add_row(*(str(document[column] or "") for column in columns))
    out().print(table)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="id of the token", metavar="ID")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a token; collectors reject it after a few seconds."""
    from lagloss_server.store import tokens

    with open_store(Settings.load(data_dir=data_dir)) as store:
        tokens.revoke(store, token_id)
    typer.echo(f"{token_id}: revoked")


def _document(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "pipeline": token.pipeline,
        "scope": token.scope,
        "rate": token.rate,
        "created_at": rfc3339(token.created_at_ms / 1000),
        "revoked_at": rfc3339(token.revoked_at_ms / 1000) if token.revoked_at_ms else None,
    }

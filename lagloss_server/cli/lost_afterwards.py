"""`lagloss lost-afterwards`: name the messages whose rows a tapped table has no more, or accept that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Annotated

import typer

from lagloss.errors import UsageError
from lagloss_server.base import format as fmt
from lagloss_server.base.settings import Settings
from lagloss_server.base.times import parse_time_s
from lagloss_server.cli.options import AsJson, DataDir, PipelineName, open_store, out

if TYPE_CHECKING:
    from rich.table import Table

    from lagloss_server.incidents.lost_afterwards import LostAfterwardsMessage


def lost_afterwards(
    pipeline: PipelineName,
    from_: Annotated[str, typer.Option("--from", help="RFC 3339 or relative (-2h)")] = "-7d",
    to: Annotated[str, typer.Option("--to", help="RFC 3339, relative (-5m) or now")] = "now",
    limit: Annotated[int, typer.Option(min=1, help="maximum number of messages to list")] = 1_000,
    accept: Annotated[
        str | None,
        typer.Option(help="accept them as deleted on purpose: they open no incident any more", metavar="REASON"),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the messages with event times in [from, to) whose rows were in a tapped table and are not any more."""
    from lagloss.wire.format import WINDOW_S
    from lagloss_server.incidents.lost_afterwards import by_node, lost_document
    from lagloss_server.incidents.lost_afterwards_store import accept as accept_losses
    from lagloss_server.incidents.lost_afterwards_store import read_lost_messages, read_lost_minutes
    from lagloss_server.store.audit import acting, note_look

    from_s, to_s = int(parse_time_s(from_)) // WINDOW_S * WINDOW_S, ceil(parse_time_s(to))
    if accept is not None and not accept.strip():
        raise UsageError(detail="--accept: expected the reason, found none")
    with open_store(Settings.load(data_dir=data_dir)) as store:
        store.demand(pipeline)
        if accept is not None:
            accepted = accept_losses(store, pipeline, from_s, to_s, by=acting().name, why=accept)
            typer.echo(f"Accepted {fmt.counted(accepted, 'message')} of {pipeline} as deleted on purpose.", err=True)
        note_look(store.engine, "ids.list", pipeline, "lost afterwards")
        with store.engine.connect() as connection:
            minutes = read_lost_minutes(connection, pipeline, from_s, to_s)
            messages = read_lost_messages(connection, pipeline, from_s, to_s, limit)
    document = lost_document(pipeline, minutes, messages)
    if as_json:
        typer.echo(json.dumps(document))
        return
    if messages:
        out().print(_table(messages))
    for node in by_node(minutes):
        typer.echo(node.words)
    accepted_words = f", {fmt.count(document['accepted'])} of them accepted" if document["accepted"] else ""
    typer.echo(f"{fmt.counted(document['lost'], 'message')} of {pipeline} lost afterwards{accepted_words}")


def _table(messages: Sequence[LostAfterwardsMessage]) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    from lagloss_server.incidents.lost_afterwards import CAUSES

    names = ("message id", "event time (UTC)", "checkpoint", "cursor", "last seen", "missed", "row")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=None)
    for message in messages:
        event, seen, missed = (
            fmt.clock(at_ms / 1_000, seconds=True, date=True)
            for at_ms in (message.event_ms, message.seen_ms, message.missed_ms)
        )
        cause = CAUSES[message.cause]
        table.add_row(Text(message.message_id), event, message.checkpoint, str(message.cursor), seen, missed, cause)
    return table

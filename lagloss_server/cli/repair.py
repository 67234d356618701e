"""`lagloss repair`: send lost messages again, each once, and prove that they arrived."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lagloss.broker.errors import reaching
from lagloss.errors import UsageError
from lagloss_server.base.fields import parse_duration_ms
from lagloss_server.base.settings import Settings
from lagloss_server.base.times import parse_time_s
from lagloss_server.cli.options import AsJson, DataDir, open_store
from lagloss_server.ops.signals import run_until_signal

if TYPE_CHECKING:
    from lagloss_server.repair.statement import RepairDocument, StatementDocument

TIMEOUT: str = "5m"


def repair(
    pipeline: Annotated[str | None, typer.Argument(help="name of the pipeline", metavar="PIPELINE")] = None,
    window: Annotated[
        str | None, typer.Option(help="any time within the first window: RFC 3339 or relative (-15m)")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="repair windows that start before this time (default: one window)")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="place where the messages were lost: link:A->B or node:N", metavar="PLACE")
    ] = None,
    from_topic: Annotated[
        str | None,
        typer.Option(help="topic that the records are in, if the definition does not name it", metavar="TOPIC"),
    ] = None,
    include_perhaps: Annotated[
        bool, typer.Option("--include-perhaps", help="also send what is perhaps lost: it can arrive twice")
    ] = False,
    i_know: Annotated[
        bool, typer.Option("--i-know", help="send though nodes that get it do not declare `idempotent: true`")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            help="records per second (default: a tenth of what the topic gets, at least 50)", min=0.1, max=1_000_000
        ),
    ] = None,
    timeout: Annotated[str, typer.Option(help="longest wait for arrivals", metavar="DURATION")] = TIMEOUT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be sent")] = False,
    stop: Annotated[
        str | None, typer.Option("--stop", help="let a running repair stop; the same command goes on", metavar="ID")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Send the messages that were lost for certain at a place again, each once, and wait until they arrive; exit 0 only
    if all did. The same command goes on with a repair that was interrupted, and sends nothing once it is finished."""
    settings = Settings.load(data_dir=data_dir)
    if stop is not None:
        _stop(settings, stop, as_json=as_json)
        return
    if pipeline is None or window is None or at is None:
        raise UsageError(detail="expected PIPELINE, --window and --at, or --stop ID")
    from lagloss.wire.format import WINDOW_S, window_start_of
    from lagloss_server.repair.preparation import prepare
    from lagloss_server.repair.runner import carry_out
    from lagloss_server.repair.statement import exit_code, plan_document, plan_lines, statement_lines

    timeout_s = _seconds(timeout)
    from_s = window_start_of(parse_time_s(window) * 1_000)
    to_s = from_s + WINDOW_S if to is None else ceil(parse_time_s(to) / WINDOW_S) * WINDOW_S
    if to_s <= from_s:
        raise UsageError(detail="--to: expected a time after the start of --window")
    bootstrap = settings.require_kafka()
    with open_store(settings) as store, reaching(bootstrap), Console(stderr=True).status("repair") as line:

        def say(progress: str) -> None:
            line.update(f"repair {pipeline}: {progress}")

        prepared = prepare(
            store,
            bootstrap,
            pipeline,
            from_s,
            to_s,
            at,
            from_topic=from_topic,
            with_perhaps=include_perhaps,
            rate=rate,
            say=say,
        )
        if prepared.stored is not None and prepared.stored.state != "finished":
            typer.echo(f"Goes on with {prepared.stored.name}, which is not finished.", err=True)
        if prepared.open_windows:
            typer.echo(f"{prepared.open_windows} windows of the range are not closed yet: they are left out", err=True)
        if dry_run:
            planned = plan_document(prepared)
            _print(planned, plan_lines(planned), as_json=as_json)
            return
        if prepared.must_be_confirmed and not i_know:
            nodes = ", ".join(prepared.not_idempotent)
            raise UsageError(
                detail=f"what is sent again can have a second effect: {nodes}. Declare nodes of which that is not so as"
                " `idempotent: true` in the definition, or add --i-know"
            )
        documents: list[StatementDocument] = []
        stopping = threading.Event()  # after the transaction under way

        def work() -> None:
            documents.append(carry_out(store, bootstrap, prepared, timeout_s, stopping, say))

        run_until_signal("repair", work, stopping.set)
    (document,) = documents
    _print(document, statement_lines(document), as_json=as_json)
    if code := exit_code(document):
        raise typer.Exit(code)


def _print(document: RepairDocument, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document))
    else:
        for text in lines:
            typer.echo(text)


def _stop(settings: Settings, repair_id: str, *, as_json: bool) -> None:
    from lagloss_server.repair.ledger import RepairLedger

    with open_store(settings) as store:
        stored = RepairLedger(store.engine).ask_to_stop(repair_id)
    if as_json:
        typer.echo(json.dumps({"repair": stored.name, "state": stored.state, "stop_reason": stored.stop_reason}))
    else:
        typer.echo(f"{stored.name} stops after its current transaction")


def _seconds(text: str) -> float:
    try:
        return parse_duration_ms(text) / 1_000
    except ValueError as error:
        raise UsageError(detail=f"--timeout: {error}") from error

"""`lagloss alerts` for incidents: list, acknowledge and silence them, and test receivers."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from math import ceil
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from alerting.cli.incident_text import cells, details, times_cells
from lagloss.errors import EXIT_BREACHED, UsageError
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import BadSilence
from lagloss_server.base.fields import parse_duration_ms
from lagloss_server.base.settings import Settings
from lagloss_server.base.times import moment, parse_time_s
from lagloss_server.cli.options import AsJson, DataDir, note_set_aside, open_store, out
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.incidents import incident as incidents
from lagloss_server.incidents import receiver_check
from lagloss_server.incidents import response_times as incident_times
from lagloss_server.incidents.changes import read_record
from lagloss_server.model.window import rfc3339
from lagloss_server.store.audit import note_look

app = typer.Typer(help="List, acknowledge and silence incidents.", no_args_is_help=True)

IncidentId = Annotated[str, typer.Argument(help="id of the incident, or its first characters", metavar="ID")]
Author = Annotated[str | None, typer.Option(help="name to record; by default, the current user of this machine")]


@app.command("list")
def list_(
    all_: Annotated[bool, typer.Option("--all", help="include resolved ones")] = False,
    since: Annotated[
        str, typer.Option(help="with --all: only those resolved after this; RFC 3339 or relative")
    ] = "-7d",
    pipeline: Annotated[str | None, typer.Option(help="only incidents of this pipeline")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the open incidents, critical ones first, then the longest open."""
    after = datetime.fromtimestamp(parse_time_s(since), UTC)
    with open_store(Settings.load(data_dir=data_dir)) as store:
        if pipeline is not None:
            store.demand(pipeline)
        listed = incidents.incidents(store, pipeline=pipeline, only_open=not all_, since=after)
    if as_json:
        typer.echo(json.dumps([incident.document() for incident in listed]))
        return
    if not listed:
        typer.echo("no incidents" if all_ else "no open incidents")
        return
    table = Table("id", "severity", "pipeline", "rule", "breach", "since (UTC)", "where", "state", box=None)
    for incident in listed:
        table.add_row(*(escape(cell) for cell in cells(incident)))
    out().print(table)


@app.command()
def show(incident_id: IncidentId, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show one incident: breaches, places, example messages, history and notifications."""
    settings = Settings.load(data_dir=data_dir)
    with open_store(settings) as store:
        record = read_record(store, incident_id)
        if record.incident.examples:
            note_look(store.engine, "ids.incident", record.incident.pipeline, str(record.incident.id))
        document = record.document(settings.dashboard_url)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        typer.echo("\n".join(details(document)))


@app.command()
def ack(
    incident_id: IncidentId,
    note: Annotated[str | None, typer.Option(help="findings or next steps, recorded with it")] = None,
    author: Author = None,
    data_dir: DataDir = None,
) -> None:
    """Acknowledge an incident, which stops its escalation and reminders."""
    with open_store(Settings.load(data_dir=data_dir)) as store:
        taken = incident_actions.acknowledge(store, incident_id, author or _user(), note)
    typer.echo(f"{taken}: acknowledged by {author or _user()}")


@app.command()
def silence(
    matchers: Annotated[list[str], typer.Argument(help="label=value, or with !=, =~, !~", metavar="MATCHER...")],
    for_: Annotated[str, typer.Option("--for", help="duration: 30m, 2h, at most 24h")],
    reason: Annotated[str, typer.Option(help="reason, shown to all users")],
    author: Annotated[str, typer.Option(help="name of the person responsible")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Suppress notifications of incidents that match all MATCHERs; the incidents are still recorded."""
    try:
        for_s = parse_duration_ms(for_) / 1_000
    except ValueError as error:
        raise BadSilence(expected="--for with a duration such as 30m or 2h", found=repr(for_)) from error
    with open_store(Settings.load(data_dir=data_dir)) as store:
        checked = incident_actions.checked_matchers(matchers)
        silenced, about = incident_actions.silence(store, checked, reason=reason, author=author, for_s=for_s)
    if as_json:
        typer.echo(json.dumps({**silenced.document(), "open_incidents": [str(pipeline) for pipeline in about]}))
        return
    typer.echo(silenced.id)
    typer.echo(f"Until {moment(silenced.ends_at)}; {incident_actions.matched_words(about)}.", err=True)


@app.command()
def silences(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the active silences."""
    with open_store(Settings.load(data_dir=data_dir)) as store:
        active = incident_actions.silences(store)
    note_set_aside(active.unreadable)
    if as_json:
        typer.echo(json.dumps([item.document() for item in active]))
        return
    table = Table("id", "matchers", "until (UTC)", "author", "reason", box=None)
    for silence_ in active:
        row = (
            silence_.id,
            " ".join(silence_.matchers),
            fmt.clock(silence_.ends_at.timestamp(), date=True),
            silence_.author,
            silence_.reason,
        )
        table.add_row(*(escape(cell) for cell in row))
    out().print(table)


@app.command()
def unsilence(
    silence_id: Annotated[str, typer.Argument(help="id of the silence", metavar="ID")],
    author: Author = None,
    data_dir: DataDir = None,
) -> None:
    """End a silence; receivers are notified of incidents that are still open."""
    with open_store(Settings.load(data_dir=data_dir)) as store:
        incident_actions.unsilence(store, silence_id, author or _user())
    typer.echo(f"{silence_id}: ended")


@app.command("test")
def send_test(
    receiver: Annotated[str, typer.Argument(help="name of the receiver in the alerting file", metavar="RECEIVER")],
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="seconds to wait for the answer")
    ] = receiver_check.WAIT_S,
    data_dir: DataDir = None,
) -> None:
    """Send a test to a receiver through the running alerter; exit 0 if the receiver accepts it, 1 if not."""
    with open_store(Settings.load(data_dir=data_dir)) as store:
        answer = receiver_check.await_test(store, receiver_check.request_test(store, receiver, _user()), wait_s=wait_s)
    match answer.outcome:
        case "sent":
            typer.echo(f"{receiver}: sent")
            return
        case "refused":
            failure = f"refused: {answer.error}"
        case "retried":
            failure = f"not accepted yet, {answer.error or 'no response'}; the alerter keeps trying"
    typer.echo(f"{receiver}: {failure}", err=True)
    raise typer.Exit(EXIT_BREACHED)


@app.command()
def stats(
    from_: Annotated[str, typer.Option("--from", help="RFC 3339 or relative (-30d)")] = "-30d",
    to: Annotated[str, typer.Option("--to", help="RFC 3339, relative (-5m) or now")] = "now",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show the times to acknowledge (MTTA) and to recover (MTTR) of incidents with from <= opened < to."""
    from_s, to_s = ceil(parse_time_s(from_)), ceil(parse_time_s(to))
    with open_store(Settings.load(data_dir=data_dir)) as store:
        courses = incident_times.courses(store, from_s, to_s)
    groups = {
        "severity": incident_times.by(lambda course: course.severity, courses),
        "rule": incident_times.by(lambda course: course.rule, courses),
    }
    of_all = incident_times.Times.of(courses)
    if as_json:
        document: dict[str, Any] = {"from": rfc3339(from_s), "to": rfc3339(to_s), "all": of_all.document()}
        for name, of_group in groups.items():
            document[f"by_{name}"] = {key: times.document() for key, times in of_group.items()}
        typer.echo(json.dumps(document))
        return
    heads = ("incidents", "acknowledged", "MTTA", "median", "recovered", "MTTR", "median", "revised")
    table = Table("", *heads, box=None)
    for name, times in [("all", of_all), *groups["severity"].items(), *groups["rule"].items()]:
        table.add_row(name, *times_cells(times))
    out().print(table)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container's user may have no name
        raise UsageError(detail="expected --author, since the current user has no name") from error

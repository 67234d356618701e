"""Commands of `lagloss reports`, which `lagloss` runs as `python -m dashboard.reports.schedule.cli`."""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from dashboard.reports.schedule.file import ReportsFile, ReportSpec, load_reports
from dashboard.reports.schedule.mail import message_id
from dashboard.reports.schedule.producer import Producer, maker, unsettled
from dashboard.reports.schedule.runs import Runs
from dashboard.reports.schedule.scheduler import SEND_TIMEOUT_S
from lagloss.errors import EXIT_BREACHED, UsageError
from lagloss_server.cli.main import run_app
from lagloss_server.cli.options import DataDir, open_store, out
from lagloss_server.format import NOTHING
from lagloss_server.net.mail import Address, addr_spec, send_mail
from lagloss_server.net.outcome import Sent
from lagloss_server.settings import Settings

NEXT_SHOWN = 3

app = typer.Typer(
    name="reports",
    help="List, check and send scheduled SLA reports.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class NoReportsFile(UsageError):
    """No reports file is configured. Name one in LAGLOSS_REPORTS_FILE; start from examples/reports.yaml."""


class UnknownReport(UsageError):
    """No report is called {report}; there {known}. They are in {file}."""


class BadAddress(UsageError):
    """Expected --to to be one mail address such as on-call@example.com, in ASCII; found {found!r}."""


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the reports, with their next due time and the outcome of the last one."""
    settings = Settings.load(data_dir=data_dir)
    file = _file(settings)
    table = Table("report", "pipelines", "range", "to", "next", "last due", "outcome", box=None)
    with open_store(settings) as store:
        runs = Runs(store.engine)
        for report in file.reports:
            last = runs.last(report.name, str(report.schedule))
            due, outcome = (_clock(last.due_at.timestamp(), report), last.summary) if last else (NOTHING, NOTHING)
            table.add_row(
                report.name,
                _pipelines(report),
                report.range,
                ", ".join(map(addr_spec, report.to)),
                _next(report)[0],
                due,
                outcome,
            )
    out().print(table if file.reports else "no reports")


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="the file; by default LAGLOSS_REPORTS_FILE", metavar="FILE")
    ] = None,
) -> None:
    """Check a reports file and its secrets, and show the next due times; send nothing."""
    found = _file(Settings.load(reports_file=file))
    found.mail.server()
    table = Table("report", "pipelines", "range", "formats", "to", f"next {NEXT_SHOWN}", box=None)
    for report in found.reports:
        formats, to = ", ".join(report.formats), ", ".join(map(addr_spec, report.to))
        table.add_row(report.name, _pipelines(report), report.range, formats, to, "; ".join(_next(report)))
    out().print(table if found.reports else "no reports")


@app.command()
def send(
    name: Annotated[str, typer.Argument(help="name of the report", metavar="NAME")],
    to: Annotated[
        list[str] | None, typer.Option("--to", help="recipient, in place of those in the file; repeatable")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Generate a report as if it were due now and mail it; its schedule is unchanged."""
    settings = Settings.load(data_dir=data_dir)
    file = _file(settings)
    report = file.report(name)
    if report is None:
        names = ", ".join(each.name for each in file.reports)
        known = f"are {names}" if names else "is none"
        raise UnknownReport(report=name, known=known, file=settings.reports_file)
    recipients = [_address(each) for each in to] if to else report.to
    server, now_s = file.mail.server(SEND_TIMEOUT_S), time.time()
    with open_store(settings) as store:
        producer = Producer(store, file.mail.from_, maker(settings.dashboard_url))
        span = report.span(int(now_s))
        waits_for = unsettled(store, producer.definitions(report), span, now_s)
        unique = message_id(file.mail.from_, uuid.uuid4())
        mail = producer.mail(report, span, recipients, unique, now_s, waits_for)
    outcome = send_mail(server, mail, recipients, frozenset()).outcome
    if not isinstance(outcome, Sent):
        typer.echo(f"lagloss reports: {name} was not sent: {outcome.error}", err=True)
        raise typer.Exit(EXIT_BREACHED)
    typer.echo(f"{mail['Subject']}: sent to {', '.join(map(addr_spec, recipients))}")


def _file(settings: Settings) -> ReportsFile:
    file = load_reports(settings)
    if file is None:
        raise NoReportsFile
    return file


def _address(text: str) -> str:
    try:
        return TypeAdapter(Address).validate_python(text)
    except ValidationError:
        raise BadAddress(found=text) from None


def _pipelines(report: ReportSpec) -> str:
    return "all" if report.pipelines is None else ", ".join(report.pipelines)


def _next(report: ReportSpec) -> list[str]:
    return [_clock(at, report) for at in report.schedule.next_after(time.time(), NEXT_SHOWN)]


def _clock(epoch_s: float, report: ReportSpec) -> str:
    """Format a time on the clock of the report's zone."""
    return f"{datetime.fromtimestamp(epoch_s, ZoneInfo(report.zone)):%a %Y-%m-%d %H:%M} {report.zone}"


def main() -> None:
    run_app(app, "lagloss reports")


if __name__ == "__main__":
    main()

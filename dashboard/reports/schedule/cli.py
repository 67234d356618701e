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
from dashboard.reports.schedule.mail import compose, message_id
from dashboard.reports.schedule.producer import Producer, unsettled
from dashboard.reports.schedule.receivers import combined, problem_of, queue, read_kinds
from dashboard.reports.schedule.runs import Runs
from dashboard.reports.schedule.scheduler import SEND_TIMEOUT_S
from lagloss.errors import EXIT_BREACHED, UsageError
from lagloss_server.base.format import NOTHING
from lagloss_server.base.settings import Settings
from lagloss_server.cli.main import run_app
from lagloss_server.cli.options import DataDir, open_store, out
from lagloss_server.net.mail import Address, send_mail
from lagloss_server.net.outcome import Sent

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
    """No report is named {report}; {known}. Reports are in {file}."""


class NoMailServer(UsageError):
    """{file} has no `mail`, the server that sends mails."""


class BadAddress(UsageError):
    """Expected --to to be one email address in ASCII, such as on-call@example.com; found {found!r}."""


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
                report.ways,
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
    data_dir: DataDir = None,
) -> None:
    """Check a reports file and its secrets, and show the next due times; send nothing."""
    file_ = _file(Settings.load(reports_file=file, data_dir=data_dir))
    if file_.mail is not None:
        file_.mail.server()
    table = Table("report", "pipelines", "range", "formats", "to", f"next {NEXT_SHOWN}", box=None)
    for report in file_.reports:
        row = (report.name, _pipelines(report), report.range, ", ".join(report.formats), report.ways)
        table.add_row(*row, "; ".join(_next(report)))
    out().print(table if file_.reports else "no reports")


@app.command()
def send(
    name: Annotated[str, typer.Argument(help="name of the report", metavar="NAME")],
    to: Annotated[
        list[str] | None, typer.Option("--to", help="email address, instead of all in the file (repeatable)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Generate a report as if it were due now, mail it and queue it for its receivers; its schedule is unchanged."""
    settings = Settings.load(data_dir=data_dir)
    file = _file(settings)
    report = file.report(name)
    if report is None:
        names = ", ".join(report.name for report in file.reports)
        known = f"existing reports: {names}" if names else "no reports exist yet"
        raise UnknownReport(report=name, known=known, file=settings.reports_file)
    if to:
        report = report.model_copy(update={"to": tuple(map(_address, to)), "receivers": ()})
    if report.to and file.mail is None:
        raise NoMailServer(file=settings.reports_file)
    mailer = (file.mail.server(SEND_TIMEOUT_S), file.mail.from_) if report.to and file.mail is not None else None
    now_s, run = time.time(), uuid.uuid4()
    with open_store(settings) as store:
        producer, span = Producer(store, settings.dashboard_url), report.span(int(now_s))
        made_report = producer.report(report, span, now_s, unsettled(store, producer.definitions(report), span, now_s))
        with store.engine.begin() as connection:
            kinds = read_kinds(connection, report.receivers)
            outcomes = [problem_of(receiver, kinds.get(receiver)) for receiver in report.receivers]
            fit = {
                kind_name: kind for kind_name, kind in kinds.items() if isinstance(problem_of(kind_name, kind), Sent)
            }
            queue(connection, made_report, fit, run)
    if mailer is not None:
        server, sender = mailer
        mail = compose(made_report, sender, report.to, message_id(sender, run))
        outcomes.append(send_mail(server, mail, report.to, frozenset()).outcome)
    outcome = combined(outcomes)
    if not isinstance(outcome, Sent):
        typer.echo(f"lagloss reports: {name} was not sent: {outcome.error}", err=True)
        raise typer.Exit(EXIT_BREACHED)
    typer.echo(f"{made_report.title}: {'queued for' if not report.to else 'sent to'} {report.ways}")


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
    if report.pipelines is not None:
        return ", ".join(report.pipelines)
    return (", ".join(map(str, report.match)) or "all") + (" (portfolio)" if report.portfolio else "")


def _next(report: ReportSpec) -> list[str]:
    return [_clock(due_s, report) for due_s in report.schedule.next_after(time.time(), NEXT_SHOWN)]


def _clock(epoch_s: float, report: ReportSpec) -> str:
    """Format a time on the clock of the report's zone."""
    return f"{datetime.fromtimestamp(epoch_s, ZoneInfo(report.zone)):%a %Y-%m-%d %H:%M} {report.zone}"


def main() -> None:
    run_app(app, "lagloss reports")


if __name__ == "__main__":
    main()

"""`lagloss report`, which `lagloss` runs as `python -m dashboard.reports.cli`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from dashboard.reports.making import make_report
from dashboard.reports.portfolio import make_portfolio
from dashboard.reports.ranges import DEFAULT, PRESETS, choose
from dashboard.reports.render.formats import FORMATS, Reported, file_name, format_of, render
from lagloss.errors import EXIT_BREACHED, UsageError
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.settings import Settings
from lagloss_server.cli.main import run_app
from lagloss_server.cli.options import DataDir, open_store
from lagloss_server.model.matchers import parse_matchers

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

RANGE_HELP = f"{', '.join(PRESETS)}, 7d, 2026-W47, 2026-11 or 2026-Q4; by default {DEFAULT}"


@app.command()
def report(
    pipeline: Annotated[
        str | None, typer.Argument(help="its name; without one, the portfolio of several", metavar="[PIPELINE]")
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option("--match", help="portfolio of the pipelines that match, such as team=web; repeatable"),
    ] = None,
    portfolio: Annotated[bool, typer.Option("--portfolio", help="portfolio of all pipelines, worst first")] = False,
    from_: Annotated[str | None, typer.Option("--from", help="RFC 3339 or relative (-7d), instead of --range")] = None,
    to: Annotated[str | None, typer.Option("--to", help="RFC 3339, relative or now; by default now")] = None,
    range_: Annotated[str | None, typer.Option("--range", help=RANGE_HELP)] = None,
    zone: Annotated[str, typer.Option(help="IANA time zone of days, weeks and months")] = "UTC",
    formats: Annotated[str, typer.Option("--format", help=f"one or more of {','.join(FORMATS)}")] = "md",
    out: Annotated[
        Path | None, typer.Option(help="output file, or folder for several formats; by default stdout")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="only messages of this source, if there are several")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an SLA was missed")] = False,
    data_dir: DataDir = None,
) -> None:
    """Print the SLA report of a pipeline (attainment, error budget, destinations, lag by hop, worst hours, incidents),
    or the portfolio of several.

    Exit codes: 1 SLA missed (with --check), 2 usage, 3 a server cannot be reached, 4 no closed window in the range.
    """
    wanted_formats, several = list(dict.fromkeys(formats.split(","))), portfolio or bool(match)
    if several == (pipeline is not None):
        found_option = "both" if several else "neither"
        raise UsageError(detail=f"expected a pipeline, or --portfolio or --match for several, found {found_option}")
    if several and source is not None:
        raise UsageError(detail=f"expected --source with one pipeline, found {source} with several")
    _check_destination(wanted_formats, out)
    matchers = parse_matchers(match or ())
    now_s, settings = time.time(), Settings.load(data_dir=data_dir)
    span = choose(range_, from_, to, zone, now_s)
    with open_store(settings) as store:
        document: Reported = (
            make_portfolio(store, matchers, span, now_s)
            if pipeline is None
            else make_report(store, pipeline, span, now_s, source)
        )
    if not document.is_known:
        raise NotEnoughData(detail=f"{document.name} has no closed window in this range.")
    for name in wanted_formats:
        _write(document, name, settings.dashboard_url, out)
    if check and document.status == "missed":
        raise typer.Exit(EXIT_BREACHED)


def _check_destination(destinations: list[str], out: Path | None) -> None:
    """Raise UsageError for unknown formats and unusable destinations, before anything is read."""
    forms = [format_of(name) for name in destinations]
    if len(forms) > 1 and (out is None or out.is_file()):
        raise UsageError(detail=f"expected --out with a folder for {len(forms)} formats, found {out or 'none'}")
    if out is not None and len(forms) == 1 and not out.is_dir() and not out.absolute().parent.is_dir():
        raise UsageError(detail=f"expected --out in an existing folder, found {out}")
    if out is None and forms[0].is_binary and sys.stdout.isatty():
        raise UsageError(
            detail=f"expected --out FILE or a pipe for {destinations[0]}, which is binary; found a terminal"
        )


def _write(report: Reported, name: str, dashboard_url: str, out: Path | None) -> None:
    document = render(report, name, dashboard_url)
    if out is None:
        sys.stdout.buffer.write(document)
        sys.stdout.flush()
        return
    path = out
    if out.is_dir() or not out.suffix:
        out.mkdir(parents=True, exist_ok=True)
        path = out / file_name(report, name)
    path.write_bytes(document)
    typer.echo(str(path))


def main() -> None:
    run_app(app, "lagloss report")


if __name__ == "__main__":
    main()

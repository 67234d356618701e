"""The report as CSV (RFC 4180): one row a figure_row of time, all with the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from dashboard.reports.model import Figures, Report, figure_links
from dashboard.reports.portfolio import Portfolio
from lagloss_server.model.window import Lags, rfc3339
from lagloss_server.queries.csv_lines import csv_lines
from lagloss_server.sums.quality import QualityRow

COLUMNS: Final = (
    *("pipeline", "what", "destination", "from", "to", "zone", "status", "loss_status", "on_time_status", "minutes"),
    *("ok", "loss", "unknown", "idle", "missing", "before", "to_come", "messages", "delivered", "pending"),
    *("dead", "lost_min", "lost_max", "loss_bad_min", "loss_bad_max", "loss_budget"),
    *("on_time", "on_time_of", "on_time_bad_min", "on_time_bad_max", "on_time_budget"),
    *("e2e_p50_ms", "e2e_p95_ms", "e2e_p99_ms", "e2e_max_ms", "windows", "sums"),
    *("duplicates", "duplicates_of", "corrupted", "corrupted_of", "staleness_ms", "source"),
    "committed_by",
)


def spreadsheet(report: Report | Portfolio, base_url: str = "") -> str:
    """Return a report or portfolio as CSV. `what` is whole, previous, day or hour (one of the worst), or a stage of the
    whole range (`node mid`, `link src->mid`, `destination snk`), whose row has its quality; `destination` is empty
    where figures are of all, and so is `source`. Lags and dead messages of days, hours and portfolios are left out."""
    figure_rows = _of_portfolio(report) if isinstance(report, Portfolio) else _of_report(report)
    rows = (_row(figure_row, report.span.zone, base_url) for figure_row in figure_rows)
    qualities = () if isinstance(report, Portfolio) else (_quality_row(report, row, base_url) for row in report.quality)
    return "".join(csv_lines(COLUMNS, chain(rows, qualities)))


class _FigureRow(NamedTuple):
    pipeline: str
    what: str
    figures: Figures
    destination: str = ""
    source: str = ""
    committed_by: str = ""


def _of_portfolio(portfolio: Portfolio) -> Iterator[_FigureRow]:
    for line in portfolio.lines:
        yield _FigureRow(line.pipeline, "whole", line.whole)
        yield _FigureRow(line.pipeline, "previous", line.previous)


def _of_report(report: Report) -> Iterator[_FigureRow]:
    name, source = report.pipeline, report.source or ""
    sole = "".join(report.committed_by.values()) if len(report.destinations) < 2 else ""
    yield _FigureRow(name, "whole", report.whole, source=source, committed_by=sole)
    yield _FigureRow(name, "previous", report.previous, source=source, committed_by=sole)
    for destination in report.destinations:
        group = report.committed_by.get(destination.name, "")
        yield _FigureRow(name, "whole", destination.whole, destination.name, committed_by=group)
        yield _FigureRow(name, "previous", destination.previous, destination.name, committed_by=group)
    for part in report.sources:
        yield _FigureRow(name, "whole", part.whole, source=part.name)
        yield _FigureRow(name, "previous", part.previous, source=part.name)
    yield from (_FigureRow(name, "day", day, source=source) for day in report.days)
    yield from (_FigureRow(name, "hour", hour.figures, source=source) for hour in report.worst_hours)


def _row(row: _FigureRow, zone: str, base_url: str) -> list[Any]:
    figures = row.figures
    total, lags = figures.total, Lags.of(figures.total.e2e_lags)
    loss, on_time = figures.attainments
    links = figure_links(row.pipeline, zone, figures.from_s, figures.to_s, base_url, row.source or None)
    return [
        *(row.pipeline, row.what, row.destination, rfc3339(figures.from_s), rfc3339(figures.to_s), zone),
        *(figures.status, loss.status, on_time.status, figures.known.minutes, *figures.minutes_by_verdict.values()),
        *(total.messages, total.delivered, total.pending),
        total.dead if total.proofs else None,  # counts alone have neither
        *(total.lost_min, total.lost_max),
        *(loss.bad.min, loss.bad.max, loss.allowed),
        *(total.on_time, total.on_time_of, on_time.bad.min, on_time.bad.max, on_time.allowed),
        *(lags.p50, lags.p95, lags.p99, lags.max),
        *(links["windows"], links["sums"], *(None,) * 5, row.source, row.committed_by),
    ]


def _quality_row(report: Report, row: QualityRow, base_url: str) -> list[Any]:
    """Return a row with what is known of a stage; the other columns stay empty."""
    sums, span = row.sums, report.span
    links = report.links(span.from_s, span.to_s, base_url)
    values: dict[str, Any] = {
        "pipeline": report.pipeline,
        "what": row.stage.label,
        "from": rfc3339(span.from_s),
        "to": rfc3339(span.to_s),
        "zone": span.zone,
        "messages": sums.messages,
        "lost_min": sums.lost.min,
        "lost_max": sums.lost.max,
        "staleness_ms": sums.staleness_ms,
        "windows": links["windows"],
        "sums": links["sums"],
    }
    for name, (count, total) in (("duplicates", sums.duplicates), ("corrupted", sums.checksums)):
        if total:
            values |= {name: count, f"{name}_of": total}
    return [values.get(column) for column in COLUMNS]

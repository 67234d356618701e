"""The report as CSV (RFC 4180): one row a stretch of time, all with the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from dashboard.reports.model import Figures, Report, figure_links
from dashboard.reports.portfolio import Portfolio
from lagloss_server.csv_lines import csv_lines
from lagloss_server.model.window_result import Lags, rfc3339
from lagloss_server.rules.quality import QualityRow

COLUMNS: Final = (
    *("pipeline", "what", "destination", "from", "to", "zone", "status", "loss_status", "on_time_status", "minutes"),
    *("ok", "loss", "unknown", "idle", "missing", "before", "to_come", "messages", "delivered", "pending"),
    *("dead", "lost_min", "lost_max", "loss_bad_min", "loss_bad_max", "loss_budget"),
    *("on_time", "on_time_of", "on_time_bad_min", "on_time_bad_max", "on_time_budget"),
    *("e2e_p50_ms", "e2e_p95_ms", "e2e_p99_ms", "e2e_max_ms", "windows", "sums"),
    *("duplicates", "duplicates_of", "corrupted", "corrupted_of", "staleness_ms"),
)


def spreadsheet(report: Report | Portfolio, base_url: str = "") -> str:
    """Return a report or portfolio as CSV. `what` is whole, previous, day or hour (one of the worst), or a stage of the
    whole range (`node mid`, `link src->mid`, `destination snk`), whose row has its quality; `destination` is empty
    where figures are of all. Lags and dead messages of days, hours and portfolios are left out."""
    stretches = _of_portfolio(report) if isinstance(report, Portfolio) else _of_report(report)
    rows = (_row(*stretch, report.span.zone, base_url) for stretch in stretches)
    qualities = () if isinstance(report, Portfolio) else (_quality_row(report, row, base_url) for row in report.quality)
    return "".join(csv_lines(COLUMNS, chain(rows, qualities)))


def _of_portfolio(portfolio: Portfolio) -> Iterator[tuple[str, str, str, Figures]]:
    for line in portfolio.lines:
        yield line.pipeline, "whole", "", line.whole
        yield line.pipeline, "previous", "", line.previous


def _of_report(report: Report) -> Iterator[tuple[str, str, str, Figures]]:
    name = report.pipeline
    yield name, "whole", "", report.whole
    yield name, "previous", "", report.previous
    for there in report.destinations:
        yield name, "whole", there.name, there.whole
        yield name, "previous", there.name, there.previous
    yield from ((name, "day", "", day) for day in report.days)
    yield from ((name, "hour", "", hour.figures) for hour in report.worst_hours)


def _row(pipeline: str, what: str, destination: str, figures: Figures, zone: str, base_url: str) -> list[Any]:
    total, lags = figures.total, Lags.of(figures.total.e2e_lags)
    loss, on_time = figures.attainments
    links = figure_links(pipeline, zone, figures.from_s, figures.to_s, base_url)
    return [
        *(pipeline, what, destination, rfc3339(figures.from_s), rfc3339(figures.to_s), zone),
        *(figures.status, loss.status, on_time.status, figures.known.minutes, *figures.minutes.values()),
        *(total.messages, total.delivered, total.pending),
        total.dead if total.proofs else None,  # counts alone have neither
        *(total.lost_min, total.lost_max),
        *(loss.bad.min, loss.bad.max, loss.allowed),
        *(total.on_time, total.on_time_of, on_time.bad.min, on_time.bad.max, on_time.allowed),
        *(lags.p50, lags.p95, lags.p99, lags.max),
        *(links["windows"], links["sums"], *(None,) * 5),
    ]


def _quality_row(report: Report, row: QualityRow, base_url: str) -> list[Any]:
    """Return a row with what is known of a stage; the other columns stay empty."""
    sums, span = row.sums, report.span
    links = report.links(span.from_s, span.to_s, base_url)
    found: dict[str, Any] = {
        "pipeline": report.pipeline,
        "what": row.stage.label,
        "from": rfc3339(span.from_s),
        "to": rfc3339(span.to_s),
        "zone": span.zone,
        "messages": sums.messages,
        "lost_min": sums.lost_min,
        "lost_max": sums.lost_max,
        "staleness_ms": sums.staleness_ms,
        "windows": links["windows"],
        "sums": links["sums"],
    }
    if sums.counted:
        found |= {"duplicates": sums.duplicates, "duplicates_of": sums.counted}
    if sums.checked:
        found |= {"corrupted": sums.corrupted, "corrupted_of": sums.checked}
    return [found.get(column) for column in COLUMNS]

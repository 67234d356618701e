"""The report as CSV (RFC 4180): one row a stretch of time, all with the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dashboard.reports.model import Figures, Report
from lagloss_server.csv_lines import csv_lines
from lagloss_server.model.window_result import Lags, rfc3339

COLUMNS: Final = (
    *("pipeline", "what", "destination", "from", "to", "zone", "status", "loss_status", "on_time_status", "minutes"),
    *("ok", "loss", "unknown", "idle", "missing", "before", "to_come", "messages", "delivered", "pending"),
    *("dead", "lost_min", "lost_max", "loss_bad_min", "loss_bad_max", "loss_budget"),
    *("on_time", "on_time_of", "on_time_bad_min", "on_time_bad_max", "on_time_budget"),
    *("e2e_p50_ms", "e2e_p95_ms", "e2e_p99_ms", "e2e_max_ms", "windows", "sums"),
)


def spreadsheet(report: Report, base_url: str = "") -> str:
    """Return the report as CSV; `what` is whole, previous, day or hour (one of the worst); `destination` is empty where
    figures are of all of them. Lags and dead messages of days and hours are left out."""
    rows = (_row(report, *stretch, base_url) for stretch in _stretches(report))
    return "".join(csv_lines(COLUMNS, rows))


def _stretches(report: Report) -> Iterator[tuple[str, str, Figures]]:
    yield "whole", "", report.whole
    yield "previous", "", report.previous
    for there in report.destinations:
        yield "whole", there.name, there.whole
        yield "previous", there.name, there.previous
    yield from (("day", "", day) for day in report.days)
    yield from (("hour", "", hour.figures) for hour in report.worst_hours)


def _row(report: Report, what: str, destination: str, figures: Figures, base_url: str) -> list[Any]:
    total, lags = figures.total, Lags.of(figures.total.e2e_lags)
    loss, on_time = figures.attainments
    links = report.links(figures.from_s, figures.to_s, base_url)
    return [
        *(report.pipeline, what, destination, rfc3339(figures.from_s), rfc3339(figures.to_s), report.span.zone),
        *(figures.status, loss.status, on_time.status, figures.known.minutes, *figures.minutes.values()),
        *(total.messages, total.delivered, total.pending),
        None if what in ("day", "hour") else total.dead,
        *(total.lost_min, total.lost_max),
        *(loss.bad.min, loss.bad.max, loss.allowed),
        *(total.on_time, total.on_time_of, on_time.bad.min, on_time.bad.max, on_time.allowed),
        *(lags.p50, lags.p95, lags.p99, lags.max),
        *(links["windows"], links["sums"]),
    ]

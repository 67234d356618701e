"""The section that compares a report's range with the one before it."""

from __future__ import annotations

from collections.abc import Callable

from dashboard.reports import wording
from dashboard.reports.model import Report
from dashboard.reports.parts import Cell, ReportSection, Table
from lagloss_server import format as fmt
from lagloss_server.model.window_result import Lags
from lagloss_server.rules.error_budget import Attainment


def comparison(report: Report) -> ReportSection:
    now, before = report.whole, report.previous
    title = f"Compared with {wording.range_words(report.previous_span)}"
    if not before.known.closed:
        return ReportSection(title, ("Nothing is known of that range.",))
    (_, on_time), (_, on_time_before) = now.attainments, before.attainments
    lags_now, lags_before = Lags.of(now.total.e2e_lags), Lags.of(before.total.e2e_lags)
    rows = [
        _compared("Messages", now.total.messages, before.total.messages, fmt.count, _relative),
        _compared(
            "Lost for certain", now.total.loss_ratio["min"], before.total.loss_ratio["min"], fmt.percent, _points
        ),
        _compared("On time for certain", on_time.good["min"], on_time_before.good["min"], fmt.percent, _points),
        _compared("Lag p95", lags_now.p95, lags_before.p95, fmt.duration, _relative),
        _compared("Minutes known", now.known_share, before.known_share, fmt.percent, _points),
        *(_status_row(one, other) for one, other in zip(now.attainments, before.attainments, strict=True)),
    ]
    return ReportSection(title, (), None, Table(("", "This range", "Before", "Change"), rows))


def _compared(
    name: str, now: float | None, before: float | None, say: Callable[..., str], change: Callable[[float, float], str]
) -> list[Cell]:
    changed = fmt.NOTHING if now is None or before is None else change(now, before)
    return [Cell(name), Cell(say(now)), Cell(say(before)), Cell(changed)]


def _status_row(now: Attainment, before: Attainment) -> list[Cell]:
    name = f"{wording.OBJECTIVES[now.objective]} budget spent"
    return [
        Cell(name),
        Cell(f"{wording.spent(now)} {wording.STATUSES[now.status].icon}"),
        Cell(f"{wording.spent(before)} {wording.STATUSES[before.status].icon}"),
        Cell(fmt.NOTHING),
    ]


def _relative(now: float, before: float) -> str:
    return f"{100 * (now - before) / before:+.1f} %" if before else fmt.NOTHING


def _points(now: float, before: float) -> str:
    """Format a difference in percentage points: per cent of per cent would mislead."""
    return f"{100 * (now - before):+.3g} points"

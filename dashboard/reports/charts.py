"""The charts of a report as SVG text, without a script: budgets burning down, and a strip of days."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from dashboard.design import LIGHT
from dashboard.reports import wording
from dashboard.reports.model import BurnPoint, Figures, Report
from lagloss_server.base import format as fmt
from lagloss_server.sums.error_budget import BudgetShare, Status

WIDTH: Final = 960
_HUES: Final = (LIGHT.target, LIGHT.open)
_DASHES: Final = ("", ' stroke-dasharray="7 4"')
_INK, _GRID = LIGHT.text, LIGHT.border
_TOP, _BOTTOM, _LEFT, _RIGHT = 14, 236, 64, 110
_DAYS_A_ROW: Final = 31
_DAY, _GAP, _LABEL = 24, 4, 92


def burn_down(report: Report) -> str:
    """Return the share of each budget that is left, over what is known of the range."""
    shown, span, floor = report.burn_down_range, report.span, report.burn_down_floor
    points = [point for point in report.burn_down if point.at_s >= shown.from_s]

    def x(at_s: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at_s - shown.from_s) / shown.length_s

    def y(share: float) -> float:
        return _TOP + (_BOTTOM - _TOP) * (1 - max(share, floor)) / (1 - floor)

    drawn = [_level(y(level), fmt.percent(level)) for level in (1.0, 0.5, 0.0, -0.5, -1.0) if level >= floor]
    drawn += [_text(x(tick), _BOTTOM + 20, wording.local(tick, span.zone), _anchor(x(tick))) for tick in _ticks(report)]
    for which, attainment in enumerate(report.whole.attainments):
        runs = _runs(points, which)
        for run in runs:
            high = [(x(moment), y(left_share.max)) for moment, left_share in run]
            low = [(x(moment), y(left_share.min)) for moment, left_share in reversed(run)]
            drawn.append(f'<polygon points="{_path([*high, *low])}" fill="{_HUES[which]}" fill-opacity="0.15"/>')
            line = f'stroke="{_HUES[which]}" stroke-width="2"{_DASHES[which]}'
            drawn.append(f'<polyline points="{_path(high)}" fill="none" {line}/>')
            if len(run) == 1:  # between two gaps
                drawn.append(f'<circle cx="{high[0][0]:.1f}" cy="{high[0][1]:.1f}" r="3" fill="{_HUES[which]}"/>')
        name = wording.OBJECTIVES[attainment.objective]
        drawn.append(_legend(which, name if runs else f"{name}: none"))
    note = "; ".join(
        f"{wording.OBJECTIVES[shown.objective]}: {wording.left(shown.budget)}" for shown in report.whole.attainments
    )
    return _svg(_BOTTOM + 32, f"Error budget left over time. {note}", drawn)


def days(report: Report) -> str:
    """Draw a square per day, marked by colour and sign; a day of which nothing is known is an empty frame."""
    drawn: list[str] = []
    for index, day in enumerate(report.days):
        row, column = divmod(index, _DAYS_A_ROW)
        x, top = _LABEL + column * (_DAY + _GAP), 4 + row * (_DAY + 10)
        if column == 0:
            drawn.append(_text(0, top + 17, wording.local_day(day.from_s, report.span.zone)[4:], "start"))
        drawn.append(_day(day, x, top, wording.local_day(day.from_s, report.span.zone)))
    rows = -(-len(report.days) // _DAYS_A_ROW)
    top = 4 + rows * (_DAY + 10) + 4
    for index, name in enumerate(wording.STATUSES):
        drawn.append(_square(name, _LABEL + index * 150, top, ""))
        drawn.append(_text(_LABEL + index * 150 + _DAY + 6, top + 17, wording.STATUSES[name].word.lower(), "start"))
    drawn.append(_frame(_LABEL + 600, top, "") + _text(_LABEL + 600 + _DAY + 6, top + 17, "no data", "start"))
    counted = ", ".join(
        f"{number} {wording.STATUSES[name].word.lower()}"
        for name in wording.STATUSES
        if (number := sum(day.status == name and bool(day.known.closed) for day in report.days))
    )
    return _svg(top + _DAY + 8, f"Days by status: {counted or 'no data'}", drawn)


BAR, BAR_HEIGHT = 5, 24
MAX_BARS: Final = 31
MAX_BURN: Final = 2.0
"""Burn rates above it leave the strip."""


def burn_strip(rates: Sequence[float | None]) -> str:
    """Draw burn rates as bars, gaps as gaps, and a line at 1, where the budget is used up exactly."""
    bar = BAR if len(rates) <= MAX_BARS else BAR * MAX_BARS / len(rates)
    width, at_1 = bar * len(rates), BAR_HEIGHT * (1 - 1 / MAX_BURN)
    drawn = []
    for index, rate in enumerate(rates):
        if rate is None:
            continue
        height = max(1.0, BAR_HEIGHT * min(rate, MAX_BURN) / MAX_BURN)
        hue = LIGHT.loss if rate > 1 else LIGHT.ok
        drawn.append(
            f'<rect x="{bar * index:.1f}" y="{BAR_HEIGHT - height:.1f}" width="{bar * 0.8:.1f}" height="{height:.1f}" '
            f'fill="{hue}"/>'
        )
    line = f'<path d="M0 {at_1:g}H{width:.0f}" stroke="{LIGHT.idle}" stroke-dasharray="2 2" fill="none"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{BAR_HEIGHT}" aria-hidden="true">'
    return f"{head}{''.join(drawn)}{line}</svg>"


def _day(day: Figures, left: float, top: float, name: str) -> str:
    if not day.known.closed:
        return _frame(left, top, f"{name}: no data")
    return _square(day.status, left, top, f"{name}: {wording.STATUSES[day.status].word}")


def _frame(x: float, top: float, title: str) -> str:
    return (
        f'<rect x="{x:.0f}.5" y="{top:.0f}.5" width="{_DAY - 1}" height="{_DAY - 1}" rx="3" fill="none" '
        f'stroke="{_GRID}">{_title(title)}</rect>'
    )


_SIGNS: Final[dict[Status, str]] = {
    "met": '<path d="M6 12.5l4 4 8-9" {}/>',
    "missed": '<path d="M7 7l10 10M17 7L7 17" {}/>',
    "unproven": '<path d="M8.5 9.5a3.5 3.5 0 1 1 5 3.2c-1 .5-1.5 1-1.5 2.3M12 18.2v.3" {}/>',
    "none": '<circle cx="12" cy="12" r="5" {}/>',
}
"""Drawn, since a machine without fonts has no such letters."""
_STROKE: Final = 'fill="none" stroke="white" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round"'


def _square(status: Status, x: float, top: float, title: str) -> str:
    return (
        f'<g transform="translate({x:.0f} {top:.0f})">{_title(title)}<rect width="{_DAY}" height="{_DAY}" rx="3" '
        f'fill="{getattr(LIGHT, wording.STATUSES[status].role)}"/>{_SIGNS[status].format(_STROKE)}</g>'
    )


def _runs(points: Sequence[BurnPoint], which: int) -> list[list[tuple[int, BudgetShare]]]:
    """Return the points of an objective without the gaps: no line is drawn across what is not known."""
    runs: list[list[tuple[int, BudgetShare]]] = [[]]
    for point in points:
        left_share = point.left[which]
        if left_share is not None:
            runs[-1].append((point.at_s, left_share))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _ticks(report: Report) -> list[int]:
    """Five moments at most: both ends of what is drawn, and days that begin between them."""
    shown = report.burn_down_range
    begun = (day.from_s for day in report.days if shown.from_s < day.from_s < shown.to_s)
    edges = [shown.from_s, *begun, shown.to_s]
    last = len(edges) - 1
    return [edges[index] for index in sorted({last * part // 4 for part in range(5)})]


def _anchor(x: float) -> str:
    return "start" if x < _LEFT + 1 else "middle"


def _level(y: float, label: str) -> str:
    line = f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
    return line + _text(_LEFT - 8, y + 4, label, "end")


def _legend(which: int, label: str) -> str:
    y, x = _TOP + 18 + 22 * which, WIDTH - _RIGHT + 8
    line = f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{_HUES[which]}" stroke-width="2"{_DASHES[which]}/>'
    return line + _text(x + 29, y + 4, label, "start")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{_INK}">{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _svg(height: float, label: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}" font-family="system-ui, DejaVu Sans, sans-serif">{"".join(drawn)}</svg>'
    )

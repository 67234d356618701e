"""A sparkline: the E2E lag of hours, or of minutes, as a line, and marks at its foot where messages were lost.

Drawn as SVG without text, in colours that are distinct on light and dark; its description stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from dashboard.design import LIGHT, NODE_HUES
from dashboard.queries.pipeline_status import Hour, Targets
from lagloss_server.base import format as fmt

WIDTH_PX: Final = 120
HEIGHT_PX: Final = 28
_FOOT_PX: Final = 8
"""Kept free for the marks of loss."""
_PERCENTILE: Final = 95
"""Shown for hours, whatever percentile the target is of."""
_LINE: Final = NODE_HUES[0]
_TARGET: Final = LIGHT.idle
_LOSS: Final = LIGHT.loss


def sparkline(hours: Sequence[Hour], targets: Targets) -> str:
    """Return the SVG. The line begins at zero and reaches the greatest lag; where that is above a target of the same
    percentile, a dashed line stands at the target. Gaps are gaps. A tall mark: certain loss above the target; a short
    one: within it."""
    top_ms = max((hour.lag_ms for hour in hours if hour.lag_ms is not None), default=0.0)
    step_px = WIDTH_PX / len(hours)
    target_ms = targets.lag_ms if targets.lag_percentile == _PERCENTILE else 0.0
    drawn = [
        _foot(),
        *_target_line(target_ms, top_ms),
        *_lines(hours, top_ms, step_px),
        *_marks(hours, targets.loss, step_px),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{HEIGHT_PX}">'
    return f"{head}{''.join(drawn)}</svg>"


def spoken(hours: Sequence[Hour], targets: Targets, unit: str = "hour") -> str:
    """Describe the sparkline: `E2E p95 of 24 hours: 120 ms to 2.1 s; loss above the target in 3 hours`."""
    lags = [hour.lag_ms for hour in hours if hour.lag_ms is not None]
    if not lags and all(hour.loss_ratio is None for hour in hours):
        return f"no data for the last {fmt.counted(len(hours), unit)}"
    low, high = (fmt.duration(min(lags)), fmt.duration(max(lags))) if lags else (fmt.NOTHING, fmt.NOTHING)
    lag = low if low == high else f"{low} to {high}"
    lossy = [hour.loss_ratio for hour in hours if hour.loss_ratio]
    above = sum(ratio > targets.loss for ratio in lossy)
    note = [f"E2E p95 of the last {fmt.counted(len(hours), unit)}: {lag}"]
    if len(lags) < len(hours):
        note.append(f"{fmt.counted(len(hours) - len(lags), unit)} without data")
    if targets.lag_percentile != _PERCENTILE:
        note.append(f"the target is for {fmt.percentile(targets.lag_percentile)}")
    if above:
        note.append(f"loss above the target in {fmt.counted(above, unit)}")
    if len(lossy) > above:
        note.append(f"loss within the target in {fmt.counted(len(lossy) - above, unit)}")
    return "; ".join(note if lossy else [*note, "no certain loss"])


def _x(position: int, step_px: float) -> float:
    return step_px * (position + 0.5)


def _y(lag_ms: float, top_ms: float) -> float:
    """Pixels from the top; one is kept free there for the line's own width. Negative lags (a clock fault) lie on zero:
    the description has them."""
    room = HEIGHT_PX - _FOOT_PX - 2
    return 1 + room * (1 - max(0.0, lag_ms) / top_ms) if top_ms > 0 else 1 + room


def _foot() -> str:
    """Draw the base line over the whole time, including hours without data."""
    y = HEIGHT_PX - 0.5
    return f'<line x1="0" x2="{WIDTH_PX}" y1="{y}" y2="{y}" stroke="{_TARGET}" stroke-opacity="0.5"/>'


def _target_line(target_ms: float, top_ms: float) -> Iterator[str]:
    if 0 < target_ms < top_ms:
        y = f"{_y(target_ms, top_ms):.1f}"
        yield f'<path d="M0 {y}H{WIDTH_PX}" stroke="{_TARGET}" stroke-dasharray="2 2" fill="none"/>'


def _lines(hours: Sequence[Hour], top_ms: float, step_px: float) -> Iterator[str]:
    """Return a line for each run of hours that are known; a lone one is a dot."""
    for is_known, run in groupby(enumerate(hours), key=lambda item: item[1].lag_ms is not None):
        if is_known:
            places = [f"{_x(index, step_px):g} {_y(hour.lag_ms or 0.0, top_ms):.1f}" for index, hour in run]
            path = "M" + "L".join(places if len(places) > 1 else places * 2)
            yield f'<path d="{path}" stroke="{_LINE}" stroke-width="2" stroke-linecap="round" fill="none"/>'


def _marks(hours: Sequence[Hour], max_loss: float, step_px: float) -> Iterator[str]:
    for index, hour in enumerate(hours):
        if hour.loss_ratio:
            height = _FOOT_PX - 1 if hour.loss_ratio > max_loss else 3
            x, y = _x(index, step_px) - 1.5, HEIGHT_PX - height
            yield f'<rect x="{x:g}" y="{y}" width="3" height="{height}" fill="{_LOSS}"/>'

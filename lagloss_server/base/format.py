"""Formats of numbers and times, one for each wherever they are shown. Pure functions.

The forms are the dashboard's, which users see most often:

- a ratio in per cent with about three digits, `3.2 %`: a blank before the sign, as SI has it, and a plain one, so that
  a text is found as it is typed. From 99 % on there are two decimals: targets lie there, and 99.97 % is not 100 %.
- a duration in its largest unit with one decimal, `340 ms`, `1.2 s`, `3.5 min`, `2 h`, `3 d`: enough to act upon.
- a count with commas, `12,345`.
- bounds with a dash, `1–3`, or `3.2 % – 5 %` of numbers with a unit.
- a clock time `2026-11-21 08:40`; the caller chooses the zone.
- NOTHING for an unknown value; never a zero.

RFC 3339, for programs, is in `lagloss_server.model.window.rfc3339` and `lagloss_server.base.times.moment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final, Protocol

NOTHING: Final = "–"


class LeastAndMost(Protocol):
    """The least and the most that a number can be; None: unknown."""

    @property
    def min(self) -> float | None: ...
    @property
    def max(self) -> float | None: ...


def percent(ratio: float | None, more_digits: int = 0) -> str:
    """Format a ratio: `0.34 %`, `12.3 %`, `99.97 %`, `1,230 %`, `< 0.001 %`."""
    if ratio is None:
        return NOTHING
    value, sign = abs(100 * ratio), "-" if ratio < 0 else ""
    if 0 < value < 0.001 and not more_digits:
        return f"{sign}< 0.001 %"
    if 99.995 <= value < 100 and not more_digits:
        return f"{sign}> 99.99 %"
    digits = 0 if value >= 1_000 else 2 if 99 < value < 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{sign}{_number(value, digits + more_digits)} %"


def percentile(percent: float) -> str:
    """Format which percentile: `p95`, `p99.9`; never rounded to another one."""
    return f"p{percent!r}".removesuffix(".0")


def duration(ms: float | None, more_digits: int = 0) -> str:
    """Format a signed lag or duration: `0.42 ms`, `340 ms`, `1.2 s`, `3.5 min`, `2 h`, `3 d`."""
    if ms is None:
        return NOTHING
    size = abs(ms)
    if size < 1_000:
        digits = 0 if size >= 99.95 or size == 0 else 1 if size >= 1 else 2
        return f"{_number(ms, digits + more_digits)} ms"
    for limit, unit_ms, unit in ((60_000, 1_000, "s"), (3_600_000, 60_000, "min"), (172_800_000, 3_600_000, "h")):
        if size < limit:
            return f"{_number(ms / unit_ms, (1 if size < 100 * unit_ms else 0) + more_digits)} {unit}"
    return f"{_number(ms / 86_400_000, 1 + more_digits)} d"


def duration_s(seconds: float | None, more_digits: int = 0) -> str:
    return duration(None if seconds is None else 1_000 * seconds, more_digits)


def delivered_by_commit(committed_by: Mapping[str, str]) -> list[str]:
    """Return a sentence for each destination whose deliveries are the commits of its consumer group."""
    return [f"{name}: delivered once the consumer group {group} has committed" for name, group in committed_by.items()]


def ago(seconds: float) -> str:
    """Format an age: `just now`, `12 s ago`, `3.5 min ago`."""
    return "just now" if seconds < 2 else f"{duration_s(round(seconds) if seconds < 60 else seconds)} ago"


def amount(value: float, unit: str) -> str:
    """Format a number of a rule in its unit: `ratio`, `ms`, `s`, `messages` or `times`."""
    match unit:
        case "messages":
            return counted(round(value), "message")
        case "ratio":
            return percent(value)
        case "ms":
            return duration(value)
        case "s":
            return duration_s(value)
    return f"{_number(value, 1)} times"


def against(form: Callable[[float, int], str], value: float, target: float) -> tuple[str, str]:
    """Format a value and its target, with further digits if they would read the same and are not."""
    pairs = [(form(value, more), form(target, more)) for more in range(5)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def count(number: float | None) -> str:
    """Format a count: `12,345`."""
    return NOTHING if number is None else f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 message`, `12,345 messages`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def interval(form: Callable[[float], str], low: float, high: float, dash: str = " – ") -> str:
    """Format both bounds, or one if they read the same."""
    return form(low) if form(low) == form(high) else f"{form(low)}{dash}{form(high)}"


def count_interval(bounds: LeastAndMost | None) -> str:
    """Format bounds of a count: `3`, or `1–3` if they differ."""
    if bounds is None or bounds.min is None or bounds.max is None:
        return NOTHING
    return interval(count, bounds.min, bounds.max, "–")


def percent_interval(bounds: LeastAndMost | None) -> str:
    """Format bounds of a ratio: `3.2 %`, or `3.2 % – 5 %` if they differ."""
    if bounds is None or bounds.min is None or bounds.max is None:
        return NOTHING
    return interval(percent, bounds.min, bounds.max)


def sampled(sample: float | None) -> str:
    """Format a sample: `sampled 10 %`; a window stored before results had a sample is just `sampled`."""
    return "sampled" if sample is None else f"sampled {percent(sample)}"


def reason(text: str | None, most: int = 100) -> str:
    """Format why a message was filtered or dead; None: not known."""
    return "unknown" if text is None else text if len(text) <= most else f"{text[: most - 1]}…"


def size(of_bytes: int) -> str:
    """Format a size: `512 B`, `8.2 kB`, `1.4 GB`."""
    shown, unit = float(of_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if shown < 1_000:
            break
        shown, unit = shown / 1_000, larger
    return f"{_number(shown, 0 if unit == 'B' or shown >= 100 else 1)} {unit}"


def datetime_of(epoch_s: float, zone: tzinfo = UTC) -> datetime:
    """Return the moment, or of those that a datetime can hold the nearest: whatever a record has as its timestamp."""
    try:
        return datetime.fromtimestamp(epoch_s, zone)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=zone) if epoch_s > 0 else datetime.min.replace(tzinfo=zone)


def clock(epoch_s: float, zone: tzinfo = UTC, *, seconds: bool = False, date: bool = False) -> str:
    """Format a clock time: `08:40`, `08:40:07` or `2026-11-21 08:40`."""
    form = ("%Y-%m-%d " if date else "") + ("%H:%M:%S" if seconds else "%H:%M")
    return datetime_of(epoch_s, zone).strftime(form)


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""Times as programs write them, numbers or text, in ms since the epoch.

This is the one definition of what is a time wherever one comes in; docs/taps.md describes it under Times.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal

from lagloss.wire.format import MAX_TIME_MS

Unit = Literal["s", "ms", "us", "ns"]

NOT_A_TIME: Final = (
    "expected a time: s, ms, µs or ns since 1970, or RFC 3339 with a UTC offset, such as 2026-11-21T08:40:00Z"
)
_PER_MS: Final[dict[Unit, int]] = {"us": 1_000, "ns": 1_000_000}
"""Integers: ns of today do not fit a float, and an integer divided by one is rounded only once."""
_MIN_TIME_MS: Final = -62_135_596_800_000
"""The beginning of the year 1."""
_INTEGERS: Final = 1 << 63
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}(\.[0-9]+)?")
_ISO: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?"
    r"(?:([Zz])|([+-][0-9]{2})(?::?([0-9]{2}))?)?"
)
_DAY_MIN: Final = 24 * 60


def read_time(value: object, unit: Unit | None = None, zone: tzinfo | None = None) -> float:
    """Return a number, or a text, as ms since the epoch.

    Args:
        unit: of numbers; by default their size says it.
        zone: of texts of ISO 8601 without an offset; by default these are refused: any zone would be a guess.

    Raises:
        ValueError: for anything else, and for a time that is not of the years 1 to 9999.
    """
    if isinstance(value, str):
        time_ms = _of_text(value, unit, zone)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        time_ms = _of_number(value, unit)
    else:
        time_ms = None
    if time_ms is None or not _MIN_TIME_MS <= time_ms <= MAX_TIME_MS:
        raise ValueError(NOT_A_TIME)
    return time_ms


def _of_number(value: float, unit: Unit | None) -> float | None:
    size = abs(value)
    if not size < _INTEGERS:  # nor is NaN
        return None
    unit = unit or ("s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns")
    return value if unit == "ms" else value * 1e3 if unit == "s" else value / _PER_MS[unit]


def _of_text(text: str, unit: Unit | None, zone: tzinfo | None) -> float | None:
    number = _NUMBER.fullmatch(text)
    if number:
        return _of_number(float(text) if number[1] else int(text), unit)
    parts = _ISO.fullmatch(text)
    try:
        return None if parts is None else _of_iso(parts, zone)
    except ValueError:  # no such day, hour or minute
        return None


def _of_iso(parts: re.Match[str], zone: tzinfo | None) -> float | None:
    year, month, day, hour, minute, second, fraction, utc, offset_hours, offset_minutes = parts.groups()
    seconds = int(second or 0)
    moment = datetime(int(year), int(month), int(day), int(hour), int(minute), tzinfo=UTC)
    if offset_hours:
        ahead_min = 60 * int(offset_hours) + int(f"{offset_hours[0]}{offset_minutes or 0}")
        if abs(ahead_min) >= _DAY_MIN or int(offset_minutes or 0) > 59:
            return None
        seconds -= 60 * ahead_min
    elif not utc:
        if zone is None:
            return None
        seconds -= round((moment.replace(tzinfo=zone).utcoffset() or timedelta()).total_seconds())
    # Second 60 is a leap second, or 59.9 that a program has rounded: as for POSIX, the first of the next minute.
    if int(second or 0) > 60:
        return None
    ms = int(fraction[:18]) / 10.0 ** (len(fraction[:18]) - 3) if fraction else 0.0
    return (moment.timestamp() + seconds) * 1e3 + ms

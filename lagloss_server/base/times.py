"""Times that people type, and times as text: RFC 3339, or relative to now."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, tzinfo
from typing import Final

from lagloss.wire.times import read_time
from lagloss_server.base.errors import BadTime
from lagloss_server.base.fields import parse_duration_ms

_RELATIVE: Final = re.compile(r"-(\d.*)")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MAX_S: Final = 7_258_118_400
"""2200: what stands further out overflows sooner or later, in dates and in the database."""


def parse_time_s(text: str, now_s: float | None = None) -> float:
    """Parse `-2h`, `-15m`, `now`, a day, or what `read_time` reads into epoch seconds; one without an offset is UTC.

    Raises:
        BadTime: for anything else, and for a time before 1970 or after 2200.
    """
    time_s = parse_any_time_s(text, time.time() if now_s is None else now_s, UTC)
    if not 0 <= time_s < _MAX_S:
        raise BadTime(text=text)
    return time_s


def parse_any_time_s(text: str, now_s: float, zone: tzinfo) -> float:
    """As `parse_time_s`, of any year; a time without an offset is of the zone.

    Raises:
        BadTime: it is none.
    """
    if text == "now":
        return now_s
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative:
            return now_s - parse_duration_ms(relative[1]) / 1_000
        return read_time(f"{text}T00:00" if _DAY.fullmatch(text) else text, zone=zone) / 1_000
    except ValueError as error:
        raise BadTime(text=text) from error


def moment(value: datetime | None) -> str | None:
    """Format as RFC 3339 in UTC, to the millisecond."""
    return None if value is None else value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Times as text: RFC 3339, or relative to now."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from lagloss_server.errors import BadTime
from lagloss_server.fields import parse_duration_ms

_RELATIVE = re.compile(r"-(\d.*)")
_MAX_S: Final = 7_258_118_400
"""2200: what stands further out overflows sooner or later, in dates and in the database."""


def parse_time_s(text: str, now_s: float | None = None) -> float:
    """Parse `2026-11-21T08:40:00Z`, `-2h`, `-15m` or `now` into epoch seconds; a time without zone is UTC.

    Raises:
        BadTime: for anything else, and for a time before 1970 or after 2200.
    """
    now_s = time.time() if now_s is None else now_s
    if text == "now":
        return now_s
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative:
            found = now_s - parse_duration_ms(relative[1]) / 1000
        else:
            at = datetime.fromisoformat(text)
            found = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except ValueError as error:
        raise BadTime(text=text) from error
    if not 0 <= found < _MAX_S:
        raise BadTime(text=text)
    return found


def moment(at: datetime | None) -> str | None:
    """Format as RFC 3339 in UTC, to the millisecond."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

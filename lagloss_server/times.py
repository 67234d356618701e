"""Times as text: RFC 3339, or relative to now."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from lagloss_server.errors import BadTime
from lagloss_server.fields import parse_duration_ms

_RELATIVE = re.compile(r"-(\d.*)")


def parse_time_s(text: str, now_s: float | None = None) -> float:
    """Parse `2026-11-21T08:40:00Z`, `-2h`, `-15m` or `now` into epoch seconds; a time without zone is UTC.

    Raises:
        BadTime: for anything else.
    """
    now_s = time.time() if now_s is None else now_s
    if text == "now":
        return now_s
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative:
            return now_s - parse_duration_ms(relative[1]) / 1000
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadTime(text=text) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def moment(at: datetime | None) -> str | None:
    """Format as RFC 3339 in UTC, to the millisecond."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""When a scheduled report is due: the times of an RFC 5545 rule on the clock of a time zone."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Final
from zoneinfo import ZoneInfo

import dateutil.rrule

FIRST: Final = datetime(2024, 1, 1)  # noqa: DTZ001  # on the clock of whatever zone the schedule names
"""DTSTART of every rule: midnight on a Monday that begins a month, a quarter and a year. What a rule leaves open is
taken from it, and INTERVAL counts from it."""

_PART: Final = re.compile(r"FREQ|INTERVAL|WKST|BY(?:MONTH|WEEKNO|YEARDAY|MONTHDAY|DAY|HOUR|MINUTE|SETPOS)")
_FREQUENCIES: Final = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_SHORTEST: Final = timedelta(hours=1)
_A_DAY_OF_TIMES: Final = 25
_MOST_SHIFT: Final = timedelta(days=1)
"""More than any clock is put forward or back."""
_MOST_SWAPPED: Final = 3
"""Times that may come in another order than their clock's: as many as fit in such a step, and one."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A rule that `parse` has looked at, and the zone (an IANA name) whose clock it means.

    A time that a clock put forward leaves out is as long after midnight as if it had not been put forward; one that
    comes twice is the first of the two (RFC 5545, 3.3.5).
    """

    rule: str
    zone: str

    @classmethod
    def parse(cls, text: str, zone: str) -> Schedule:
        """Return the schedule that an RRULE's text stands for.

        Raises:
            ValueError: it is no rule, never comes, comes more often than each hour, or ends.
        """
        rule = text.strip().upper().removeprefix("RRULE:")
        parts = dict(part.partition("=")[::2] for part in rule.split(";"))
        unknown = [part for part in parts if not _PART.fullmatch(part)]
        if unknown:
            raise ValueError(
                f"expected parts of RFC 5545 rules other than COUNT, UNTIL, BYSECOND and DTSTART, found {unknown[0]!r}"
            )
        if parts.get("FREQ") not in _FREQUENCIES:
            raise ValueError(f"expected FREQ={', '.join(_FREQUENCIES)}, found {parts.get('FREQ') or 'none'}")
        if not re.fullmatch(r"[1-9]\d{0,3}", parts.get("INTERVAL", "1")):
            raise ValueError(f"expected INTERVAL from 1 to 9999, found {parts['INTERVAL']}")
        _check_times(rule)
        return cls(rule, zone)

    def __str__(self) -> str:
        return f"{self.rule} {self.zone}"

    def next_after(self, now_s: float, count: int) -> list[int]:
        """So many times after a moment, in order (epoch s); fewer where the calendar (year 9999) ends."""
        later = self._clock(now_s) - _MOST_SHIFT
        times = (self._epoch_s(time) for time in _recurrence(self.rule).xafter(later))
        return sorted(islice((time for time in times if time > now_s), count + _MOST_SWAPPED))[:count]

    def last_until(self, now_s: float) -> int:
        """Return the newest time that is not after a moment (epoch s); before the first, the moment that all rules
        begin."""
        later = self._clock(now_s) + _MOST_SHIFT
        newest = deque(takewhile(lambda time: time <= later, _times(self.rule)), maxlen=2 * _A_DAY_OF_TIMES)
        return max((time_s for time_s in map(self._epoch_s, newest) if time_s <= now_s), default=self._epoch_s(FIRST))

    def _clock(self, now_s: float) -> datetime:
        return datetime.fromtimestamp(now_s, ZoneInfo(self.zone)).replace(tzinfo=None)

    def _epoch_s(self, time: datetime) -> int:
        return int(time.replace(tzinfo=ZoneInfo(self.zone), fold=0).timestamp())


def _check_times(rule: str) -> None:
    try:
        first = list(islice(_times(rule), _A_DAY_OF_TIMES))
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected an RFC 5545 rule such as FREQ=WEEKLY;BYDAY=MO;BYHOUR=8, found {error}") from error
    if not first:
        raise ValueError("expected a rule that occurs, found one that never does")
    if any(later - earlier < _SHORTEST for earlier, later in pairwise(first)):
        raise ValueError("expected times at least an hour apart, found closer ones")


def _times(rule: str) -> Iterator[datetime]:
    """Yield times on the zone's clock, oldest first."""
    return iter(_recurrence(rule))


@functools.lru_cache(maxsize=256)
def _recurrence(rule: str) -> dateutil.rrule.rrule:
    """Return the recurrence, which caches the times that it has reached."""
    recurrence = dateutil.rrule.rrulestr(rule, dtstart=FIRST, cache=True)
    if not isinstance(recurrence, dateutil.rrule.rrule):
        raise ValueError("several rules")  # noqa: TRY004  # of a text, not of a type
    return recurrence

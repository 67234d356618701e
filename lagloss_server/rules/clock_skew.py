"""Clock skew: how far a host's clock is from the broker's, measured on the reports that its emitters send.

A report carries `sent_at` of the emitter's clock and is stamped with the broker's append time. The difference is the
clock's error and the time in transit; the smallest of many has the least of the latter. It is positive where the host
is behind, negative where it is ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

MINUTE_MS: Final = 60_000
MINUTES_KEPT: Final = 2
"""The last minute of reports lies in two minutes of the clock."""
STALE_MS: Final = 60_000
"""A closing report that was appended longer after it was sent is not live: a successor settled the account."""
AGREE_WITHIN_MS: Final = 1_000
"""Clocks that are less than this apart agree: what transit and drift make of a difference must not change results."""


@dataclass(frozen=True, slots=True)
class Skew:
    """An emitter's skew over its last minute of reports.

    `smallest` holds (minute, smallest append time - `sent_at` in ms), newest first: of the two newest minutes of append
    time (epoch ms // 60,000) in which it reported at all.
    """

    smallest: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, appended_ms: int, sent_at_ms: int, *, closed: bool = False) -> Self:
        """Return the skew that one report shows: none if it closes an account that ended long before."""
        if closed and appended_ms - sent_at_ms > STALE_MS:
            return cls()
        return cls(((appended_ms // MINUTE_MS, appended_ms - sent_at_ms),))

    @classmethod
    def stored(cls, smallest: Sequence[Sequence[int]]) -> Self:
        """Restore the skew from the table `emitter`."""
        return cls(tuple((minute, ms) for minute, ms in smallest))

    def merged(self, other: Skew) -> Skew:
        """Merge both; the order does not matter."""
        found: dict[int, int] = {}
        for minute, ms in (*self.smallest, *other.smallest):
            found[minute] = min(ms, found.get(minute, ms))
        return Skew(tuple(sorted(found.items(), reverse=True)[:MINUTES_KEPT]))

    @property
    def ms(self) -> int:
        """The smallest difference; 0 if nothing was reported."""
        return min((ms for _, ms in self.smallest), default=0)


def apart_ms(skews_ms: Iterable[int]) -> int:
    """Return how far apart any two of these clocks are, the broker's among them: in whole seconds, rounded up, so that
    a result does not change with each report; 0 below one second."""
    found = [0, *skews_ms]
    apart = max(found) - min(found)
    return 0 if apart < AGREE_WITHIN_MS else -(-apart // 1000) * 1000

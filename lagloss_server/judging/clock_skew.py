"""Clock skew: how far a host's clock is from the broker's, measured on the reports that its emitters send.

A report carries `sent_at` of the emitter's clock and is stamped with the broker's append time. The difference is the
clock's error and the time in transit; the smallest of many has the least of the latter. It is positive where the host
is behind, negative where it is ahead. A clock that was set, and perhaps set back, has left its mark on the beacons that
were observed meanwhile, so the windows of that time go on counting it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

MINUTE_MS: Final = 60_000
MINUTES_KEPT: Final = 2
"""The last minute of reports lies in two minutes of the clock."""
STALE_MS: Final = 60_000
"""A closing report that was appended longer after it was sent is not live: it waited in a spool."""
STEP_MS: Final = 5_000
"""An earlier minute counts from this difference on: less is within rule 4's own margin, and may be transit."""
STEPS_KEPT: Final = 30
_STORED: Final = ("smallest", "set_back")
AGREE_WITHIN_MS: Final = 1_000
"""Clocks that are less than this apart agree: what transit and drift make of a difference must not change results."""


@dataclass(frozen=True, slots=True)
class Skew:
    """An emitter's skew over its last minute of reports, and what it was before.

    `smallest` holds (minute, smallest append time - `sent_at` in ms), newest first: of the two newest minutes of append
    time (epoch ms // 60,000) in which it reported at all, and of those earlier ones that `readings_ms` needs.
    `set_back` holds what these would hide of a clock that is set back for a moment, (minute, largest in ms), newest
    first: of reports that were sent earlier than the one before, which no transit can make them.
    """

    smallest: tuple[tuple[int, int], ...] = ()
    set_back: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls, appended_ms: int, sent_at_ms: int, before_ms: int = 0, *, closed: bool = False, unfinished: bool = False
    ) -> Self:
        """Return the skew that one report shows: none if it closes an account that ended long before, or that another
        process may have settled. `before_ms`: `sent_at` of the report before, which is later than that of a closing
        report."""
        if closed and (unfinished or appended_ms - sent_at_ms > STALE_MS):
            return cls()
        reading = (appended_ms // MINUTE_MS, appended_ms - sent_at_ms)
        return cls((reading,), (reading,) if sent_at_ms < before_ms and reading[1] >= STEP_MS and not closed else ())

    @classmethod
    def stored(cls, columns: Mapping[str, Sequence[Sequence[int]]]) -> Self:
        """Restore the skew from the table `emitter`."""
        smallest, set_back = (tuple((minute, ms) for minute, ms in columns.get(name, ())) for name in _STORED)
        return cls(smallest, set_back)

    def to_store(self) -> dict[str, tuple[tuple[int, int], ...]]:
        return dict(zip(_STORED, (self.smallest, self.set_back), strict=True))

    def merged(self, other: Skew) -> Skew:
        """Merge both; the order does not matter. A minute of both, of which one has three later ones, can keep the
        larger difference, which makes margins wider."""
        # one report seldom shows a smaller difference
        if self.smallest and len(other.smallest) == 1 and not other.set_back:
            (this_minute, this_ms), (last_minute, least_ms) = other.smallest[0], self.smallest[0]
            if this_minute == last_minute and this_ms >= least_ms:
                return self
        least: dict[int, int] = {}
        for minute, ms in (*self.smallest, *other.smallest):
            least[minute] = min(ms, least.get(minute, ms))
        newest = sorted(least.items(), reverse=True)
        most: dict[int, int] = {}
        for minute, ms in (*self.set_back, *other.set_back):
            most[minute] = max(ms, most.get(minute, ms))
        set_back = sorted(most.items(), reverse=True)[:STEPS_KEPT]
        return Skew((*newest[:MINUTES_KEPT], *_extremes(newest)), tuple(set_back))

    @property
    def ms(self) -> int:
        """The smallest difference in the two newest minutes; 0 if nothing was reported."""
        return min((ms for _, ms in self.smallest[:MINUTES_KEPT]), default=0)

    def readings_ms(self, window_start_s: int) -> list[int]:
        """Return the differences that count for a window: the newest, that of each minute from its start on in which
        the clock was further off than rule 4 allows for (from a minute before, if it was behind: the minute in which it
        was set right hides that), and those that it was set back by, until two minutes later, when minutes show them.
        """
        steps = (
            ms for minute, ms in self.smallest if (minute + (ms > 0)) * 60 >= window_start_s and abs(ms) >= STEP_MS
        )
        set_back = (ms for minute, ms in self.set_back if (minute + MINUTES_KEPT) * 60 >= window_start_s)
        return [self.ms, *steps, *set_back]


NO_SKEW: Final = Skew()
"""Of an emitter that reported nothing yet."""


def _extremes(newest: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the earlier minutes that were further off than each later one, but for the newest, which goes on."""
    extremes: list[tuple[int, int]] = []
    low = high = newest[1][1] if len(newest) > 1 else 0
    for minute, ms in newest[MINUTES_KEPT:]:
        if abs(ms) >= STEP_MS and not low <= ms <= high:
            extremes.append((minute, ms))
            low, high = min(low, ms), max(high, ms)
    return extremes[:STEPS_KEPT]


def apart_ms(skews_ms: Iterable[int]) -> int:
    """Return how far apart any two of these clocks are, the broker's among them: in whole seconds, rounded up, so that
    a result does not change with each report; 0 below one second."""
    skews = [0, *skews_ms]
    apart = max(skews) - min(skews)
    return 0 if apart < AGREE_WITHIN_MS else -(-apart // 1000) * 1000

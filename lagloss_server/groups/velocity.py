"""Velocity of a consumer group in one partition: how fast it commits, how fast the log grows, and a status by both.

Rates are over the readings of the last five minutes. Whatever lies before a reset (offsets that went backwards: the
group was rewound, the topic created anew) is left out, so that a reset is neither speed nor its absence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final, Literal, get_args

from msgspec import Struct

SPAN_MS: Final = 300_000
"""Readings within this time of the newest one make a velocity."""
LEAST_MS: Final = 60_000
"""Fewer make none: a group that commits every few seconds has to have done so more than once. Commits of a group
without members that do not move for this long have stopped."""
FULL_MS: Final = 240_000
"""What the readings have to cover before a lag that grows is held against a group, and how long the commits of one with
members may stand still: some commit once per minute."""

Status = Literal["ok", "not committed", "beyond the end", "warning", "stalled", "stopped"]
"""After Burrow. `ok`: nothing waits, or nothing did at some time of the span, or the group moves and its lag does not
grow; `warning`: it moves, and its lag grows; `stalled`: messages wait, and it has members whose commits do not move;
`stopped`: messages wait, nothing is committed, and it has no members. `not committed`: the log holds offsets, and the
group has committed none; `beyond the end`: it has committed an offset that the log did not hold then."""
NOT_COMMITTED: Final = "not committed"
BEYOND_THE_END: Final = "beyond the end"
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
"""From best to worst."""


class OffsetReading(Struct, frozen=True, gc=False):
    """Offsets of a partition at a moment (epoch ms): committed by the group (None: nothing that holds), and those that
    the log holds, [start, end). `is_done`: no record waits, whatever lies before the end: markers of transactions.
    `counts`: what waits is known; else `next` and `lag` are the most that it can be."""

    at_ms: int
    committed: int | None
    start: int
    end: int
    is_done: bool = False
    counts: bool = True

    @property
    def next(self) -> int:
        """The offset at which the group continues: where nothing was committed, or what was committed is deleted, the
        log's start."""
        return self.start if self.committed is None else max(self.committed, self.start)

    @property
    def lag(self) -> int:
        return 0 if self.is_done else max(0, self.end - self.next)

    def is_reset_of(self, before: OffsetReading) -> bool:
        """Return whether offsets went backwards since an earlier reading."""
        is_rewound = before.committed is not None and (self.committed is None or self.committed < before.committed)
        return is_rewound or self.start < before.start or self.end < before.end


class Velocity(Struct, frozen=True):
    """Offsets per second that the group commits, and that are appended. None: not known."""

    commits_per_s: float | None = None
    appends_per_s: float | None = None

    @property
    def gain_per_s(self) -> float | None:
        """Offsets per second by which the lag shrinks; negative where it grows."""
        if self.commits_per_s is None or self.appends_per_s is None:
            return None
        return self.commits_per_s - self.appends_per_s


UNKNOWN_VELOCITY: Final = Velocity()


def recent(readings: Sequence[OffsetReading]) -> Sequence[OffsetReading]:
    """Return the readings within the span of the newest one and since the last reset. `readings`: oldest first."""
    if not readings:
        return readings
    first = bisect_left(readings, readings[-1].at_ms - SPAN_MS, key=lambda reading: reading.at_ms)
    for index in range(len(readings) - 1, first, -1):
        if readings[index].is_reset_of(readings[index - 1]):
            return readings[index:]
    return readings[first:]


def velocity(readings: Sequence[OffsetReading]) -> Velocity:
    """Return the velocity by these readings, oldest first. A partition of which nothing was ever committed has commits
    of 0 per second; one whose first commit came meanwhile, those since."""
    readings_ = recent(readings)
    committed = [(reading.at_ms, reading.committed) for reading in readings_ if reading.committed is not None]
    appends = _rate([(reading.at_ms, reading.end) for reading in readings_])
    return Velocity(_rate(committed) if committed else None if appends is None else 0.0, appends)


def catches_up_s(lag: int, moving: Velocity) -> float | None:
    """Return the seconds until nothing waits, at this velocity; None if the lag does not shrink, or is not known to."""
    if lag == 0:
        return 0.0
    gain = moving.gain_per_s
    return None if gain is None or gain <= 0 else lag / gain


def status(readings: Sequence[OffsetReading], members: int | None) -> Status | None:
    """Return the status of a partition by these readings, oldest first, and the number of the group's members (None:
    not known); None where they do not suffice."""
    readings_ = recent(readings)
    if not readings_:
        return None
    if readings_[-1].lag == 0:
        return "ok"
    if readings_[-1].committed is None:
        return NOT_COMMITTED
    still_ms = _still_ms(readings_)
    if members == 0 and still_ms >= LEAST_MS:
        return "stopped"
    if still_ms >= FULL_MS:
        return "stalled"
    if any(reading.lag == 0 for reading in readings_):
        return "ok"
    covered_ms = readings_[-1].at_ms - readings_[0].at_ms
    if covered_ms < FULL_MS:
        return "ok" if covered_ms >= LEAST_MS and readings_[-1].lag < readings_[0].lag else None
    return "warning" if _grows(readings_) else "ok"


def worst(statuses: Iterable[Status | None]) -> Status | None:
    """Return the worst of those that are known."""
    return max((status_ for status_ in statuses if status_ is not None), key=STATUSES.index, default=None)


def _rate(points: Sequence[tuple[int, int]]) -> float | None:
    """Return the mean increase per second between the first and the last of (epoch ms, offset)."""
    if not points or points[-1][0] - points[0][0] < LEAST_MS:
        return None
    return 1_000 * (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _still_ms(readings: Sequence[OffsetReading]) -> int:
    """Return for how long records have waited without a commit, by the newest of these readings."""
    newest = readings[-1]
    still = takewhile(lambda reading: reading.lag and reading.committed == newest.committed, reversed(readings))
    return newest.at_ms - min(reading.at_ms for reading in still)


def _grows(readings: Sequence[OffsetReading]) -> bool:
    """Return whether every lag of the newer half of the time is above all of the older half: the ups and downs of a
    group that commits in bursts are no growth."""
    middle_ms = (readings[0].at_ms + readings[-1].at_ms) / 2
    older = [reading.lag for reading in readings if reading.at_ms < middle_ms]
    newer = [reading.lag for reading in readings if reading.at_ms >= middle_ms]
    return bool(older and newer) and min(newer) > max(older)

"""The clocks of judgements: the machine's, but for its steps, and the moment up to which all reports are followed.

What is due, silent or overdue is judged by them. A machine's clock that is set an hour ahead, and back again, would
declare every emitter silent at once, so time goes on as the monotonic clock does. Where the two have come apart, the
broker says which of them is right: its append times are the other half of every comparison. It also says whether the
time was right to begin with.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import structlog

log = structlog.get_logger()

Stamps = Mapping[int, tuple[int, int]]
"""By partition, offset and append time (epoch ms) of a record."""

APART_MS: Final = 1_000
"""A machine's clock that is this far from the monotonic one was set, and did not drift."""
RECENT_MS: Final = 30_000
"""A report that was followed within this time says what time it is: each emitter sends one at least every 10 s."""
WRONG_MS: Final = 30_000
"""Time that is this far from the broker's to begin with is set to it. Less is no harm: silence takes 60 s."""
DOUBT_MS: Final = 10_000
"""For so long a broker is waited for that agrees with the time: each emitter reports at least this often."""
SETTLED_MS: Final = 15_000
"""After a step, nothing is judged for so long: whoever lives reports in this time, by the new time."""


class JudgementClock:
    """Clock that both threads of the aggregator read; `heard` is called where reports are followed.

    Args:
        wall: the machine's clock, in epoch s.
        monotonic: a clock that is never set, in s.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset_ms = (wall() - monotonic()) * 1000
        self._heard: tuple[int, float] | None = None
        """Append time of the newest report (epoch ms), and when it was followed (monotonic ms)."""
        self._stepped_ms = -math.inf
        """When the time was last set (monotonic ms)."""
        self._is_checked = False
        """Whether the time has been compared with a broker's."""
        self._last: dict[int, tuple[int, int, float]] = {}
        """By partition, offset and append time of the last report, and when it was followed (monotonic ms)."""
        self._apart_ms: dict[int, float] = {}
        """By partition, by how much the time is ahead of its broker's at least; negative: behind."""
        self._doubted_ms: float | None = None
        """Since when no broker has agreed with the time (monotonic ms)."""
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the time, in epoch ms."""
        with self._lock:
            wall_ms, monotonic_ms = self._wall() * 1000, self._monotonic() * 1000
            kept_ms = monotonic_ms + self._offset_ms
            if abs(wall_ms - kept_ms) > APART_MS and self._broker_is_nearer(wall_ms, kept_ms, monotonic_ms):
                self._offset_ms, self._stepped_ms = wall_ms - monotonic_ms, monotonic_ms
                self._is_checked, self._doubted_ms = True, None
            return int(monotonic_ms + self._offset_ms)

    def is_settled(self) -> bool:
        """Return whether the time is in no doubt, and was not set lately: until each emitter has reported since then,
        all of them would be taken for silent."""
        with self._lock:
            return self._doubted_ms is None and self._monotonic() * 1000 - self._stepped_ms >= SETTLED_MS

    def heard(self, appended_ms: int, last: Stamps = MappingProxyType({})) -> None:
        """Note the append time of the newest report that was followed just now; `last`: the last ones of partitions,
        if brokers stamped them."""
        with self._lock:
            now_ms = self._monotonic() * 1000
            self._heard = appended_ms, now_ms
            self._last |= {partition: (*stamp, now_ms) for partition, stamp in last.items()}

    def check(self, asked_s: float, ends: Mapping[int, int]) -> None:
        """Compare the time with the brokers', until one agrees with it; set it if none does. A report behind one of
        these ends was appended between when they were asked for (monotonic s) and when it was followed."""
        with self._lock:
            if self._is_checked:
                return
            for partition, (offset, appended_ms, followed_ms) in self._last.items():
                if offset >= ends.get(partition, math.inf):
                    ahead_ms = asked_s * 1000 + self._offset_ms - appended_ms
                    behind_ms = appended_ms - followed_ms - self._offset_ms
                    self._apart_ms[partition] = max(ahead_ms, 0.0) - max(behind_ms, 0.0)
            if self._apart_ms:
                self._judge(min(self._apart_ms.values(), key=abs), self._monotonic() * 1000)

    def _judge(self, apart_ms: float, now_ms: float) -> None:
        """Set the time if it is this far from that of the nearest broker."""
        if abs(apart_ms) <= WRONG_MS:
            self._is_checked, self._doubted_ms = True, None
        elif self._doubted_ms is None:
            self._doubted_ms = now_ms
        elif now_ms - self._doubted_ms >= DOUBT_MS:
            self._offset_ms, self._stepped_ms = self._offset_ms - apart_ms, now_ms
            self._is_checked, self._doubted_ms = True, None
            log.warning("clock corrected", ahead_s=round(apart_ms / 1000), note="this machine's clock is wrong")

    def _broker_is_nearer(self, wall_ms: float, kept_ms: float, monotonic_ms: float) -> bool:
        """Return whether the broker's clock agrees with the machine's rather than with the one that was kept."""
        if self._heard is None or monotonic_ms - self._heard[1] > RECENT_MS:
            return False
        broker_ms = self._heard[0] + monotonic_ms - self._heard[1]
        return abs(wall_ms - broker_ms) < abs(kept_ms - broker_ms)


@dataclass
class Catchup:
    """The newest moment (epoch ms) whose end offsets of the reports topic the follower has passed; 0 before the first.

    Judging by the wall clock instead would take emitters for silent whose reports merely wait to be followed.
    """

    caught_up_ms: int = 0
    passed: tuple[float, Mapping[int, int]] | None = None
    """Those end offsets, and when they were asked for (monotonic s)."""
    _asked_ms: int = 0
    _asked_s: float = 0.0
    _ends: Mapping[int, int] = field(default_factory=dict)

    def update(self, now_ms: int, positions: Mapping[int, int], ends: Callable[[], Mapping[int, int]]) -> int:
        """Compare the follower's positions with the ends asked for last; ask anew once they are passed."""
        if not self._asked_ms:
            asked_s, ends_ = time.monotonic(), ends()
            if any(offset > ends_.get(partition, 0) for partition, offset in positions.items()):
                return self.caught_up_ms  # the log's tail is lost: others may have these offsets, once that is noticed
            self._asked_ms, self._asked_s, self._ends = now_ms, asked_s, ends_
        if all(positions.get(partition, 0) >= end for partition, end in self._ends.items()):
            self.caught_up_ms, self._asked_ms = self._asked_ms, 0
            self.passed = self._asked_s, self._ends
        return self.caught_up_ms

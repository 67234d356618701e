"""Comparison of a table with the rows that its tap saw: a message whose row is not there is lost afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from sqlalchemy.exc import DBAPIError

from lagloss_server.base.errors import TableUnreadable
from taps.metrics import TapMetrics
from taps.plan_runner import CLAIM_S, PRUNE_S
from taps.store import NotOwned
from taps.tables.reading import TableReader
from taps.tables.recheck_store import KEPT_BEYOND_MS, ComparedMinute, DueMinute, RecheckStore
from taps.tables.remembered import MAX_ROWS, NotComparable, compared, next_look_ms

log = structlog.get_logger()

IDLE_S: Final = 5.0
"""Between two looks for minutes that are due."""
FAILED_S: Final = 60.0
RETRY_MS: Final = 600_000
"""After which a minute is tried again that could not be compared."""
REST: Final = 9.0
"""A pause lasts as many times as long as the comparison before it took, which leaves the database nine tenths of the
time."""
MAX_MINUTES: Final = 60
"""That are compared together, where their rows are few."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class RecheckRunner:
    """Compares one tap's rows again while this process owns it, until it is stopped. It has a reader of its own, so
    that a slow comparison holds up no read. Used by one thread at a time, save for `stop`.

    Args:
        clock_ms: returns the time in epoch ms.
    """

    def __init__(
        self, store: RecheckStore, reader: TableReader, metrics: TapMetrics, clock_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._store, self._reader, self._metrics, self._clock_ms = store, reader, metrics, clock_ms
        self._stop = threading.Event()
        self.is_troubled = False
        """The last turn failed."""
        self._troubles: dict[int, str] = {}
        """Of minutes, by their starts, why they could not be compared."""
        self._pruned_at = float("-inf")

    def stop(self) -> None:
        """Have the next `step` be the last."""
        self._stop.set()

    def step(self) -> float | None:
        """Take a turn; return for how long (s) to wait before the next step, None once it is stopped. Outages are
        waited for."""
        if self._stop.is_set():
            self._reader.close()
            return None
        began = time.monotonic()
        try:
            has_compared = self.turn()
        except NotOwned:
            self._reader.close()
            self._troubles = {}
            return CLAIM_S
        except Exception as error:
            is_outage = isinstance(error, DBAPIError)
            log.warning("recheck failed", tap=self._store.tap.source, exc_info=None if is_outage else error)
            self.is_troubled = True
            return FAILED_S
        if self.is_troubled:
            return FAILED_S
        return REST * (time.monotonic() - began) if has_compared else IDLE_S

    def turn(self) -> bool:
        """Compare the minutes that are due, or some of them; return whether there was one.

        Raises:
            NotOwned: another process owns the tap.
            DBAPIError: lagloss's database does not answer.
        """
        self.is_troubled = False
        now_ms = self._clock_ms()
        self._prune(now_ms)
        minutes = self._store.due(now_ms, MAX_MINUTES, MAX_ROWS)
        if not minutes:
            return False
        results = self._compare(minutes, now_ms)
        self._store.commit(results, next(iter(self._troubles.values()), ""))
        self._metrics.count_recheck(
            self._store.tap,
            sum(len(result.minute.rows) for result in results),
            sum(len(result.lost) for result in results),
            sum(len(result.returned) for result in results),
        )
        for result in results:
            if result.lost or result.returned:
                log.warning(
                    "rows lost afterwards" if result.lost else "lost rows are there again",
                    tap=self._store.tap.source,
                    window=result.minute.window_start_s,
                    lost=len(result.lost),
                    returned=len(result.returned),
                )
        return True

    def _compare(self, minutes: Sequence[DueMinute], now_ms: int) -> list[ComparedMinute]:
        """Return minutes as they are after a look at the table; as they were where it says nothing of them."""
        rows = [row.seen for due in minutes for row in due.minute.rows.values()]
        try:
            missing = self._reader.missing(rows)
        except TableUnreadable as error:
            self.is_troubled = True
            return [self._postponed(due, error, now_ms) for due in minutes]
        results = []
        for due in minutes:
            try:
                minute = compared(due.minute, missing, now_ms)
            except NotComparable as error:
                results.append(self._postponed(due, error, now_ms))
            else:
                self._troubles.pop(minute.window_start_s, None)
                next_ms = next_look_ms(minute, now_ms, self._store.tap.recheck_ms)
                results.append(ComparedMinute(due, minute, next_ms))
        return results

    def _postponed(self, due: DueMinute, error: Exception, now_ms: int) -> ComparedMinute:
        self._troubles[due.minute.window_start_s] = str(error)
        self._metrics.recheck_failed(self._store.tap)
        return ComparedMinute(due, due.minute, now_ms + RETRY_MS)

    def _prune(self, now_ms: int) -> None:
        if time.monotonic() - self._pruned_at >= PRUNE_S:
            self._pruned_at = time.monotonic()
            self._store.prune(now_ms)
            before_s = (now_ms - self._store.tap.recheck_ms - KEPT_BEYOND_MS) // 1_000
            self._troubles = {start: why for start, why in self._troubles.items() if start >= before_s}

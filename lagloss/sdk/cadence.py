"""The cadence of flushes: one costs almost as much for a beacon as for some hundred, so few wait for more. Pure.

Live numbers are to be at most 5 s old, of which following reports takes up to 2 s: the rest bounds the wait. It also
bounds what a killed process without a spool loses.
"""

from __future__ import annotations

from typing import Final

SHORTEST_S: Final = 1.0
"""From one flush to the next, unless it is requested. The buffer is looked at as often: no burst waits for longer."""
LONGEST_S: Final = 2.5
ENOUGH: Final = 500
"""Beacons that are worth a flush: what they cost themselves exceeds what any flush costs."""


def wait_s(waited_s: float, beacons: int, max_buffered: int, *, is_awaited: bool) -> float:
    """Return the seconds until a flush is due, or the buffer is to be looked at again; none are left if it is due.

    A flush is due `SHORTEST_S` after the one before if there are `ENOUGH` beacons for it, the buffer is half full, or
    the host waits for it; else `LONGEST_S` after.

    Args:
        waited_s: seconds since the flush before.
        beacons: in the buffer, which takes `max_buffered`.
        is_awaited: the host commits, or goes on, once these beacons are acknowledged.
    """
    is_enough = beacons >= min(ENOUGH, max_buffered / 2)
    due_s = SHORTEST_S if is_enough or is_awaited else LONGEST_S
    return min(due_s - waited_s, SHORTEST_S)

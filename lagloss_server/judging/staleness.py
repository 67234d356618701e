"""Staleness of a checkpoint: how long ago the newest event that was seen there happened (docs/arithmetic.md).

Event times are known by the minute. The end of a minute stands for its events, and its lowest lag for how soon they
were seen, so that staleness is never overstated. It counts from when messages came in, so that an idle source is not
stale.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lagloss.wire.format import WINDOW_S
from lagloss.wire.sketch import bin_value_ms
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import Window, on_time_counts

LOOK_BACK_S: Final = 86_400
"""A checkpoint that no message reached for this long before a window has no staleness there."""
FRESH_MS: Final = WINDOW_S * 1_000
"""A window whose own messages were seen within its minute needs no look at earlier ones."""


def event_age_s(newest_s: int, at_s: float) -> float:
    """Return how old the newest event of a minute (its start, epoch s) is at least, at a moment (epoch s)."""
    return at_s - newest_s - WINDOW_S


class SeenMinutes:
    """Minutes (start in epoch s) in which a checkpoint has live beacons, each with the lowest lag there in ms."""

    def __init__(self, lowest_ms: Mapping[int, float] | None = None) -> None:
        self._lowest_ms = lowest_ms or {}
        self._starts = sorted(self._lowest_ms)

    def back_from(self, window_start_s: int) -> Iterator[tuple[int, float]]:
        """Yield the minutes up to this one, newest first, as far as one looks back."""
        for index in range(bisect_right(self._starts, window_start_s) - 1, -1, -1):
            start_s = self._starts[index]
            if start_s <= window_start_s - LOOK_BACK_S:
                return
            yield start_s, self._lowest_ms[start_s]

    def first_after(self, start_s: int) -> int | None:
        index = bisect_right(self._starts, start_s)
        return self._starts[index] if index < len(self._starts) else None


def staleness_ms(window_start_s: int, seen_minutes: SeenMinutes, came: SeenMinutes) -> float | None:
    """Return the staleness of a checkpoint as of a window's end, by the minutes in which it has beacons, and those in
    which messages came in at its sources; None if it has none within the look-back.

    Of a minute whose lowest lag had not passed yet nothing was seen. Else its newest event is as old as the minute's
    end, or as the lowest lag: the larger of both. The freshest minute counts, from the next one on in which messages
    came in.
    """
    end_s = window_start_s + WINDOW_S
    freshest: tuple[float, int, float] | None = None
    for start_s, lowest_ms in seen_minutes.back_from(window_start_s):
        age_ms = event_age_s(start_s, end_s) * 1_000
        if freshest is not None and age_ms >= freshest[0]:
            break
        if lowest_ms <= age_ms + FRESH_MS:
            staleness = (max(age_ms, lowest_ms), start_s, lowest_ms)
            freshest = staleness if freshest is None else min(freshest, staleness)
    if freshest is None:
        return None
    stale_ms, start_s, lowest_ms = freshest
    awaited_from_s = came.first_after(start_s)
    if awaited_from_s is None or awaited_from_s > window_start_s:
        return stale_ms
    return min(stale_ms, max((end_s - awaited_from_s) * 1_000.0, lowest_ms))


def lowest_lags_ms(facts: WindowFacts) -> dict[str, float]:
    """Return the lowest lag of each checkpoint with live beacons."""
    return {
        name: bin_value_ms(int(checkpoint.lags.keys[0]))
        for name, checkpoint in facts.checkpoints.items()
        if checkpoint.lags.keys.size
    }


def awaited(graph: Graph, result: Window) -> frozenset[str]:
    """Return the checkpoints that messages of a window had to pass on their way to a destination that they are due
    at, and those that the messages of each of several sources had to pass, whichever destination they went to."""
    due = DueMessages.of(result)
    ends = [destination for destination in graph.destinations if due.at(destination.name)]
    passed = 0
    for end in ends:
        passed |= graph.dominators[end.at.bit_length() - 1]
    for source, dominators in zip(result.sources, graph.dominators_by_source, strict=False):
        ways = [dominators[to.at.bit_length() - 1] for to in graph.destinations]
        passed |= functools.reduce(int.__and__, filter(None, ways)) if source.messages else 0
    return frozenset(name for name in ins_and_outs(graph) if passed >> graph.bit[name] & 1)


def ins_and_outs(graph: Graph) -> Iterator[str]:
    """Yield the checkpoints that have a staleness, in the order of the flow: what is filtered, dead or with a retrier
    is not awaited anywhere."""
    for node in graph.steps:
        yield f"{node}.in"
        yield from (out for out in graph.outs(node) if out.partition(":")[2] not in graph.retriers)


@dataclass(frozen=True, slots=True)
class DueMessages:
    """Where messages of a window are due (rule 15): at a destination those of its part of the graph, and those that
    have not come so far that they would be in the part of one."""

    asked: Mapping[str, int]
    total: int

    @classmethod
    def of(cls, window: Window) -> DueMessages:
        """Read them from a closed window."""
        due = {destination.name: destination.on_time_of or 0 for destination in window.destinations}
        _, total = on_time_counts(window)
        rounded = 2 * len(due) if window.sample < 1 else 0  # scaled counts do not add up exactly
        is_outside = total > sum(due.values()) + rounded
        return cls({} if is_outside else due, total)

    def at(self, destination: str | None) -> bool:
        """Return whether any is due at a destination; None: at any."""
        return self.asked.get(destination, self.total) > 0 if destination is not None else self.total > 0

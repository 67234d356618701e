"""Assessments of k of the last n closed windows, and of rules of time.

A rule gives what each window is by itself; here is which of them make up breaches. n windows are n closed ones, however
many minutes lie between them; where a pipeline has fewer yet, they are what there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace, PendingBreach
from alerting.rules.measures import Measure
from alerting.rules.view import PipelineView
from alerting.rules.windows import Flags, Floats, Ints, Windows


@dataclass(frozen=True, slots=True)
class WindowSlice:
    """A part of the array of a view's windows, by position: no time range, since minutes without a window take no room.

    The windows that a view speaks of, from position `seen` on, after enough earlier ones for their k of n. `first`:
    position of the first of them all among the view's windows."""

    windows: Windows
    first: int
    seen: int

    @classmethod
    def of(cls, view: PipelineView, n: int) -> WindowSlice:
        if view.news_from_s == math.inf:  # nothing is new
            news = len(view.windows.starts)
        else:
            news = view.windows.first_at(view.news_from_s) - (n - 1)  # later ones can make up a breach with these
        first_seen = max(view.windows.first_at(view.seen_from_s), news)
        first = max(0, first_seen - n + 1)
        return cls(view.windows.since(first), first, first_seen - first)

    @classmethod
    def whole(cls, view: PipelineView) -> WindowSlice:
        """Return the slice of all windows from `seen_from_s` on, new or not, without any before."""
        first = view.windows.first_at(view.seen_from_s)
        return cls(view.windows.since(first), first, 0)

    def assessment(
        self,
        breaches: Flags,
        values: Floats,
        good: Flags,
        resolve_after: int,
        begun: PendingBreach | None = None,
        *,
        tickets: Flags | None = None,
        text: Callable[[int], str] | None = None,
    ) -> Assessment:
        """With these windows as breaches and these as good ones, of those it speaks of. `tickets`: those that are no
        page; `text`: what the value of the window at a position means."""
        starts = self.windows.starts[self.seen :]
        made_of = np.flatnonzero(breaches[self.seen :])
        return Assessment(
            seen=frozenset(starts.tolist()),
            breaches=dict(zip(starts[made_of].tolist(), values[self.seen :][made_of].tolist(), strict=True)),
            good=starts[good[self.seen :]].tolist(),
            resolve_after=resolve_after,
            begun=begun,
            tickets=() if tickets is None else frozenset(starts[(breaches & tickets)[self.seen :]].tolist()),
            texts={}
            if text is None
            else {int(starts[position]): text(position + self.seen) for position in made_of.tolist()},
        )


def of_last(n: int, counts: Ints | Flags) -> Ints:
    """Return, for each window, the sum over the n windows that end with it."""
    sums = _prefix_sums(counts)
    sums_of_n = sums[1:].copy()
    sums_of_n[n:] -= sums[1 : max(len(counts) - n, 0) + 1]
    return sums_of_n


def making_up(n: int, breaching: Flags, breach_at: Flags) -> Flags:
    """Return the breaching windows that are among the n windows which end at one where a breach is."""
    if not breach_at.any():
        return breach_at
    sums = _prefix_sums(breach_at)
    positions = np.arange(len(breach_at))
    return breaching & (sums[np.minimum(positions + n, len(breach_at))] - sums[positions] > 0)


def _prefix_sums(counts: Ints | Flags) -> Ints:
    sums = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=sums[1:])
    return sums


MESSAGES: Final = Measure("messages")


def counts(recent: WindowSlice, measure: Measure) -> Ints:
    """Return a count by window; 0 where it is not known."""
    if measure.place is None and measure.what != "corrupted":
        column: Ints = recent.windows.column(measure.name)
        return column
    return np.nan_to_num(recent.windows.read(measure)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class OutOf:
    """`breaches` of the last `of` windows, which hold `min_messages` together; over after `resolve_after` good ones."""

    breaches: int
    of: int
    min_messages: int
    resolve_after: int

    def enough(self, recent: WindowSlice, measure: Measure = MESSAGES) -> Flags:
        """Return the windows whose n windows hold enough messages for a judgement."""
        return of_last(self.of, counts(recent, measure)) >= self.min_messages

    def breach_at(self, recent: WindowSlice, breaching: Flags, measure: Measure = MESSAGES) -> Flags:
        return breaching & self.enough(recent, measure) & (of_last(self.of, breaching) >= self.breaches)

    def begun(self, recent: WindowSlice, breaching: Flags, breaches: Flags, values: Floats) -> PendingBreach | None:
        """Return the breaching ones of the newest windows, where they are too few; None if one of them makes up a
        breach."""
        first = max(recent.seen, len(breaching) - self.of)
        positions = first + np.flatnonzero(breaching[first:])
        if not 0 < len(positions) < self.breaches or breaches[positions].any():
            return None
        starts = recent.windows.starts[positions]
        return PendingBreach(
            len(positions), self.breaches, self.of, int(starts[0]), int(starts[-1]), float(values[positions[-1]])
        )

    def assess(self, recent: WindowSlice, breaching: Flags, values: Floats, good: Flags) -> Assessment:
        """Assess a rule that is nothing but k of n."""
        made_up = making_up(self.of, breaching, self.breach_at(recent, breaching))
        begun = self.begun(recent, breaching, made_up, values)
        return recent.assessment(made_up, values, good, self.resolve_after, begun)


def by_the_clock(
    view: PipelineView, value: float | None, is_breach: bool, places: tuple[BreachPlace, ...] = (), text: str = ""
) -> Assessment:
    """Return the assessment of a rule of time, whose value now stands for this minute's window; None is no evidence.
    `text` says what a breach is in place of the rule's own text.

    A minute that was a breach once stays one, so that what is over within the minute is over and not revised.
    """
    this_minute = view.this_minute_s
    if value is None:
        return Assessment((), {}, ())
    if is_breach:
        return Assessment(
            (this_minute,), {this_minute: value}, (), 1, places, texts={this_minute: text} if text else {}
        )
    return Assessment((), {}, (this_minute,))

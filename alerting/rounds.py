"""Rounds: which pipelines are looked at next. Those whose news need an evaluation go first, then others with news are
looked at, and all that are due have their turn in each round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

POLL_S: Final = 10.0
"""A round begins this often even without notifications: silences end, nodes fall silent, hours pass."""
AT_ONCE: Final = 100
"""Pipelines that are looked at together."""


@dataclass(slots=True)
class Rounds:
    """Moments in seconds of a monotonic clock."""

    _first: dict[str, None] = field(default_factory=dict)
    _news: dict[str, set[int]] = field(default_factory=dict)
    _later: dict[str, None] = field(default_factory=dict)
    _left: dict[str, None] = field(default_factory=dict)
    _began_s: float = float("-inf")
    _again: bool = False
    _runs: bool = False

    def is_due(self, now_s: float) -> bool:
        """Return whether the next round is to begin."""
        return not self._runs and (self._again or now_s - self._began_s > POLL_S)

    def begin(self, names: Iterable[str], now_s: float) -> None:
        self._left = dict.fromkeys(names)
        self._began_s, self._again, self._runs = now_s, False, True

    def hear(self, news: Mapping[str, Collection[int]]) -> None:
        """Add news: starts of closed windows by pipeline, and "" for news that may concern any: the next round begins
        as soon as this one is over."""
        self._again |= "" in news
        for name in sorted(news.keys() - {""}):
            self._news.setdefault(name, set()).update(news[name])

    def put_first(self, names: Iterable[str]) -> None:
        """Add pipelines whose news need an evaluation."""
        self._first |= dict.fromkeys(names)

    def put_later(self, names: Iterable[str]) -> None:
        """Add pipelines that need an evaluation, without news."""
        self._later |= dict.fromkeys(names)

    def has_more(self) -> bool:
        return bool(self._first or self._news or self._later or self._left)

    def is_behind(self) -> bool:
        """Return whether there is news of more pipelines than are looked at together."""
        return len(self._news) > AT_ONCE

    def take_one(self) -> str | None:
        """Remove and return the next pipeline to evaluate, which sees to its news; None if others with news are to be
        looked at before, or none needs an evaluation."""
        name = next(iter(self._first if self._first or self._news else self._later), None)
        if name is not None:
            for names in (self._first, self._news, self._later, self._left):
                names.pop(name, None)
        return name

    def take(self) -> Mapping[str, Collection[int]]:
        """Remove and return the next pipelines to look at, with the starts of their closed windows, if they have
        news."""
        names = list(islice(self._news or self._left, AT_ONCE))
        for name in names:
            self._left.pop(name, None)
        return {name: self._news.pop(name, ()) for name in names}

    def ends(self) -> bool:
        """Return whether all pipelines of this round have had their turn; true once per round, also of an empty one."""
        is_over = self._runs and not (self._left or self._later)
        self._runs = self._runs and not is_over
        return is_over

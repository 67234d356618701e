"""Rounds: which pipeline is evaluated next. Those with news go first, and all of them have their turn in each round."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

POLL_S: Final = 10.0
"""A round begins this often even without notifications: silences end, nodes fall silent, hours pass."""


@dataclass(slots=True)
class Rounds:
    """Moments in seconds of a monotonic clock."""

    _news: dict[str, None] = field(default_factory=dict)
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

    def hear(self, news: Collection[str]) -> None:
        """Add news: names of pipelines, and "" for news that may concern any: the next round begins as soon as this one
        is over."""
        self._again |= "" in news
        self._news |= dict.fromkeys(sorted(name for name in news if name))

    def has_more(self) -> bool:
        return bool(self._news or self._left)

    def take(self) -> str | None:
        """Remove and return the next pipeline's name; None if none has to be evaluated now."""
        name = next(iter(self._news or self._left), None)
        if name is not None:
            self._news.pop(name, None)
            self._left.pop(name, None)
        return name

    def ends(self) -> bool:
        """Return whether all pipelines of this round have had their turn; true once per round, also of an empty one."""
        is_over = self._runs and not self._left
        self._runs = self._runs and not is_over
        return is_over

"""An assessment: what a rule finds in a pipeline as it is now, as judging turns it into changes of an incident."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

SHOWN_WINDOWS: Final = 15
"""The newest breached windows of an incident whose documents tell where it is so."""


@dataclass(frozen=True, slots=True)
class BreachPlace:
    """Where it is so. `share` of the whole, where that can be said; `lost`: messages, of a loss."""

    kind: Literal["link", "node", "checkpoint"]
    name: str
    share: float | None
    text: str
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class PendingBreach:
    """What may become a breach: `breaches` of the newest `of` windows, of which it takes `needed`. `first_s`, `last_s`:
    starts of the oldest and the newest of them; `value` is the newest one's."""

    breaches: int
    needed: int
    of: int
    first_s: int
    last_s: int
    value: float


@dataclass(frozen=True, slots=True)
class Assessment:
    """Windows are named by their start (epoch s).

    `seen`: windows it speaks of; an incident's breaches outside stay as they were. `breaches`: value by window, of all
    windows that make up breaches. `good`: windows that say it is over; it takes `resolve_after` of them after the last
    breach. `places`: where, worst first, as far as windows' documents cannot tell it (`Rule.where` tells the rest).
    `begun`: windows at the end that make up no breach yet.
    """

    seen: Collection[int]
    breaches: Mapping[int, float]
    good: Collection[int]
    resolve_after: int = 1
    places: tuple[BreachPlace, ...] = ()
    begun: PendingBreach | None = None

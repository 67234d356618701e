"""Assessment of a pipeline by a rule, which the lifecycle turns into changes of an incident."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from lagloss_server.model.place import Place

SHOWN_WINDOWS: Final = 15
"""Newest breached windows of an incident whose documents are searched for its places."""


@dataclass(frozen=True, slots=True)
class BreachPlace(Place):
    """Place of a breach. `share` of the whole, where it is known; `lost`: messages, of a loss."""

    share: float | None
    text: str
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class PendingBreach:
    """Breaching windows, `breaches` of the newest `of`, that are fewer than the `needed` ones. `first_s`, `last_s`:
    starts of the oldest and the newest of them; `value` is the newest one's."""

    breaches: int
    needed: int
    of: int
    first_s: int
    last_s: int
    value: float


@dataclass(frozen=True, slots=True)
class Assessment:
    """Findings of a rule. Windows are named by their start (epoch s).

    `seen`: windows it covers; an incident's breaches outside stay as they were. `breaches`: value by window, of all
    windows that make up breaches. `good`: windows without a breach; `resolve_after` of them after the last breach
    resolve an incident. `places`: worst first, if windows' documents do not have them (else `Rule.where` finds them).
    `begun`: windows at the end that make up no breach yet. `tickets`: breaches that are worth a ticket and no page,
    however severe the rule is. `texts`: by window, what a value means, where the rule's own text cannot say it.
    `held_before_s`: no good window ends an incident with an earlier breach, which can be of what is still bad, though
    too old to open another; after one before `expired_before_s`, of what is too old to be known, it is not recovered.
    """

    seen: Collection[int]
    breaches: Mapping[int, float]
    good: Collection[int]
    resolve_after: int = 1
    places: tuple[BreachPlace, ...] = ()
    begun: PendingBreach | None = None
    tickets: Collection[int] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    held_before_s: float = -math.inf
    expired_before_s: float = -math.inf

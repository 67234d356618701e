"""The loss rule: from a pipeline's windows and its incidents to the change of its incident, if any. Pure.

A window breaches when its verdict is `loss`. `ok` and `idle` are good; `unknown` says nothing either way. History
windows (filled in after the fact) never page: whoever sends an hour of the past would wake somebody for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

RULE: Final = "loss"
GOOD: Final = frozenset({"ok", "idle"})


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """A closed window as the rule sees it. `ratio` is lost.min / messages; None of no messages."""

    start_s: int
    verdict: str
    ratio: float | None
    history: bool = False


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """The open incident of a pipeline; `breaches` are its lossy windows' ratios by start (epoch s)."""

    id: UUID
    worst_ratio: float
    breaches: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written. `breaches`: the lossy windows after the change, or, when resolved, up to then.

    `why`: of a resolved incident `recovered` (a good window after the last lossy one) or `revised` (none of its windows
    is lossy any more); else empty.
    """

    kind: Literal["opened", "updated", "resolved"]
    breaches: Mapping[int, float]
    worst_ratio: float
    why: Literal["", "recovered", "revised"] = ""


def judge(
    windows: Iterable[JudgedWindow], incident: OpenIncident | None, handled: Collection[int] = ()
) -> Change | None:
    """The next change, or None. Called again after each change until None: a breach that is over before anybody looked
    opens and then resolves, so that it is told.

    `handled`: starts of the lossy windows of earlier, resolved incidents; they open nothing a second time.
    """
    seen = {window.start_s: window for window in windows if not window.history}
    lossy = {
        start: window.ratio or 0.0
        for start, window in seen.items()
        if window.verdict == "loss" and start not in handled
    }
    if incident is None:
        return Change("opened", lossy, max(lossy.values())) if lossy else None
    # a breach that is not among the windows looked at is older than those, and stays
    kept = {start: ratio for start, ratio in incident.breaches.items() if start not in seen}
    breaches = {**kept, **lossy}
    if not breaches:
        return Change("resolved", dict(incident.breaches), incident.worst_ratio, "revised")
    worst = max(breaches.values())
    good_s = max((start for start, window in seen.items() if window.verdict in GOOD), default=None)
    if good_s is not None and good_s > max(breaches):
        return Change("resolved", breaches, worst, "recovered")
    if breaches != dict(incident.breaches):
        return Change("updated", breaches, worst)
    return None

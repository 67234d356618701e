"""View of one pipeline as of one moment: the input of its rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from alerting.rules.habits import NO_HABITS, Habits
from alerting.rules.windows import Windows
from lagloss.wire.format import WINDOW_S
from lagloss_server.groups.progress import PartitionNow
from lagloss_server.incidents.lost_afterwards import LostMinute
from lagloss_server.model.definition import Definition
from lagloss_server.runs.dag_runs import DagRun

HORIZON_S: Final = 86_400
"""Windows older than this open and change nothing: closing last week again must not page tonight."""


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """Messages that are pending at some places, such as `link a->b`; the first was last seen at `since_s` (epoch s)."""

    places: tuple[str, ...]
    messages: int
    since_s: float


@dataclass(frozen=True, slots=True)
class PipelineView:
    """Input of a pipeline's rules. `windows`: closed ones that are no history; those before `seen_from_s` are context.

    `newest_end_s`: end of the newest closed window. `newest_s`: newest minute with live beacons, by checkpoint, and
    `came_from_s`: by source, of minutes with messages at its `in`, when the first of these came in, both by tallies.
    `reported_s`: by node, when its last report was appended; `expected`: nodes that reported yesterday at this time.
    `lost_afterwards`: minutes that are compared again, with messages that no one has accepted; None: not known.
    `waiting`: pending messages. `runs`: of its jobs, see `runs_s`. `partitions`: those that its consumer groups
    read. `watched_since_s`: start of the alerter's observation. `habits`: what is usual. `news_from_s`: of windows
    before, only those are assessed again whose findings may depend on later ones; all are if it is -inf, none if it is
    inf. Moments in epoch s.
    """

    definition: Definition
    now_s: float
    windows: Windows
    seen_from_s: int
    newest_end_s: int | None = None
    newest_s: Mapping[str, int] = field(default_factory=dict)
    came_from_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    reported_s: Mapping[str, float] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()
    waiting: Sequence[WaitingMessages] = ()
    runs: Sequence[DagRun] = ()
    partitions: Sequence[PartitionNow] = ()
    lost_afterwards: Sequence[LostMinute] | None = None
    watched_since_s: float = 0.0
    habits: Habits = NO_HABITS
    news_from_s: float = -math.inf

    def came_s(self, sources: Iterable[str]) -> dict[int, float]:
        """Return the minutes with messages at any of these sources, and when the first of these came in."""
        came: dict[int, float] = {}
        for source in sources:
            for start, came_s in self.came_from_s.get(source, {}).items():
                came[start] = min(came_s, came.get(start, came_s))
        return came

    @property
    def watched_s(self) -> float:
        """Seconds since the alerter began to look."""
        return self.now_s - self.watched_since_s

    @property
    def this_minute_s(self) -> int:
        """Start of the window that rules of time judge."""
        return int(self.now_s) // WINDOW_S * WINDOW_S

"""Context of judgements: the definitions in force and the state of reports, as of one moment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sqlalchemy import Engine

from aggregator.closing.report_state import ReportState, Windows, load_report_state, newest_with_beacons
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.evidence import Evidence, changed_nodes
from lagloss_server.judging.freshness import newest_due_s
from lagloss_server.model.definition import StoredPipeline, in_force
from lagloss_server.model.graph import Graph


class Versions:
    """The versions of one pipeline's definition, oldest first. `unreadable`: number and moment (epoch ms) of those that
    this version of lagloss cannot read."""

    def __init__(self, stored: Iterable[StoredPipeline] = (), unreadable: Iterable[tuple[int, int]] = ()) -> None:
        self.stored = tuple(stored)
        self._unreadable = tuple(unreadable)
        self.checkpoints = frozenset(name for version in self.stored for name in version.definition.graph.checkpoints)
        """The checkpoints of all versions together."""

    def __len__(self) -> int:
        return len(self.stored)

    def plus(self, later: Iterable[StoredPipeline], unreadable: Iterable[tuple[int, int]] = ()) -> Versions:
        """Return these versions and later ones."""
        return Versions((*self.stored, *later), (*self._unreadable, *unreadable))

    @property
    def newest(self) -> Graph:
        return self.stored[-1].definition.graph

    def at(self, window_start_s: int) -> Graph:
        """Return the version in force at a window's start; the first holds for all windows before it, too."""
        return self.stored[in_force(self.stored, window_start_s)].definition.graph

    @cached_property
    def _gaps(self) -> list[tuple[float, float]]:
        """From when to when (epoch ms) each unreadable version was in force."""
        gaps = []
        for number, since_ms in self._unreadable:
            has_earlier = any(version.version < number for version in self.stored)
            later = (version.applied_at_ms for version in self.stored if version.version > number)
            gaps.append((since_ms if has_earlier else -math.inf, next(later, math.inf)))
        return gaps

    def changed_in(self, window_start_s: int) -> tuple[bool, frozenset[str]]:
        """Return whether a version came into force within this window, and the nodes that this makes unsure: all of
        them while an unreadable one was in force."""
        start_ms, end_ms = window_start_s * 1000, (window_start_s + WINDOW_S) * 1000
        if any(since_ms < end_ms and start_ms < until_ms for since_ms, until_ms in self._gaps):
            return True, frozenset(self.at(window_start_s).nodes)
        before, changed = self.at(window_start_s), frozenset[str]()
        within = [version.definition.graph for version in self.stored[1:] if start_ms < version.applied_at_ms < end_ms]
        for after in within:
            changed |= changed_nodes(before, after)
        return bool(within), changed


@dataclass(frozen=True)
class JudgementContext:
    """Everything a judgement needs besides facts, as of `now_ms`; `newest` is by pipeline and checkpoint (rule 4)."""

    reports: ReportState
    versions: Mapping[str, Versions]
    newest: Mapping[str, Mapping[str, int]]
    now_ms: int

    def graph(self, pipeline: str, window_start_s: int) -> Graph:
        return self.versions[pipeline].at(window_start_s)

    def evidence(self, pipeline: str, window_start_s: int) -> Evidence:
        version_changed, changed = self.versions[pipeline].changed_in(window_start_s)
        newest = self.newest.get(pipeline, {})
        return Evidence(
            window_start_s=window_start_s,
            now_ms=self.now_ms,
            emitters=self.reports.emitters[pipeline],
            tallies=self.reports.tallies[pipeline, window_start_s],
            lanes=self.reports.lanes[pipeline],
            later_due=frozenset(name for name, start in newest.items() if start > window_start_s),
            changed=changed,
            version_changed=version_changed,
        )


def load_context(engine: Engine, versions: Mapping[str, Versions], windows: Windows, now_ms: int) -> JudgementContext:
    """Load the state of reports for these windows, all of it as of one basis."""
    # each statement of a weaker isolation would see what was committed since the one before
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        return JudgementContext(load_report_state(connection, windows, now_ms), versions, {}, now_ms)


def with_newest(engine: Engine, context: JudgementContext, windows: Windows) -> JudgementContext:
    """Add the rule-4 fallback: for places without progress reports, the newest later window that has beacons.

    What tallies prove needs none of it, so that it is loaded for the other windows only.
    """
    spans: dict[str, tuple[int, int]] = {}
    for pipeline, start in windows:
        reported = {lane.checkpoint for lane in context.reports.lanes[pipeline]}
        if any(place.progress not in reported for place in context.graph(pipeline, start).places):
            due_s = newest_due_s(context.now_ms, context.versions[pipeline].newest.definition.spec.grace)
            spans[pipeline] = min(start, spans.get(pipeline, (start, due_s))[0]), due_s
    if not spans:
        return context
    with engine.connect() as connection:
        return replace(context, newest=newest_with_beacons(connection, spans))

"""Context of judgements: the definitions in force and the state of reports, as of one moment."""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final

from sqlalchemy import Engine

from aggregator.closing.report_state import ReportState, Windows, load_report_state, newest_with_beacons
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.evidence import Evidence, changed_nodes
from lagloss_server.judging.freshness import newest_due_s
from lagloss_server.model.definition import Definition, StoredPipeline, in_force
from lagloss_server.model.graph import Graph
from lagloss_server.model.tables import AnyTap, TableTap

PARSED: Final = 4
"""Newest versions of a pipeline that are kept as they are: nearly all windows that are closed are theirs."""
ROLLOUT_MS: Final = 3_600_000
"""How long after a version processes of nodes that only those before it have still count: they share the messages. How
long before it those of nodes can have ended that are tapped since."""
UNPACKED: Final = 64
"""Graphs of earlier versions, of all pipelines, that are kept since they were used last."""


@dataclass(frozen=True, slots=True)
class _PackedVersion:
    """An earlier version in 1 kB instead of 200: there can be hundreds of a pipeline. Windows of any age may need it,
    such as those that are closed only once the aggregator is back."""

    version: int
    applied_at_ms: int
    definition: bytes

    @classmethod
    def of(cls, stored: StoredPipeline) -> _PackedVersion:
        return cls(stored.version, stored.applied_at_ms, zlib.compress(pickle.dumps(stored.definition)))


@lru_cache(UNPACKED)
def _unpacked(packed: bytes) -> Graph:
    definition: Definition = pickle.loads(zlib.decompress(packed))
    return definition.graph


def _graph_of(version: StoredPipeline | _PackedVersion) -> Graph:
    return _unpacked(version.definition) if isinstance(version, _PackedVersion) else version.definition.graph


def _taps_by_node(definition: Definition) -> dict[str, frozenset[AnyTap]]:
    """Return the taps of each node that has some."""
    taps: dict[str, frozenset[AnyTap]] = {}
    for tap in definition.all_taps:
        taps[tap.node] = taps.get(tap.node, frozenset()) | {tap}
    return taps


def _may_be_behind(tap: AnyTap) -> bool:
    """Return whether a tap shows what came in by what is in a table: whatever fills that can be behind by any time."""
    return isinstance(tap, TableTap) and "in" in tap.places and not tap.first


class Versions:
    """The versions of one pipeline's definition, oldest first. `unreadable`: number and moment (epoch ms) of those that
    this version of lagloss cannot read. `before`: earlier ones."""

    def __init__(
        self,
        stored: Iterable[StoredPipeline] = (),
        unreadable: Iterable[tuple[int, int]] = (),
        before: Versions | None = None,
    ) -> None:
        stored = tuple(stored)
        parsed = stored if before is None else (*before.stored, *stored)
        self.stored: tuple[StoredPipeline, ...] = parsed[-PARSED:]
        """The newest of them."""
        self._earlier: tuple[_PackedVersion, ...] = () if before is None else before._earlier
        self._earlier += tuple(map(_PackedVersion.of, parsed[:-PARSED]))
        self._all: tuple[StoredPipeline | _PackedVersion, ...] = (*self._earlier, *self.stored)
        self._unreadable: tuple[tuple[int, int], ...] = () if before is None else before._unreadable
        self._unreadable += tuple(unreadable)
        names = frozenset(name for version in stored for name in version.definition.graph.checkpoints)
        self.checkpoints: frozenset[str] = names if before is None else names | before.checkpoints
        """The checkpoints of all versions together."""
        self._seen_until: dict[int, Mapping[str, float]] = {}
        """By position of a version; see `seen_until`."""

    def __len__(self) -> int:
        return len(self._all)

    def plus(self, later: Iterable[StoredPipeline], unreadable: Iterable[tuple[int, int]] = ()) -> Versions:
        """Return these versions and later ones."""
        return Versions(later, unreadable, self)

    @property
    def newest(self) -> Graph:
        return self.stored[-1].definition.graph

    def at(self, window_start_s: int) -> Graph:
        """Return the version in force at a window's start; the first holds for all windows before it, too."""
        return _graph_of(self._all[in_force(self._all, window_start_s)])

    @cached_property
    def _gaps(self) -> list[tuple[float, float]]:
        """From when to when (epoch ms) each unreadable version was in force."""
        gaps = []
        for number, since_ms in self._unreadable:
            has_earlier = any(version.version < number for version in self._all)
            later = (version.applied_at_ms for version in self._all if version.version > number)
            gaps.append((since_ms if has_earlier else -math.inf, next(later, math.inf)))
        return gaps

    def changed_in(self, window_start_s: int) -> tuple[bool, frozenset[str]]:
        """Return whether a version came into force within this window, and the nodes that this makes unsure: all of
        them while an unreadable one was in force."""
        start_ms, end_ms = window_start_s * 1000, (window_start_s + WINDOW_S) * 1000
        if any(since_ms < end_ms and start_ms < until_ms for since_ms, until_ms in self._gaps):
            return True, frozenset(self.at(window_start_s).nodes)
        before, changed = self.at(window_start_s), frozenset[str]()
        within = [_graph_of(version) for version in self._all[1:] if start_ms < version.applied_at_ms < end_ms]
        for after in within:
            changed |= changed_nodes(before, after)
        return bool(within), changed

    def seen_until(self, window_start_s: int) -> Mapping[str, float]:
        """Return by node until when (epoch ms) all that reaches it is seen, by beacons of this window, where a version
        since has other taps of the node: these make none of windows before it."""
        at = in_force(self._all, window_start_s)
        if at not in self._seen_until:
            self._seen_until[at] = self._seen_until_of(at)
        return self._seen_until[at]

    def _seen_until_of(self, at: int) -> Mapping[str, float]:
        own, graph = self._all[at], _graph_of(self._all[at])
        unknown = [since_ms for number, since_ms in self._unreadable if number > own.version]
        seen_until: dict[str, float] = dict.fromkeys(graph.nodes, min(unknown)) if unknown else {}
        before = _taps_by_node(graph.definition)
        for later in self._all[at + 1 :]:
            after = _taps_by_node(_graph_of(later).definition)
            for node in graph.nodes:
                if before.get(node) != after.get(node):
                    ended_ms = later.applied_at_ms - (0 if node in before else ROLLOUT_MS)
                    is_behind = any(map(_may_be_behind, before.get(node, ())))
                    seen_until[node] = min(-math.inf if is_behind else ended_ms, seen_until.get(node, math.inf))
        return seen_until

    def left_behind(self, evidence: Evidence) -> frozenset[str]:
        """Return the nodes that are unsure in a window since processes are at work in it whose nodes are only in
        versions that were replaced shortly before."""
        start_s = evidence.window_start_s
        since_ms, at = start_s * 1000 - ROLLOUT_MS, in_force(self._all, start_s)
        recent = [before for before, after in pairwise(self._all[: at + 1]) if after.applied_at_ms > since_ms]
        if not recent:
            return frozenset()
        graph = _graph_of(self._all[at])
        strange = evidence.nodes.difference(graph.nodes)
        replaced = [before for before in map(_graph_of, recent) if not strange.isdisjoint(before.nodes)]
        return frozenset[str]().union(*(changed_nodes(before, graph) for before in replaced))


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
        evidence = Evidence(
            window_start_s=window_start_s,
            now_ms=self.now_ms,
            emitters=self.reports.emitters[pipeline],
            tallies=self.reports.tallies[pipeline, window_start_s],
            lanes=self.reports.lanes[pipeline],
            later_due={name: start for name, start in newest.items() if start > window_start_s},
            changed=changed,
            version_changed=version_changed,
            whole_from=self.reports.whole_from,
            seen_until=self.versions[pipeline].seen_until(window_start_s),
        )
        left_behind = self.versions[pipeline].left_behind(evidence)
        if not left_behind:
            return evidence
        return replace(evidence, changed=changed | left_behind, version_changed=True)


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

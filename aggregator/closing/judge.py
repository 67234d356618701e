"""Judgement of windows: from facts and the state of reports to a closing. Pure; the closer reads and commits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import structs

from aggregator.closing.report_state import ReportState
from aggregator.closing.window_store import Closing, Missing
from lagloss.wire.format import WINDOW_S, OffsetRange
from lagloss_server.model.definition import StoredPipeline, in_force
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import Window
from lagloss_server.rules.arithmetic import Fate, first_waiting_ms, horizon, judge, judge_pattern
from lagloss_server.rules.evidence import Evidence, changed_nodes
from lagloss_server.rules.facts import MissingId, Pattern, WindowFacts
from lagloss_server.rules.picked import spread

KINDS = {Fate.LOST: "lost", Fate.PERHAPS: "perhaps", Fate.OVERDUE: "overdue", Fate.PENDING: "pending"}
SOONEST_MS = 2_000
LATEST_MS = 900_000


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


def close(
    known: JudgementContext, pipeline: str, window_start_s: int, facts: WindowFacts, *, is_read: bool = True
) -> Closing:
    """Judge a window and make its closing. `is_read`: its facts are new, not those of an earlier closing.

    Raises:
        CutInsidePattern: a cut falls inside a pattern of these facts.
    """
    graph, evidence = known.graph(pipeline, window_start_s), known.evidence(pipeline, window_start_s)
    result = judge(graph, facts, evidence)
    return Closing(
        result=result,
        facts=facts,
        missing=_name_missing(graph, facts, evidence),
        basis=known.reports.basis,
        judged_at=known.now_ms,
        deadline=_deadline(graph, result, facts, evidence),
        history=is_history(evidence),
        log_start=_log_start(known.reports.ranges[pipeline, window_start_s]),
        is_read=is_read,
    )


def fail(pipeline: str, window_start_s: int, versions: Versions, basis: int, now_ms: int) -> Closing:
    """Make the closing of a window that cannot be closed: unknown, because it failed (rule 16). It counts nothing."""
    nothing = Evidence(window_start_s, now_ms, emitters=(), tallies=(), lanes=())
    result = judge(versions.at(window_start_s), WindowFacts(), nothing)
    return Closing(
        result=structs.replace(result, verdict="unknown", reasons=("failed",)),
        facts=WindowFacts(),
        missing=[],
        basis=basis,
        judged_at=now_ms,
        deadline=None,
        history=False,
        log_start=[],
    )


def _name_missing(graph: Graph, facts: WindowFacts, evidence: Evidence) -> list[Missing]:
    """Return the missing messages, lost ones first, each with its places and the last checkpoint it reached. Those of
    one fate are in an order drawn by their ids: whoever takes the first thousand has a fair sample."""
    if not facts.missing:
        return []
    hashes = np.array([found.id_hash for found in facts.missing], np.uint64)
    drawn = dict(zip(hashes.tolist(), spread(hashes).tolist(), strict=True))
    ahead, incomplete = horizon(graph, evidence), evidence.incomplete(graph, facts.read, facts.quarantined)

    def name(found: MissingId) -> tuple[Fate, Missing] | None:
        pattern = Pattern(found.mask, 1, (), found.last_seen_ms, found.last_seen_ms)
        judged = judge_pattern(graph, pattern, ahead, incomplete)
        if judged.fate not in KINDS:
            return None
        places = sorted(place.label for place in judged.certain or judged.perhaps or judged.waiting)
        at = graph.names(found.mask)
        return judged.fate, Missing(found, KINDS[judged.fate], tuple(dict.fromkeys(places)), at[-1] if at else "")

    named = [entry for entry in map(name, facts.missing) if entry is not None]
    return [missing for _, missing in sorted(named, key=lambda entry: (entry[0], drawn[entry[1].id.id_hash]))]


def _deadline(graph: Graph, result: Window, facts: WindowFacts, evidence: Evidence) -> int | None:
    """Return when to judge again though no tally changes (epoch ms): progress and emitters' states may have moved on,
    or maxWait have passed. The older the window, the less often."""
    unsure = (
        result.verdict == "unknown"
        or any(reason in ("pending", "overdue") or reason.startswith("evidence:") for reason in result.reasons)
        or _waits_elsewhere(graph, result, facts, evidence)
    )
    if not unsure:
        return None
    age_ms = evidence.now_ms - evidence.window_end_ms
    moment = evidence.now_ms + max(SOONEST_MS, min(age_ms // 10, LATEST_MS))
    since_ms = first_waiting_ms(graph, facts, evidence) if result.pending else None
    if since_ms is not None:
        overdue = int(since_ms) + graph.definition.spec.max_wait + 1
        if overdue > evidence.now_ms:
            moment = min(moment, overdue)
    return moment


def _waits_elsewhere(graph: Graph, result: Window, facts: WindowFacts, evidence: Evidence) -> bool:
    """Return whether messages that are lost at one place may still come at another, or be lost there, too."""
    if result.lost is None or result.lost.max == 0:
        return False
    ahead = horizon(graph, evidence)
    return any(judge_pattern(graph, pattern, ahead, frozenset()).waiting for pattern in facts.patterns)


def is_history(evidence: Evidence) -> bool:
    """Return whether the window was filled in afterwards: every emitter with a tally in it started after its end.
    Without tallies (a closing met blocks ahead of them), all emitters of the pipeline count."""
    reporting = {tally.emitter for tally in evidence.tallies}
    started = [state.started_at for state in evidence.emitters if not reporting or state.emitter in reporting]
    return bool(started) and min(started) > evidence.window_end_ms


def _log_start(ranges: Sequence[OffsetRange]) -> list[tuple[int, int]]:
    lowest: dict[int, int] = {}
    for found in ranges:
        lowest[found.partition] = min(found.first, lowest.get(found.partition, found.first))
    return sorted(lowest.items())


def nothing_missing(result: Window) -> bool:
    """Return whether a window can be closed before it is due: every emitter is final and nothing is missing."""
    return (
        result.verdict in ("ok", "idle")
        and result.lost is not None
        and result.lost.max == 0
        and not result.pending
        and not any(reason.startswith("evidence:") for reason in result.reasons)
    )


def looks_whole(graph: Graph, evidence: Evidence) -> bool:
    """Return whether an early read of a window is worthwhile: every expected emitter is final, and no link lets fewer
    beacons out than it took in. A cheap guess from the tallies; the read decides."""
    if any(not evidence.is_final(state) for state in evidence.expected()):
        return False
    counts: dict[str, int] = {}
    for tally in evidence.tallies:
        counts[tally.checkpoint] = counts.get(tally.checkpoint, 0) + tally.beacons
    incoming: dict[str, int] = {}
    for link in graph.links:
        incoming[link.target] = incoming.get(link.target, 0) + counts.get(link.out, 0)
    arrived = all(counts.get(f"{node}.in", 0) == sent for node, sent in incoming.items())
    left = all(
        sum(counts.get(exit_, 0) for exit_ in exits) >= counts.get(f"{node}.in", 0)
        for node in graph.steps
        if (exits := graph.exits(node))
    )
    return arrived and left

"""Judgement of windows: from facts and the state of reports to a closing. Pure; the closer reads and commits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from aggregator.closing.context import JudgementContext, Versions
from aggregator.closing.window_store import Closing, Missing
from lagloss.wire.format import OffsetRange
from lagloss_server.judging.arithmetic import Fate, first_waiting_ms, horizon, judge, judge_pattern
from lagloss_server.judging.evidence import Evidence
from lagloss_server.judging.facts import MissingId, WindowFacts
from lagloss_server.judging.picked import spread
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import Window

KINDS = {Fate.LOST: "lost", Fate.PERHAPS: "perhaps", Fate.OVERDUE: "overdue", Fate.PENDING: "pending"}
SOONEST_MS = 2_000
LATEST_MS = 900_000


def close(
    context: JudgementContext, pipeline: str, window_start_s: int, facts: WindowFacts, *, is_read: bool = True
) -> Closing:
    """Judge a window and make its closing. `is_read`: its facts are new, not those of an earlier closing.

    Raises:
        CutInsidePattern: a cut falls inside a pattern of these facts.
    """
    graph, evidence = context.graph(pipeline, window_start_s), context.evidence(pipeline, window_start_s)
    result = judge(graph, facts, evidence)
    return Closing(
        result=result,
        facts=facts,
        missing=_name_missing(graph, facts, evidence),
        basis=context.reports.basis,
        judged_at=context.now_ms,
        deadline=_deadline(graph, result, facts, evidence),
        history=is_history(evidence),
        log_start=_log_start(context.reports.ranges[pipeline, window_start_s]),
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
    hashes = np.array([missing.id_hash for missing in facts.missing], np.uint64)
    drawn = dict(zip(hashes.tolist(), spread(hashes).tolist(), strict=True))
    ahead, incomplete = horizon(graph, evidence), evidence.incomplete(graph, facts.read, facts.quarantined)

    def name(missing: MissingId) -> tuple[Fate, Missing] | None:
        judged = judge_pattern(graph, missing.pattern(missing.mask), ahead, incomplete)
        if judged.fate not in KINDS:
            return None
        places = sorted(place.label for place in judged.certain or judged.perhaps or judged.waiting)
        reached = graph.names(missing.mask)
        last = reached[-1] if reached else ""
        return judged.fate, Missing(missing, KINDS[judged.fate], tuple(dict.fromkeys(places)), last)

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
    for item in ranges:
        lowest[item.partition] = min(item.first, lowest.get(item.partition, item.first))
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


def looks_complete(graph: Graph, evidence: Evidence) -> bool:
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

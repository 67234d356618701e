"""The rules of arithmetic: from a window's facts and evidence to its result, one function a rule (docs/arithmetic.md).

Everything here is a pure function on presence patterns (bit masks of checkpoints, see `model.graph`). No message id
is touched: a window can be judged again as time passes without reading a block, unless a cut falls inside a pattern.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from lagloss.wire.format import SAMPLE_ALL, share_of
from lagloss.wire.sketch import Sketch
from lagloss_server.model.graph import Graph, Place
from lagloss_server.model.window_result import (
    CheckpointResult,
    Interval,
    Lags,
    LinkResult,
    NodeResult,
    Verdict,
    WindowResult,
)
from lagloss_server.rules.evidence import Evidence
from lagloss_server.rules.facts import Pattern, WindowFacts
from lagloss_server.rules.tally_proof import proves

OVERTAKEN_AFTER_MS = 5_000
"""Distance of a place's progress from a message's last sign of life at which the place has overtaken it; more if the
hosts' clocks disagree."""
UNKNOWN_SHOWN = 20
"""Number of checkpoints outside of the version in force that are shown with a window."""
Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


class Fate(IntEnum):
    """Fates of a message; the first that fits counts (rule 8)."""

    LOST = 0
    PERHAPS = 1
    OVERDUE = 2
    PENDING = 3
    DELIVERED = 4
    DEAD = 5
    FILTERED = 6


class CutInsidePattern(Exception):
    """A cut falls inside a pattern: the window's blocks must be read again to judge its messages separately."""


@dataclass(frozen=True)
class ProgressCuts:
    """Progress of each place, as cuts on "last seen" (epoch ms): messages last seen before a cut are behind it.

    `overtaken[place]`: a message missing there and last seen before this was overtaken; `overdue`: one last seen before
    this has been pending for longer than maxWait.
    """

    overtaken: Mapping[Place, float]
    overdue: float

    @property
    def cuts(self) -> tuple[float, ...]:
        return tuple(sorted({cut for cut in (*self.overtaken.values(), self.overdue) if math.isfinite(cut)}))


def implied(graph: Graph, mask: int) -> int:
    """Rule 1: the checkpoints a message is implied at, given those it is at."""
    result = 0
    at = mask
    while at:
        low = at & -at
        result |= graph.dominators[low.bit_length() - 1]
        at ^= low
    return result


def is_unexplained(graph: Graph, mask: int) -> bool:
    """Rule 2: seen somewhere, though not at the first checkpoint."""
    return not mask >> graph.bit[graph.first] & 1


def missing_places(graph: Graph, mask: int) -> tuple[Place, ...]:
    """Rules 3 and 5: the places where a message with this pattern is missing, or is held by a retrier."""
    there = implied(graph, mask)
    missing = tuple(
        place
        for place in graph.places
        if there & place.origin and not there & place.targets and not (place.excusable and mask & place.beyond)
    )
    ended = graph.delivery_mask | graph.dead_mask | graph.filtered_mask
    # a trail that ends in a retrier, with a hole where it was handed over: the retrier has it
    return missing if missing or mask & ended else graph.held_by(mask)


def horizon(graph: Graph, evidence: Evidence) -> ProgressCuts:
    """Rule 4: the cuts of each place. A retrier overtakes no message."""
    margin_ms = OVERTAKEN_AFTER_MS + evidence.clock_skew_ms
    return ProgressCuts(
        overtaken={
            place: _overtaken_before(place, evidence, margin_ms) for place in graph.places if place.kind != "retrier"
        },
        overdue=evidence.now_ms - graph.definition.spec.max_wait,
    )


def _overtaken_before(place: Place, evidence: Evidence, margin_ms: int) -> float:
    until = evidence.until_ms(place.progress)
    if until is None:
        stands_in = any(checkpoint in evidence.later_due for checkpoint in place.exits)
        return math.inf if stands_in else -math.inf
    return until - margin_ms


def is_before(pattern: Pattern, cut: float) -> bool:
    """Return whether the pattern's messages were last seen before the cut.

    Raises:
        CutInsidePattern: some were, some were not.
    """
    if pattern.seen_first_ms is None or pattern.seen_last_ms is None:
        raise CutInsidePattern
    if pattern.seen_last_ms < cut:
        return True
    if pattern.seen_first_ms >= cut:
        return False
    raise CutInsidePattern


@dataclass(frozen=True)
class Judged:
    """Fate of a pattern's messages, and the places of their loss, certain or possible."""

    fate: Fate
    certain: frozenset[Place] = frozenset()
    perhaps: frozenset[Place] = frozenset()
    waiting: frozenset[Place] = frozenset()


def judge_pattern(graph: Graph, pattern: Pattern, ahead: ProgressCuts, incomplete: frozenset[str]) -> Judged:
    """Rules 5, 6 and 8: pending, overdue, lost or one of the good fates.

    Raises:
        CutInsidePattern: a cut falls inside the pattern.
    """
    missing = missing_places(graph, pattern.mask)
    if not missing:
        return Judged(_good_fate(graph, pattern.mask))
    behind = [place for place in missing if place in ahead.overtaken and is_before(pattern, ahead.overtaken[place])]
    if not behind:
        fate = Fate.OVERDUE if is_before(pattern, ahead.overdue) else Fate.PENDING
        return Judged(fate, waiting=frozenset(missing))
    certain = frozenset(place for place in behind if place.node not in incomplete)
    return Judged(Fate.LOST if certain else Fate.PERHAPS, certain, frozenset(behind) - certain)


def _good_fate(graph: Graph, mask: int) -> Fate:
    if mask & graph.delivery_mask:
        return Fate.DELIVERED
    return Fate.DEAD if mask & graph.dead_mask else Fate.FILTERED


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Rule 14: the 95 % Wilson score interval of a share; source: Wilson, JASA 22 (1927)."""
    share, z2 = successes / n, Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    spread = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - spread)
    high = 1.0 if successes == n else min(1.0, centre + spread)
    return low, high


@dataclass(frozen=True)
class Scale:
    """Rule 14: counts of a sample, scaled to all messages of the window."""

    sample: int
    messages: int

    @property
    def factor(self) -> float:
        return SAMPLE_ALL / self.sample

    def count(self, seen: int) -> int:
        return seen if self.sample == SAMPLE_ALL else round(seen * self.factor)

    def interval(self, low: int, high: int) -> Interval:
        """Return a loss interval, widened by what sampling leaves unsure."""
        if self.sample == SAMPLE_ALL or self.messages == 0:
            return Interval(low, high)
        least = wilson(low, self.messages)[0] * self.messages * self.factor
        most = wilson(high, self.messages)[1] * self.messages * self.factor
        return Interval(math.floor(least), math.ceil(most))


@dataclass(frozen=True)
class FateCounts:
    """Messages by fate, and by a place's label those lost there for certain, and those perhaps lost or overdue."""

    fates: Counter[Fate]
    certain: Counter[str]
    unsure: Counter[str]
    unexplained: int
    on_time: int

    @property
    def messages(self) -> int:
        return sum(self.fates.values())


def take_census(graph: Graph, facts: WindowFacts, ahead: ProgressCuts, incomplete: frozenset[str]) -> FateCounts:
    """Judge every pattern and add up; where tallies prove that nothing is missing, their counts are the fates."""
    if facts.proven:
        ends = {Fate.DELIVERED: graph.delivery_mask, Fate.DEAD: graph.dead_mask, Fate.FILTERED: graph.filtered_mask}
        fates = {
            fate: sum(there.beacons for name, there in facts.checkpoints.items() if mask >> graph.bit[name] & 1)
            for fate, mask in ends.items()
        }
        on_time = facts.e2e_lags.count_up_to(graph.definition.spec.sla.lag.target)
        return FateCounts(Counter(fates), Counter(), Counter(), 0, on_time)
    census = FateCounts(Counter(), Counter(), Counter(), 0, 0)
    unexplained = on_time = 0
    for pattern in facts.patterns:
        judged = judge_pattern(graph, pattern, ahead, incomplete)
        census.fates[judged.fate] += pattern.count
        for label in {place.label for place in judged.certain}:
            census.certain[label] += pattern.count
        unsure = judged.perhaps | (judged.waiting if judged.fate is Fate.OVERDUE else frozenset())
        for label in {place.label for place in unsure}:
            census.unsure[label] += pattern.count
        if is_unexplained(graph, pattern.mask) and graph.first_node not in incomplete:
            unexplained += pattern.count
        if judged.fate is Fate.DELIVERED:
            on_time += pattern.on_time
    return FateCounts(census.fates, census.certain, census.unsure, unexplained, on_time)


def judge(graph: Graph, facts: WindowFacts, evidence: Evidence) -> WindowResult:
    """Return the result of a window.

    Raises:
        CutInsidePattern: time has moved a cut into a pattern, or the tallies prove no longer what they did; read the
            blocks again, cut at `horizon(...).cuts`.
    """
    if facts.proven and not proves(graph, evidence):
        raise CutInsidePattern
    incomplete = evidence.incomplete(graph, facts.read, facts.quarantined)
    ahead = horizon(graph, evidence)
    census = take_census(graph, facts, ahead, incomplete)
    scale = Scale(min(facts.sample, evidence.sample), census.messages)
    messages = scale.count(census.messages)
    lost = scale.interval(
        census.fates[Fate.LOST],
        census.fates[Fate.LOST] + census.fates[Fate.PERHAPS] + census.fates[Fate.OVERDUE],
    )
    pending = scale.count(census.fates[Fate.PENDING])
    kept = census.messages - census.fates[Fate.FILTERED] - census.fates[Fate.DEAD]
    return WindowResult(
        pipeline=graph.definition.name,
        window_start_s=evidence.window_start_s,
        verdict=_verdict(graph, evidence, messages, lost, pending, graph.first_node not in incomplete),
        reasons=_reasons(census, evidence, incomplete, scale),
        proof="tallies" if facts.proven else "beacons",
        sample=share_of(scale.sample),
        messages=messages,
        delivered=scale.count(census.fates[Fate.DELIVERED]),
        filtered=scale.count(census.fates[Fate.FILTERED]),
        dead=scale.count(census.fates[Fate.DEAD]),
        pending=pending,
        unexplained=scale.count(census.unexplained),
        clock_skew_ms=evidence.clock_skew_ms,
        lost=lost,
        on_time_share=census.on_time / kept if kept else None,
        e2e_lag_ms=Lags.of(facts.e2e_lags),
        checkpoints=_checkpoints(graph, facts, scale),
        nodes=tuple(_node(graph, name, facts, census, scale, incomplete) for name in graph.nodes),
        links=_links(graph, facts, census, scale),
        unknown_checkpoints=unknown_checkpoints(graph, facts, evidence),
        pending_since_ms=min(
            (
                pattern.seen_first_ms
                for pattern in facts.patterns
                if pattern.seen_first_ms is not None
                and judge_pattern(graph, pattern, ahead, incomplete).fate in (Fate.PENDING, Fate.OVERDUE)
            ),
            default=None,
        ),
    )


def unknown_checkpoints(graph: Graph, facts: WindowFacts, evidence: Evidence) -> dict[str, int]:
    """Count beacons, by tallies or blocks, of checkpoints unknown to the version in force: shown, not judged."""
    tallied: Counter[str] = Counter()
    for tally in evidence.tallies:
        if tally.checkpoint not in graph.bit:
            tallied[tally.checkpoint] += tally.beacons
    names = sorted({*tallied, *facts.strangers})[:UNKNOWN_SHOWN]
    return {name: max(tallied[name], facts.strangers.get(name, 0)) for name in names}


def _verdict(
    graph: Graph, evidence: Evidence, messages: int, lost: Interval, pending: int, first_complete: bool
) -> Verdict:
    """Rule 10."""
    most = graph.definition.spec.sla.loss.max
    if messages == 0:
        return "idle" if evidence.is_idle(graph) else "unknown"
    if lost.min / messages > most:
        return "loss"
    return "ok" if (lost.max + pending) / messages <= most and first_complete else "unknown"


def _reasons(census: FateCounts, evidence: Evidence, incomplete: frozenset[str], scale: Scale) -> tuple[str, ...]:
    """Rule 10: every reason that is true, whatever the verdict."""
    reasons = {f"evidence:{node}" for node in incomplete}
    reasons |= {"pending"} if census.fates[Fate.PENDING] else set()
    reasons |= {"overdue"} if census.fates[Fate.OVERDUE] else set()
    reasons |= {"unexplained"} if census.unexplained else set()
    reasons |= {"version"} if evidence.version_changed else set()
    reasons |= {"sample"} if scale.sample < SAMPLE_ALL else set()
    return tuple(sorted(reasons))


def _checkpoints(graph: Graph, facts: WindowFacts, scale: Scale) -> tuple[CheckpointResult, ...]:
    """Rules 9 and 12: counts and lags of each checkpoint with beacons, in the order of the flow."""
    return tuple(
        CheckpointResult(
            name=name,
            beacons=scale.count(there.beacons),
            distinct=scale.count(there.distinct),
            duplicates=None if there.duplicates is None else scale.count(there.duplicates),
            replayed=scale.count(there.replayed),
            lag_ms=Lags.of(there.lags),
        )
        for name in graph.checkpoints
        if (there := facts.checkpoints.get(name)) is not None and there.beacons + there.replayed
    )


def lags_at(facts: WindowFacts, *checkpoints: str) -> Sketch:
    """Rule 12: the merged lags of these checkpoints."""
    return Sketch.merged(facts.checkpoints[name].lags for name in checkpoints if name in facts.checkpoints)


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _node(
    graph: Graph, name: str, facts: WindowFacts, census: FateCounts, scale: Scale, incomplete: frozenset[str]
) -> NodeResult:
    lag_in = lags_at(facts, f"{name}.in").quantile_ms(0.95)
    lag_out = lags_at(facts, *graph.outs(name)).quantile_ms(0.95)
    return NodeResult(
        name=name,
        lag_in_p95_ms=lag_in,
        lag_out_p95_ms=lag_out,
        process_duration_p95_ms=_difference(lag_out, lag_in),
        process_duration_ms=Lags.of(facts.durations.get(f"node {name}", Sketch())),
        lost=_lost_at(census, scale, f"{'retrier' if name in graph.retriers else 'node'} {name}"),
        complete=name not in incomplete,
    )


def _links(graph: Graph, facts: WindowFacts, census: FateCounts, scale: Scale) -> tuple[LinkResult, ...]:
    return tuple(
        LinkResult(
            source=link.source,
            target=link.target,
            queue_time_p95_ms=_difference(
                lags_at(facts, f"{link.target}.in").quantile_ms(0.95), lags_at(facts, link.out).quantile_ms(0.95)
            ),
            queue_time_ms=Lags.of(facts.durations.get(f"link {link.name}", Sketch())),
            lost=_lost_at(census, scale, f"link {link.name}"),
            corrupted=None if facts.proven else scale.count(facts.corrupted.get(link.name, 0)),
        )
        for link in graph.links
    )


def _lost_at(census: FateCounts, scale: Scale, label: str) -> Interval:
    return scale.interval(census.certain[label], census.certain[label] + census.unsure[label])

"""The rules of arithmetic: from a window's facts and evidence to its result, one function a rule (docs/arithmetic.md).

Everything here is a pure function on presence patterns (bit masks of checkpoints, see `model.graph`). No message id
is touched: a window can be judged again as time passes without reading a block, unless a cut falls inside a pattern.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeVar
from uuid import UUID

from msgspec import UNSET

from lagloss.wire.format import SAMPLE_ALL, share_of
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.evidence import Evidence
from lagloss_server.judging.facts import Pattern, WindowFacts
from lagloss_server.judging.tally_proof import proves
from lagloss_server.model.cuts import parent_of
from lagloss_server.model.graph import Destination, Graph, GraphPlace, Side
from lagloss_server.model.place import Place, node_label
from lagloss_server.model.window import (
    EXITS_WITH_REASON,
    CheckpointCounts,
    Crash,
    DestinationCounts,
    Interval,
    Lags,
    LinkCounts,
    NodeCounts,
    Percentiles,
    SideCounts,
    SourceCounts,
    UndeclaredCheckpoint,
    Verdict,
    Window,
    bounded_reasons,
    loss_ratio,
    rfc3339,
)

T = TypeVar("T")

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
    """A cut falls inside a pattern: read the window's blocks again to evaluate its messages separately."""


@dataclass(frozen=True)
class Overtaken:
    """Which messages a place has overtaken, by when they were last seen (epoch ms): those surely before `before`, but
    for those that a dead emitter may have in hand, `held` from (included) to (not included)."""

    before: float
    held: tuple[tuple[float, float], ...] = ()

    @property
    def cuts(self) -> tuple[float, ...]:
        return (self.before, *(cut for span in self.held for cut in span))

    def holds(self, pattern: Pattern) -> bool:
        """Return whether the pattern's messages were overtaken.

        Raises:
            CutInsidePattern: some were, some were not.
        """
        if not is_before(pattern, self.before):
            return False
        return not any(not is_before(pattern, start) and is_perhaps_before(pattern, end) for start, end in self.held)


@dataclass(frozen=True)
class ProgressCuts:
    """How far each place has come: the messages that it has overtaken, and since when messages are overdue (pending for
    longer than maxWait), both by when they were surely last seen (epoch ms)."""

    overtaken: Mapping[GraphPlace, Overtaken]
    overdue: float

    @property
    def cuts(self) -> tuple[float, ...]:
        """Where messages that are alike by their checkpoints may be judged differently, ascending."""
        cuts_ = {cut for overtaken in self.overtaken.values() for cut in overtaken.cuts}
        return tuple(sorted(cut for cut in (*cuts_, self.overdue) if math.isfinite(cut)))


def implied(graph: Graph, mask: int) -> int:
    """Rule 1: the checkpoints a message is implied at, given those it is at."""
    result = 0
    implied_mask = mask
    while implied_mask:
        low = implied_mask & -implied_mask
        result |= graph.dominators[low.bit_length() - 1]
        implied_mask ^= low
    return result


def is_unexplained(graph: Graph, mask: int) -> bool:
    """Rule 2: seen somewhere, though at no source's `in`."""
    return not mask & graph.entrance_mask


def missing_places(graph: Graph, mask: int) -> tuple[GraphPlace, ...]:
    """Rules 3 and 5: the places where a message with this pattern is missing (`GraphPlace.is_missing` has the rule), or
    is held by a retrier."""
    implied_mask = implied(graph, mask)
    missing = tuple(place for place in graph.places if place.is_missing(mask, implied_mask))
    ended = graph.delivery_mask | graph.dead_mask | graph.filtered_mask
    # a trail that ends in a retrier, with a hole where it was handed over: the retrier has it
    return missing if missing or mask & ended else graph.held_by(mask)


def is_unsettled(graph: Graph, mask: int) -> bool:
    """Return whether time may still change what became of messages with this pattern, here or at a destination."""
    if missing_places(graph, mask):
        return True
    implied_mask = implied(graph, mask)
    return any(
        implied_mask & to.part and not (mask & (to.at | to.filtered) or to.is_dead(mask)) for to in graph.destinations
    )


def has_passed(graph: Graph, place: GraphPlace, mask: int) -> bool:
    """Return whether messages that come to a place once more, seen at `mask` since, have passed it, and what became of
    them at each destination behind it."""
    mask = mask & place.beyond | place.origin
    implied_mask = implied(graph, mask)
    behind = implied_mask & place.beyond
    if any(its.is_missing(mask, implied_mask) for its in graph.places if its == place or its.origin & place.beyond):
        return False
    return all(mask & (to.at | to.filtered) or to.is_dead(mask) for to in graph.destinations if behind & to.part)


def is_missing_outside(graph: Graph, mask: int) -> bool:
    """Rule 15: return whether messages with this pattern are missing at a place in no destination's part."""
    parts = functools.reduce(int.__or__, (destination.part for destination in graph.destinations))
    implied_mask = implied(graph, mask)
    missing = [place for place in graph.places if place.is_missing(mask, implied_mask)]
    if missing or not missing_places(graph, mask):
        return any(not place.origin & parts for place in missing)
    return not any(graph.handed(place, mask) & parts for place in missing_places(graph, mask))


def horizon(graph: Graph, evidence: Evidence) -> ProgressCuts:
    """Rule 4: the cuts of each place. A retrier overtakes no message."""
    skew_ms = evidence.clock_skew_ms
    return ProgressCuts(
        overtaken={place: _overtaken(place, evidence, skew_ms) for place in graph.places if place.kind != "retrier"},
        overdue=evidence.now_ms - graph.definition.spec.max_wait,
    )


def _overtaken(place: GraphPlace, evidence: Evidence, skew_ms: int) -> Overtaken:
    progress, margin_ms = evidence.progress(place.progress), OVERTAKEN_AFTER_MS + skew_ms
    seen_until = evidence.seen_until.get(place.progress.partition(".")[0], math.inf)
    if progress is None:
        # what has come through since then was sent later; a window is due so long after that that it needs no 5 s
        came_s = max((start for name, start in evidence.later_due.items() if name in place.exits), default=-math.inf)
        return Overtaken(min(came_s * 1000 - skew_ms, seen_until - margin_ms))
    before = min(progress.until, seen_until) - margin_ms
    held: list[tuple[float, float]] = []
    for start, end in sorted((until - margin_ms, min(end + margin_ms, before)) for until, end in progress.dead):
        if held and start <= held[-1][1]:
            held[-1] = (held[-1][0], max(held[-1][1], end))
        elif start < end:
            held.append((start, end))
    return Overtaken(before, tuple(held))


def is_before(pattern: Pattern, cut: float) -> bool:
    """Return whether the pattern's messages were surely last seen before the cut.

    Raises:
        CutInsidePattern: some were, some were not.
    """
    return _are_before(pattern.seen_by_ms, cut)


def is_perhaps_before(pattern: Pattern, cut: float) -> bool:
    """Return whether the pattern's messages may have been last seen before the cut: the same, unless their times were
    supplied.

    Raises:
        CutInsidePattern: some may, some may not.
    """
    return _are_before(pattern.seen_ms, cut)


def _are_before(moments_ms: tuple[float | None, float | None], cut: float) -> bool:
    first_ms, last_ms = moments_ms
    if first_ms is None or last_ms is None:
        raise CutInsidePattern
    if last_ms < cut:
        return True
    if first_ms >= cut:
        return False
    raise CutInsidePattern


@dataclass(frozen=True)
class Judged:
    """Fate of a pattern's messages, the places of their loss, certain or possible, and those that have not overtaken
    them yet."""

    fate: Fate
    certain: frozenset[GraphPlace] = frozenset()
    perhaps: frozenset[GraphPlace] = frozenset()
    waiting: frozenset[GraphPlace] = frozenset()


def judge_pattern(graph: Graph, pattern: Pattern, ahead: ProgressCuts, incomplete: frozenset[str]) -> Judged:
    """Rules 5, 6 and 8: pending, overdue, lost or one of the good fates.

    Raises:
        CutInsidePattern: a cut falls inside the pattern.
    """
    missing = missing_places(graph, pattern.mask)
    if not missing:
        return Judged(good_fate(graph, pattern.mask))
    return _judge_missing(missing, pattern, ahead, incomplete)


def judge_pattern_at(
    graph: Graph, destination: Destination, pattern: Pattern, ahead: ProgressCuts, incomplete: frozenset[str]
) -> Fate | None:
    """Rule 15: what became of a pattern's messages as far as a destination is concerned; None if not due there.

    Raises:
        CutInsidePattern: a cut falls inside the pattern.
    """
    if not implied(graph, pattern.mask) & destination.part:
        return None
    missing = tuple(place for place in missing_places(graph, pattern.mask) if place.origin & destination.part)
    if missing:
        return _judge_missing(missing, pattern, ahead, incomplete).fate
    if pattern.mask & destination.at:
        return Fate.DELIVERED
    if destination.is_dead(pattern.mask):
        return Fate.DEAD
    if pattern.mask & destination.filtered:
        return Fate.FILTERED
    return _waiting(pattern, ahead)  # with a retrier that other nodes use, too


def _judge_missing(
    missing: Sequence[GraphPlace], pattern: Pattern, ahead: ProgressCuts, incomplete: frozenset[str]
) -> Judged:
    behind = [place for place in missing if place in ahead.overtaken and ahead.overtaken[place].holds(pattern)]
    if not behind:
        return Judged(_waiting(pattern, ahead), waiting=frozenset(missing))
    certain = frozenset(place for place in behind if place.node not in incomplete)
    lost_at = frozenset(behind)
    return Judged(Fate.LOST if certain else Fate.PERHAPS, certain, lost_at - certain, frozenset(missing) - lost_at)


def _waiting(pattern: Pattern, ahead: ProgressCuts) -> Fate:
    return Fate.OVERDUE if is_before(pattern, ahead.overdue) else Fate.PENDING


def good_fate(graph: Graph, mask: int) -> Fate:
    """Return what became of messages with this pattern, of which nothing is missing."""
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
    def is_whole(self) -> bool:
        """Return whether no message is left out."""
        return self.sample == SAMPLE_ALL

    @property
    def factor(self) -> float:
        return SAMPLE_ALL / self.sample

    def count(self, sampled: int) -> int:
        return sampled if self.sample == SAMPLE_ALL else round(sampled * self.factor)

    def interval(self, fates: Mapping[Fate, int]) -> Interval:
        """Return the loss interval of messages with these fates, widened by what sampling leaves unsure."""
        certain = fates.get(Fate.LOST, 0)
        return self.widened(certain, certain + fates.get(Fate.PERHAPS, 0) + fates.get(Fate.OVERDUE, 0))

    def widened(self, low: int, high: int) -> Interval:
        """Return a loss interval, widened by what sampling leaves unsure."""
        if self.sample == SAMPLE_ALL or self.messages == 0:
            return Interval(low, high)
        least = wilson(low, self.messages)[0] * self.messages * self.factor
        most = wilson(high, self.messages)[1] * self.messages * self.factor
        return Interval(math.floor(least), math.ceil(most))


@dataclass(frozen=True)
class FateCounts:
    """Messages by fate, and by a place's label those lost there for certain, and those perhaps lost or overdue.

    `due`: by destination, the fates of the messages due there; `on_time`: how many of them arrived on time; `outside`:
    messages with a missing place that is in no destination's part (rule 15).
    """

    fates: Counter[Fate]
    certain: Counter[str]
    unsure: Counter[str]
    unexplained: int
    due: tuple[Counter[Fate], ...]
    on_time: tuple[int, ...]
    outside: int

    @classmethod
    def added(cls, parts: Sequence[FateCounts]) -> FateCounts:
        """Return the counts of parts of the messages together."""
        return cls(
            fates=_together(part.fates for part in parts),
            certain=_together(part.certain for part in parts),
            unsure=_together(part.unsure for part in parts),
            unexplained=sum(part.unexplained for part in parts),
            due=tuple(map(_together, zip(*(part.due for part in parts), strict=True))),
            on_time=tuple(map(sum, zip(*(part.on_time for part in parts), strict=True))),
            outside=sum(part.outside for part in parts),
        )

    @property
    def messages(self) -> int:
        return sum(self.fates.values())

    @property
    def on_time_of(self) -> int:
        """The messages that the pipeline's on-time share is of, one each for every destination."""
        return sum(map(_asked, self.due)) + self.outside


@dataclass(frozen=True)
class Census:
    """The messages of a window by fate: of each side (rule 18), in the order of `Graph.sides`, and of each source (rule
    17), in that of `Graph.sources`."""

    sides: tuple[FateCounts, ...]
    sources: tuple[FateCounts, ...]

    @functools.cached_property
    def whole(self) -> FateCounts:
        return FateCounts.added(self.sides)


def _together(counts: Iterable[Counter[T]]) -> Counter[T]:
    return functools.reduce(Counter.__add__, map(Counter, counts), Counter())


def _asked(fates: Counter[Fate]) -> int:
    """Count the messages due at a destination that its on-time share is of."""
    return sum(fates.values()) - fates[Fate.FILTERED] - fates[Fate.DEAD]


def take_census(graph: Graph, facts: WindowFacts, ahead: ProgressCuts, incomplete: frozenset[str]) -> Census:
    """Judge every pattern and add up; where tallies prove that nothing is missing, their counts are the fates."""
    if facts.proven:
        sides = tuple(_proven_counts(graph, facts, side) for side in graph.sides)
        return Census(sides, tuple(sides[graph.sides.index(graph.side_of(source))] for source in graph.sources))
    patterns = [patterns_of(side, facts.patterns) if len(graph.sides) > 1 else facts.patterns for side in graph.sides]
    sides = tuple(
        _count_fates(graph, some, ahead, incomplete, side) for side, some in zip(graph.sides, patterns, strict=True)
    )
    return Census(sides, _of_sources(graph, patterns, sides, ahead, incomplete))


def patterns_of(side: Side, patterns: Iterable[Pattern]) -> list[Pattern]:
    """Rule 18: return the patterns of the messages of a side; an id that is on two sides is a message of each."""
    return [replace(pattern, mask=pattern.mask & side.mask) for pattern in patterns if pattern.mask & side.mask]


def _of_sources(
    graph: Graph,
    patterns: Sequence[Sequence[Pattern]],
    sides: Sequence[FateCounts],
    ahead: ProgressCuts,
    incomplete: frozenset[str],
) -> tuple[FateCounts, ...]:
    counts = []
    for number, source in enumerate(graph.sources):
        side = graph.side_of(source)
        index = graph.sides.index(side)
        if len(side.sources) == 1:
            counts.append(sides[index])
        else:
            mine = [pattern for pattern in patterns[index] if is_of_source(graph, number, pattern.mask)]
            counts.append(_count_fates(graph, mine, ahead, incomplete, side))
    return tuple(counts)


def is_of_source(graph: Graph, source: int, mask: int) -> bool:
    """Rule 17: return whether messages with this pattern are of a source (its number in `Graph.sources`)."""
    return bool(implied(graph, mask) >> graph.bit[graph.entrances[source]] & 1)


def _count_fates(
    graph: Graph, patterns: Iterable[Pattern], ahead: ProgressCuts, incomplete: frozenset[str], side: Side
) -> FateCounts:
    fates: Counter[Fate] = Counter()
    certain: Counter[str] = Counter()
    unsure: Counter[str] = Counter()
    due: list[Counter[Fate]] = [Counter() for _ in graph.destinations]
    on_time = [0 for _ in graph.destinations]
    unexplained = outside = 0
    are_sources_complete = incomplete.isdisjoint(side.sources)
    for pattern in patterns:
        judged = judge_pattern(graph, pattern, ahead, incomplete)
        fates[judged.fate] += pattern.count
        for label in {place.label for place in judged.certain}:
            certain[label] += pattern.count
        for label in {
            place.label for place in judged.perhaps | (judged.waiting if judged.fate is Fate.OVERDUE else frozenset())
        }:
            unsure[label] += pattern.count
        if are_sources_complete and is_unexplained(graph, pattern.mask):
            unexplained += pattern.count
        for index, destination in enumerate(graph.destinations):
            fate = judge_pattern_at(graph, destination, pattern, ahead, incomplete)
            if fate is not None:
                due[index][fate] += pattern.count
            if fate is Fate.DELIVERED and pattern.on_time:
                on_time[index] += pattern.on_time[index]
        outside += pattern.count if is_missing_outside(graph, pattern.mask) else 0
    return FateCounts(fates, certain, unsure, unexplained, tuple(due), tuple(on_time), outside)


def _proven_counts(graph: Graph, facts: WindowFacts, side: Side) -> FateCounts:
    """Every message took one way to its end, so each end's beacons are the messages."""

    def count(mask: int) -> int:
        mask &= side.mask
        return sum(checkpoint.beacons for name, checkpoint in facts.checkpoints.items() if mask >> graph.bit[name] & 1)

    def ended(index: int, dead: int, filtered: int) -> Counter[Fate]:
        return Counter({Fate.DELIVERED: count(index), Fate.DEAD: count(dead), Fate.FILTERED: count(filtered)})

    return FateCounts(
        fates=ended(graph.delivery_mask, graph.dead_mask, graph.filtered_mask),
        certain=Counter(),
        unsure=Counter(),
        unexplained=0,
        due=tuple(ended(destination.at, destination.dead, destination.filtered) for destination in graph.destinations),
        on_time=tuple(
            lags.count_up_to(graph.definition.spec.sla.lag_at(destination.name).target)
            if destination.at & side.mask
            else 0
            for destination, lags in zip(graph.destinations, facts.arrivals, strict=True)
        ),
        outside=0,
    )


def judge(graph: Graph, facts: WindowFacts, evidence: Evidence) -> Window:
    """Return the result of a window.

    Raises:
        CutInsidePattern: time has moved a cut into a pattern, or the tallies prove no longer what they did, or the
            facts are of other destinations; read the blocks again, cut at `horizon(...).cuts`.
    """
    if facts.proven and not proves(graph, evidence):
        raise CutInsidePattern
    if facts.arrivals and len(facts.arrivals) != len(graph.destinations):
        raise CutInsidePattern
    incomplete = evidence.incomplete(graph, facts.read, facts.quarantined)
    ahead = horizon(graph, evidence)
    counted = take_census(graph, facts, ahead, incomplete)
    census = counted.whole
    scale = Scale(min(facts.sample, evidence.sample), census.messages)
    messages = scale.count(census.messages)
    lost = scale.interval(census.fates)
    pending = scale.count(census.fates[Fate.PENDING])
    destinations = _destinations(graph, facts, census, scale)
    sides = _sides(graph, evidence, counted, scale, destinations, incomplete)
    not_whole = {
        number: parents_not_whole(graph, facts, number, counted, ahead, incomplete) if scale.is_whole else None
        for number, source in enumerate(graph.sources)
        if graph.splits(source)
    }
    crashes = _crashes(graph, evidence)
    return Window(
        pipeline=graph.definition.name,
        window_start=rfc3339(evidence.window_start_s),
        verdict=worst(verdict for side in sides if (verdict := side.verdict) is not None),
        reasons=_reasons(census, evidence, incomplete, scale, crashes),
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
        loss_ratio=loss_ratio(lost, messages),
        on_time_share=sum(census.on_time) / census.on_time_of if census.on_time_of else None,
        on_time_of=scale.count(census.on_time_of),
        e2e_lag_ms=Lags.of(facts.e2e_lags),
        checkpoints=_checkpoints(graph, facts, scale),
        nodes=tuple(_node(graph, name, facts, census, scale, incomplete) for name in graph.nodes),
        links=_links(graph, facts, census, scale),
        destinations=destinations,
        sources=_sources(graph, facts, counted, scale, not_whole) if len(graph.sources) > 1 else (),
        sides=sides if len(sides) > 1 else (),
        crashes=crashes,
        unknown_checkpoints=unknown_checkpoints(graph, facts, evidence),
        reasons_by_node=_reasons_by_node(graph, facts, scale),
        staleness_ms={},
    )


def first_waiting_ms(graph: Graph, facts: WindowFacts, evidence: Evidence) -> float | None:
    """Return by when the first of the pending or overdue messages was surely last seen (epoch ms); None of none.

    Raises:
        CutInsidePattern: a cut falls inside a pattern.
    """
    ahead, incomplete = horizon(graph, evidence), evidence.incomplete(graph, facts.read, facts.quarantined)
    return min(
        (
            first_ms
            for pattern in facts.patterns
            if (first_ms := pattern.seen_by_ms[0]) is not None
            and judge_pattern(graph, pattern, ahead, incomplete).fate in (Fate.PENDING, Fate.OVERDUE)
        ),
        default=None,
    )


def _destinations(graph: Graph, facts: WindowFacts, census: FateCounts, scale: Scale) -> tuple[DestinationCounts, ...]:
    """Rule 15, in the order of the flow."""
    return tuple(
        DestinationCounts(
            name=destination.name,
            messages=scale.count(sum(fates.values())),
            delivered=scale.count(fates[Fate.DELIVERED]),
            filtered=scale.count(fates[Fate.FILTERED]),
            dead=scale.count(fates[Fate.DEAD]),
            pending=scale.count(fates[Fate.PENDING]),
            lost=replace(scale, messages=sum(fates.values())).interval(fates),
            on_time_share=census.on_time[index] / _asked(fates) if _asked(fates) else None,
            e2e_lag_ms=Lags.of(facts.arrivals[index] if facts.arrivals else Sketch()),
        )
        for index, (destination, fates) in enumerate(zip(graph.destinations, census.due, strict=True))
    )


def parents_not_whole(
    graph: Graph, facts: WindowFacts, source: int, census: Census, ahead: ProgressCuts, incomplete: frozenset[str]
) -> Interval | None:
    """Rule 19: count the parents of which a child is lost, by the names of the lost children; None where not all have
    one that says whose child it is. Of a sample, which leaves children out, it is not known."""
    fates, side = census.sources[source].fates, graph.side_of(graph.sources[source])
    lost, maybe = fates[Fate.LOST], fates[Fate.PERHAPS] + fates[Fate.OVERDUE]
    if not lost + maybe:
        return Interval(0, 0)
    parents: dict[Fate, list[str | None]] = {Fate.LOST: [], Fate.PERHAPS: [], Fate.OVERDUE: []}
    for missing in facts.missing:
        mask = missing.mask & side.mask
        if mask and is_of_source(graph, source, mask):
            fate = judge_pattern(graph, missing.pattern(mask), ahead, incomplete).fate
            if fate in parents:
                parents[fate].append(None if missing.name is None else parent_of(missing.name))
    every = [parent for found_there in parents.values() for parent in found_there]
    if None in every or len(every) != lost + maybe:
        return None
    return Interval(len(set(parents[Fate.LOST])), len(set(every)))


def _sources(
    graph: Graph,
    facts: WindowFacts,
    census: Census,
    scale: Scale,
    not_whole: Mapping[int, Interval | None],
) -> tuple[SourceCounts, ...]:
    """Rules 17 and 19, in the order of the flow."""
    return tuple(
        SourceCounts(
            name=graph.sources[index],
            messages=scale.count(mine.messages),
            delivered=scale.count(mine.fates[Fate.DELIVERED]),
            filtered=scale.count(mine.fates[Fate.FILTERED]),
            dead=scale.count(mine.fates[Fate.DEAD]),
            pending=scale.count(mine.fates[Fate.PENDING]),
            lost=replace(scale, messages=mine.messages).interval(mine.fates),
            on_time_share=sum(mine.on_time) / mine.on_time_of if mine.on_time_of else None,
            on_time_of=scale.count(mine.on_time_of),
            e2e_lag_ms=Lags.of(facts.source_arrivals[index] if facts.source_arrivals else Sketch()),
            parents_not_whole=not_whole.get(index, UNSET),
        )
        for index, mine in enumerate(census.sources)
    )


def _crashes(graph: Graph, evidence: Evidence) -> tuple[Crash, ...]:
    """Rule 16: the dead emitters that leave a node incomplete for good, in the order of the flow."""
    crashes = [Crash(state.node, str(UUID(bytes=state.emitter))) for state in evidence.silent()]
    known_crashes = [crash for crash in crashes if crash.node in graph.nodes]
    return tuple(sorted(known_crashes, key=lambda crash: (graph.nodes.index(crash.node), crash.emitter)))


def _reasons_by_node(graph: Graph, facts: WindowFacts, scale: Scale) -> dict[str, dict[str, dict[str, int]]] | None:
    """Count why messages were filtered or dead, in the order of the flow; None where no beacon was read."""
    if facts.proven:
        return None
    reasons: dict[str, dict[str, dict[str, int]]] = {}
    for node in graph.nodes:
        for exit_ in EXITS_WITH_REASON:
            counts = bounded_reasons(facts.reasons.get(f"{node}.{exit_}", {}))
            if counts:
                scaled = {reason: scale.count(count) for reason, count in counts.items()}
                reasons.setdefault(node, {})[exit_] = scaled
    return reasons


def unknown_checkpoints(graph: Graph, facts: WindowFacts, evidence: Evidence) -> tuple[UndeclaredCheckpoint, ...]:
    """Count beacons, by tallies or blocks, of checkpoints unknown to the version in force: shown, not judged."""
    tallied: Counter[str] = Counter()
    for tally in evidence.tallies:
        if tally.checkpoint not in graph.bit:
            tallied[tally.checkpoint] += tally.beacons
    names = sorted({*tallied, *facts.strangers})[:UNKNOWN_SHOWN]
    return tuple(UndeclaredCheckpoint(name, max(tallied[name], facts.strangers.get(name, 0))) for name in names)


def _sides(
    graph: Graph,
    evidence: Evidence,
    census: Census,
    scale: Scale,
    destinations: Sequence[DestinationCounts],
    incomplete: frozenset[str],
) -> tuple[SideCounts, ...]:
    """Rule 18, in the order of the flow."""
    sides = []
    for side, mine in zip(graph.sides, census.sides, strict=True):
        ends = zip(graph.destinations, destinations, strict=True)
        lost = replace(scale, messages=mine.messages).interval(mine.fates)
        messages, pending = scale.count(mine.messages), scale.count(mine.fates[Fate.PENDING])
        own = [row for destination, row in ends if destination.at & side.mask]
        sides.append(
            SideCounts(
                name=side.name,
                nodes=side.nodes,
                verdict=_verdict(graph, evidence, side, messages, lost, pending, own, incomplete),
                messages=messages,
                delivered=scale.count(mine.fates[Fate.DELIVERED]),
                filtered=scale.count(mine.fates[Fate.FILTERED]),
                dead=scale.count(mine.fates[Fate.DEAD]),
                pending=pending,
                unexplained=scale.count(mine.unexplained),
                lost=lost,
                loss_ratio=loss_ratio(lost, messages),
            )
        )
    return tuple(sides)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Rule 18: return the verdict of a pipeline with sides of these."""
    existing, order = set(verdicts), ("loss", "unknown", "ok", "idle")
    return next(verdict for verdict in order if verdict in existing)


def _verdict(
    graph: Graph,
    evidence: Evidence,
    side: Side,
    messages: int,
    lost: Interval,
    pending: int,
    destinations: Iterable[DestinationCounts],
    incomplete: frozenset[str],
) -> Verdict:
    """Rules 10 and 15: `loss`, or else `unknown`, if it is so for the side or for a destination of it with targets of
    its own."""
    sla, sources_complete = graph.definition.spec.sla, incomplete.isdisjoint(side.sources)
    is_idle = graph.spanned.isdisjoint(side.sources) and evidence.is_idle(side.sources)
    verdict: Verdict = "idle" if is_idle else "unknown"
    if messages:
        verdict = _judge_loss(messages, lost, pending, sla.loss.max, sources_complete)
    verdicts = [verdict] + [
        _judge_loss(
            destination.messages,
            destination.lost,
            destination.pending,
            sla.loss_at(destination.name).max,
            sources_complete,
        )
        for destination in destinations
        if destination.name in sla.destinations
        and destination.messages
        and destination.lost is not None
        and destination.pending is not None
    ]
    worst_first: tuple[Verdict, ...] = ("loss", "unknown")
    return next((verdict for verdict in worst_first if verdict in verdicts), verdict)


def _judge_loss(messages: int, lost: Interval, pending: int, most: float, sources_complete: bool) -> Verdict:
    if lost.min / messages > most:
        return "loss"
    return "ok" if (lost.max + pending) / messages <= most and sources_complete else "unknown"


def _reasons(
    census: FateCounts, evidence: Evidence, incomplete: frozenset[str], scale: Scale, crashes: Iterable[Crash]
) -> tuple[str, ...]:
    """Rule 10: every reason that is true, whatever the verdict."""
    reasons = {f"evidence:{node}" for node in incomplete}
    reasons |= {f"crash:{crash.node}" for crash in crashes}
    reasons |= {"pending"} if census.fates[Fate.PENDING] else set()
    reasons |= {"overdue"} if census.fates[Fate.OVERDUE] else set()
    reasons |= {"unexplained"} if census.unexplained else set()
    reasons |= {"version"} if evidence.version_changed else set()
    reasons |= {"sample"} if scale.sample < SAMPLE_ALL else set()
    return tuple(sorted(reasons))


def _checkpoints(graph: Graph, facts: WindowFacts, scale: Scale) -> tuple[CheckpointCounts, ...]:
    """Rules 9, 12 and 20: counts and lags of each checkpoint with beacons, in the order of the flow."""
    return tuple(
        CheckpointCounts(
            name=name,
            beacons=scale.count(counts.beacons),
            distinct=scale.count(counts.distinct),
            duplicates=None if counts.duplicates is None else scale.count(counts.duplicates),
            replayed=scale.count(counts.replayed),
            lag_ms=Percentiles.of(counts.lags),
            out_of_order=scale.count(counts.out_of_order),
        )
        for name in graph.checkpoints
        if (counts := facts.checkpoints.get(name)) is not None and counts.beacons + counts.replayed
    )


def lags_at(facts: WindowFacts, *checkpoints: str) -> Sketch:
    """Rule 12: the merged lags of these checkpoints."""
    return Sketch.merged(facts.checkpoints[name].lags for name in checkpoints if name in facts.checkpoints)


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _node(
    graph: Graph, name: str, facts: WindowFacts, census: FateCounts, scale: Scale, incomplete: frozenset[str]
) -> NodeCounts:
    lag_in = lags_at(facts, f"{name}.in").quantile_ms(0.95)
    lag_out = lags_at(facts, *graph.outs(name)).quantile_ms(0.95)
    return NodeCounts(
        name=name,
        lag_in_p95_ms=lag_in,
        lag_out_p95_ms=lag_out,
        process_duration_p95_ms=_difference(lag_out, lag_in),
        process_duration_ms=Percentiles.of(facts.durations.get(node_label(name), Sketch())),
        lost=_lost_at(census, scale, Place("retrier" if name in graph.retriers else "node", name).label),
        complete=name not in incomplete,
    )


def _links(graph: Graph, facts: WindowFacts, census: FateCounts, scale: Scale) -> tuple[LinkCounts, ...]:
    return tuple(
        LinkCounts(
            source=link.source,
            target=link.target,
            queue_time_p95_ms=_difference(
                lags_at(facts, f"{link.target}.in").quantile_ms(0.95), lags_at(facts, link.out).quantile_ms(0.95)
            ),
            queue_time_ms=Percentiles.of(facts.durations.get(link.label, Sketch())),
            lost=_lost_at(census, scale, link.label),
            corrupted=None if facts.proven else scale.count(facts.corrupted.get(link.name, 0)),
            checked=None if facts.proven else scale.count(facts.checked.get(link.name, 0)),
        )
        for link in graph.links
    )


def _lost_at(census: FateCounts, scale: Scale, label: str) -> Interval:
    return scale.widened(census.certain[label], census.certain[label] + census.unsure[label])

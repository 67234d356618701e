"""The reference pipeline in numbers: what its nodes would observe and report of traffic under faults, judged by the
closer's own rules, without a server.

Events come in batches that share a second of event time and a fate. A batch leaves a trail of checkpoints and times; at
any moment the windows' facts are what of the trails has happened by then, and the evidence is what the nodes' emitters
would have reported.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from benchmarks.backtest.faults import SimulatedFault, outages, taken_in_at
from lagloss.wire.format import WINDOW_S
from lagloss.wire.sketch import Sketch, bin_keys
from lagloss_server.judging.arithmetic import horizon, is_unsettled, judge
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState, TallyState
from lagloss_server.judging.facts import CheckpointFacts, Pattern, WindowFacts, merge_patterns
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.place import ends_of, link_name
from lagloss_server.model.window import Window
from pipeline_under_test.stream.topology import (
    CONN_FB,
    CONN_GA,
    EVENT_NORM,
    EVENT_ROUTER,
    GLOBAL_RETRIER,
    NODES,
    VENDORS,
)

COL: Final = NODES[0]
MALFORMED, UNREADABLE, ROBOTS = 0.002, 0.002, 0.02
"""Shares of the events, as in the load of the reference pipeline; half of the rest goes to both vendors."""
HOP_S: Final = 0.05
"""Mean time on a link, and mean time in a node."""
LOCAL_TRIES_S: Final = 2.0
"""A connector tries for so long before it hands an event to the global retrier."""
TIERS_S: Final = (10.0, 60.0, 300.0)
REPORTED_S: Final = 1.0
"""Age of what a node has reported last."""
CLOSES_AFTER_S: Final = 2.0
"""A window is closed so long after it is due."""
AGAIN_S: Final = 60
"""An unsettled window is judged again so often."""
WAITS_S: Final = 1.0
"""What waits for less changes no lane."""
Seen = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one fate: when each checkpoint saw them (epoch s), and whether there are two of each, or they are
    corrupted, from a checkpoint on."""

    count: int
    event_s: float
    seen: Seen = ()
    twice_from: str | None = None
    corrupted_on: str | None = None

    def at(self, checkpoint: str, moment_s: float) -> Batch:
        return replace(self, seen=(*self.seen, (checkpoint, moment_s)))


@dataclass(slots=True)
class SimulatedPipeline:
    """The reference pipeline from its first minute on. `rate`: events per second at a moment; `step_s`: seconds of
    event time in a batch, of minutes that no fault is near as many as there are."""

    definition: Definition
    rate: Callable[[float], float]
    faults: Sequence[SimulatedFault]
    rng: np.random.Generator
    step_s: float = 1.0
    tiers_s: Sequence[float] = TIERS_S
    graph: Graph = field(init=False)
    windows: dict[int, list[Batch]] = field(default_factory=lambda: defaultdict(list))
    _unsettled: dict[int, bool] = field(default_factory=dict)
    _waits: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _outages: dict[str, list[tuple[float, float]]] = field(init=False)
    _emitters: dict[str, list[tuple[bytes, float, float | None]]] = field(init=False)

    def __post_init__(self) -> None:
        self.graph = self.definition.graph
        self._outages = outages(self.faults, NODES)
        self._emitters = {node: list(self._lives(node)) for node in NODES}

    def run(self, start_s: int) -> None:
        """Let the events of one minute go through."""
        active = [fault for fault in self.faults if fault.from_s < start_s + WINDOW_S and fault.to_s > start_s - 3_600]
        step_s = self.step_s if active else float(WINDOW_S)
        for step in range(round(WINDOW_S / step_s)):
            at_s = start_s + step * step_s
            factor = math.prod(fault.number for fault in active if fault.kind == "burst" and fault.is_on(at_s))
            events = int(self.rng.poisson(self.rate(at_s) * step_s * factor))
            event_s = at_s + float(self.rng.uniform(0, step_s))
            for batch in self._flow(events, event_s, active):
                self.windows[start_s].append(batch)

    def forget(self, before_s: int) -> None:
        """Forget windows and waits that no judgement needs any more."""
        for start in [start for start in self.windows if start < before_s]:
            del self.windows[start]
        for node, waits in self._waits.items():
            self._waits[node] = [wait for wait in waits if wait[1] > before_s]

    def judged(self, start_s: int, now_s: float) -> Window:
        """Return the result of a window as of a moment, in the closer's words."""
        batches = self.windows.get(start_s, ())
        tallies = self._tallies(batches, start_s, now_s)
        evidence = self._evidence(start_s, now_s, tallies)
        facts = self._facts(batches, now_s, tallies, horizon(self.graph, evidence).cuts)
        return judge(self.graph, facts, evidence)

    # -- the way of the events ---------------------------------------------------------------------------------------

    def _flow(self, events: int, event_s: float, active: Sequence[SimulatedFault]) -> Iterator[Batch]:
        kinds = (MALFORMED, UNREADABLE, ROBOTS, 0.25, 0.25)
        malformed, unreadable, robots, to_ga, to_fb, to_both = self.rng.multinomial(
            events, [*kinds, 1 - sum(kinds)]
        ).tolist()
        for batch, out_s in self._visit(COL, Batch(malformed, event_s), event_s, active, end="filtered"):
            assert out_s is None
            yield batch
        for count, end, vendors in (
            (unreadable, "dead", ()), (robots, "filtered", ()),
            (to_ga, None, (CONN_GA,)), (to_fb, None, (CONN_FB,)), (to_both, None, (CONN_GA, CONN_FB)),
        ):  # fmt: skip
            yield from self._through(Batch(count, event_s), end, vendors, active)

    def _through(
        self, batch: Batch, end: str | None, vendors: Sequence[str], active: Sequence[SimulatedFault]
    ) -> Iterator[Batch]:
        for collected, out_s in self._visit(COL, batch, batch.event_s, active):
            if out_s is None:
                yield collected
                continue
            for bad, poisoned in self._split(collected, self._share("poison", COL, None, batch.event_s, active)):
                yield from self._normalised(bad, "dead" if poisoned else end, vendors, out_s, active)

    def _normalised(
        self, batch: Batch, end: str | None, vendors: Sequence[str], out_s: float, active: Sequence[SimulatedFault]
    ) -> Iterator[Batch]:
        for normalised, sent_s in self._cross(COL, EVENT_NORM, batch, out_s, active, end):
            if sent_s is None:
                yield normalised
                continue
            for routed, routed_s in self._cross(EVENT_NORM, EVENT_ROUTER, normalised, sent_s, active, None, vendors):
                pieces = [routed]
                for vendor in vendors if routed_s is not None else ():
                    pieces = [
                        piece
                        for each in pieces
                        for piece, _ in self._cross(EVENT_ROUTER, vendor, each, routed_s or 0.0, active)
                    ]
                yield from pieces

    def _cross(
        self,
        source: str,
        target: str,
        batch: Batch,
        out_s: float,
        active: Sequence[SimulatedFault],
        end: str | None = None,
        vendors: Sequence[str] = (),
    ) -> Iterator[tuple[Batch, float | None]]:
        """Let a batch, which is at the source's out, go over a link and through the next node."""
        for lost, is_lost in self._split(batch, self._share("lose-link", source, target, batch.event_s, active)):
            if is_lost:
                yield lost, None
                continue
            for bad, is_bad in self._split(lost, self._share("corrupt", source, target, batch.event_s, active)):
                bad = replace(bad, corrupted_on=link_name(source, target)) if is_bad else bad
                for stuck, is_stuck in self._split(bad, self._share("stuck", source, target, batch.event_s, active)):
                    ends = [fault.to_s for fault in active if fault.kind == "stuck" and fault.is_on(batch.event_s)]
                    ready_s = max(ends) if is_stuck else out_s
                    if is_stuck:
                        self._waits[target].append((out_s, ready_s))
                    yield from self._visit(target, stuck, ready_s, active, end, vendors)

    def _visit(
        self,
        node: str,
        batch: Batch,
        ready_s: float,
        active: Sequence[SimulatedFault],
        end: str | None = None,
        vendors: Sequence[str] = (),
    ) -> Iterator[tuple[Batch, float | None]]:
        """Let a batch come in at a node and leave it: with the moment of that, or None where it ends."""
        if not batch.count:
            return
        bursts = [fault for fault in active if fault.kind == "burst" and fault.number > 1] if node == EVENT_NORM else []
        in_s = taken_in_at(ready_s, self._outages[node], bursts) + self._hop()
        if in_s - ready_s > WAITS_S:
            self._waits[node].append((ready_s, in_s))
        batch = batch.at(f"{node}.in", in_s)
        for kind, exit_ in (("lose-node", None), ("filter", "filtered"), ("dead", "dead")):
            (batch, _), *hit = self._split(batch, self._share(kind, node, None, batch.event_s, active))
            for gone, _ in hit:
                yield (gone if exit_ is None else gone.at(f"{node}.{exit_}", in_s + self._hop())), None
        if end is not None:
            yield batch.at(f"{node}.{end}", in_s + self._hop()), None
            return
        for late, is_late in self._split(batch, self._share("delay", node, None, batch.event_s, active)):
            held_s = sum(fault.seconds for fault in active if _hits(fault, "delay", node, None, batch.event_s))
            out_s = in_s + self._hop() + (held_s if is_late else 0.0)
            if out_s - in_s > WAITS_S:
                self._waits[f"{node}.out"].append((in_s, out_s))
            for again, is_twice in self._split(late, self._share("duplicate", node, None, batch.event_s, active)):
                again = replace(again, twice_from=self._outs(node, vendors)[0]) if is_twice else again
                yield self._leave(node, again, in_s, out_s, active, vendors)

    def _leave(
        self,
        node: str,
        batch: Batch,
        in_s: float,
        out_s: float,
        active: Sequence[SimulatedFault],
        vendors: Sequence[str],
    ) -> tuple[Batch, float]:
        """Send a batch out, after as many returns from the global retrier as the vendor asks for."""
        refusing = [fault for fault in active if fault.kind == "receiver" and VENDORS[fault.node] == node]
        for tier_s in self.tiers_s if refusing else ():
            if not any(fault.is_on(out_s) for fault in refusing):
                break
            handed_s = out_s + LOCAL_TRIES_S
            back_s = handed_s + 2 * self._hop() + tier_s
            batch = batch.at(f"{node}.out:{GLOBAL_RETRIER}", handed_s).at(
                f"{GLOBAL_RETRIER}.in", handed_s + self._hop()
            )
            batch = batch.at(f"{GLOBAL_RETRIER}.out:{node}", back_s)
            out_s = back_s + 2 * self._hop()
        for checkpoint in self._outs(node, vendors):
            batch = batch.at(checkpoint, out_s)
        return batch, out_s

    def _outs(self, node: str, vendors: Sequence[str]) -> list[str]:
        return [f"{node}.out:{vendor}" for vendor in vendors] if node == EVENT_ROUTER else [f"{node}.out"]

    def _hop(self) -> float:
        return float(self.rng.exponential(HOP_S))

    def _share(self, kind: str, node: str, to: str | None, event_s: float, active: Sequence[SimulatedFault]) -> float:
        return sum(fault.share for fault in active if _hits(fault, kind, node, to, event_s)) if active else 0.0

    def _split(self, batch: Batch, share: float) -> list[tuple[Batch, bool]]:
        """Split a batch into what a fault spares, first, and what it hits."""
        if not share or not batch.count:
            return [(batch, False)]
        hit = int(self.rng.binomial(batch.count, min(1.0, share)))
        parts = [(replace(batch, count=batch.count - hit), False), (replace(batch, count=hit), True)]
        return parts if hit else parts[:1]

    # -- what is known of it -----------------------------------------------------------------------------------------

    def _lives(self, node: str) -> Iterator[tuple[bytes, float, float | None]]:
        """Yield the processes of a node: emitter, start and end. Each ends with its account settled."""
        began = 0.0
        for number, (from_s, to_s) in enumerate([*self._outages[node], (math.inf, math.inf)]):
            emitter = hashlib.sha256(f"{node}/{number}".encode()).digest()[:16]
            yield emitter, began, None if from_s == math.inf else from_s
            began = to_s

    def _emitter(self, node: str, at_s: float) -> bytes:
        return next(emitter for emitter, began, _ in reversed(self._emitters[node]) if began <= at_s)

    def _is_unsettled(self, mask: int) -> bool:
        if mask not in self._unsettled:
            self._unsettled[mask] = is_unsettled(self.graph, mask)
        return self._unsettled[mask]

    def _tallies(self, batches: Sequence[Batch], start_s: int, now_s: float) -> list[TallyState]:
        counts: Counter[tuple[bytes, str]] = Counter()
        for batch in batches:
            for checkpoint, at_s, beacons in _beacons(batch):
                if at_s <= now_s - REPORTED_S:
                    counts[self._emitter(node_of(checkpoint), at_s), checkpoint] += beacons
        end_s = start_s + WINDOW_S
        blind = {
            fault.node
            for fault in self.faults
            if fault.kind == "blind" and fault.from_s < end_s and fault.to_s > start_s
        }
        return [
            TallyState(emitter, node_of(name), name, None, count, int(node_of(name) in blind))
            for (emitter, name), count in counts.items()
        ]

    def _evidence(self, start_s: int, now_s: float, tallies: Sequence[TallyState]) -> Evidence:
        heard_s = now_s - REPORTED_S
        emitters = []
        for node, lives in self._emitters.items():
            for emitter, began_s, ended_s in lives:
                if began_s > heard_s or (ended_s is not None and ended_s < start_s - 7_200):
                    continue
                is_over = ended_s is not None and ended_s <= heard_s
                last_s = ended_s if is_over and ended_s is not None else heard_s
                final_s = int(last_s) // WINDOW_S * WINDOW_S if not is_over else int(last_s)
                times = (int(began_s * 1_000), int(last_s * 1_000), is_over, final_s, int(last_s * 1_000))
                emitters.append(EmitterState(emitter, node, *times, start_s))
        return Evidence(start_s, int(now_s * 1_000), emitters, tallies, list(self._lanes(heard_s)))

    def _lanes(self, heard_s: float) -> Iterator[LaneState]:
        """Yield how far each node's input, and the work in its hand, has come."""
        for node in NODES:
            for checkpoint, key in ((f"{node}.in", node), (f"{node}.out", f"{node}.out")):
                waiting = [since for since, until in self._waits[key] if since <= heard_s < until]
                down = [from_s for from_s, to_s in self._outages[node] if from_s <= heard_s < to_s]
                until_s = min([*waiting, *(down if key == node else ()), heard_s])
                holder = None if key == node else self._emitter(node, heard_s)
                yield LaneState(checkpoint, int(until_s * 1_000), holder, checkpoint)

    def _facts(
        self, batches: Sequence[Batch], now_s: float, tallies: Sequence[TallyState], cuts: tuple[float, ...]
    ) -> WindowFacts:
        graph, known_s = self.graph, now_s - REPORTED_S
        targets = [graph.definition.spec.sla.lag_at(destination.name).target for destination in graph.destinations]
        patterns: list[Pattern] = []
        beacons: Counter[str] = Counter()
        twice: Counter[str] = Counter()
        corrupted: Counter[str] = Counter()
        lags: dict[str, list[tuple[float, int]]] = {name: [] for name in (*graph.entrances, *graph.delivery)}
        for batch in batches:
            mask, last_s, lag_at = 0, 0.0, dict[str, float]()
            for checkpoint, at_s, count in _beacons(batch):
                if at_s > known_s:
                    continue
                mask |= 1 << graph.bit[checkpoint]
                last_s = max(last_s, at_s)
                beacons[checkpoint] += count
                if checkpoint in lags:
                    lag_at[checkpoint] = min(lag_at.get(checkpoint, math.inf), 1_000 * (at_s - batch.event_s))
                if count > batch.count:
                    twice[checkpoint] += batch.count
            for checkpoint, lag_ms in lag_at.items():
                lags[checkpoint].append((lag_ms, batch.count))
            if batch.corrupted_on is not None and mask >> graph.bit[f"{ends_of(batch.corrupted_on)[1]}.in"] & 1:
                corrupted[batch.corrupted_on] += batch.count
            if mask:
                on_time = tuple(
                    batch.count if lag_at.get(f"{destination.name}.out", math.inf) <= target else 0
                    for destination, target in zip(graph.destinations, targets, strict=True)
                )
                seen_ms = (last_s * 1_000, last_s * 1_000) if self._is_unsettled(mask) else (None, None)
                patterns.append(Pattern(mask, batch.count, on_time, *seen_ms))
        sketches = {name: _sketch(lags) for name, lags in lags.items()}
        return WindowFacts(
            patterns=merge_patterns(patterns, cuts),
            checkpoints={
                name: CheckpointFacts(count, 0, count - twice[name], twice[name], sketches.get(name, Sketch()))
                for name, count in beacons.items()
            },
            arrivals=tuple(sketches[name] for name in graph.delivery),
            read={tally.account: tally.beacons for tally in tallies},
            corrupted=dict(corrupted),
            cuts=cuts,
            partitions=frozenset([8]),
        )


def _hits(fault: SimulatedFault, kind: str, node: str, to: str | None, event_s: float) -> bool:
    return (fault.kind, fault.node, fault.to) == (kind, node, to) and fault.is_on(event_s)


def _beacons(batch: Batch) -> Iterator[tuple[str, float, int]]:
    """Yield the beacons of a batch: checkpoint, moment, and how many. A return from the retrier makes no doubles."""
    again, before = False, set()
    for checkpoint, at_s in batch.seen:
        again = again or checkpoint == batch.twice_from
        if checkpoint not in before:
            yield checkpoint, at_s, batch.count * (2 if again else 1)
        before.add(checkpoint)


def _sketch(lags: Sequence[tuple[float, int]]) -> Sketch:
    if not lags:
        return Sketch()
    lag_ms, counts = zip(*lags, strict=True)
    keys, place = np.unique(bin_keys(np.array(lag_ms)), return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, place, np.array(counts))
    return Sketch(keys.astype(np.int32), total)

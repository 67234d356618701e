"""Picking: the messages of one window that are kept one by one, and what its blocks say of each.

Every part of a window picks: whether the messages that nothing is wrong with are worth keeping, or those that are late,
only the whole window says (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from aggregator.kernel.columns import Column
from aggregator.kernel.id_index import Rows
from aggregator.kernel.plan import DEAD_SHARE, WindowPlan
from lagloss.wire.format import F32, U64, unpack_ids
from lagloss_server.judging.arithmetic import Fate, good_fate, is_unsettled
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.judging.picked import (
    CORRUPTED,
    DEAD,
    GOOD,
    LATE,
    LATEST,
    MISSING,
    NOWHERE,
    ROOM,
    SEEN_MS,
    SPREAD,
    PickedMessages,
    blank,
    good_limits,
    spread,
)
from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import hop_labels, longest_hops
from lagloss_server.model.message_ids import readable_id
from lagloss_server.packing.compiled import compiled

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp] | npt.NDArray[np.int32]


@dataclass(frozen=True)
class SampledBeacons:
    """The sampled beacons of one checkpoint, live or replayed, and the row of each one's id; offsets only at the first
    checkpoint."""

    ids: U64
    lags: F32
    offsets: npt.NDArray[np.int32]
    rows: Rows
    kept: Bools | None
    """Which of the column's beacons these are; None for all."""

    def places(self, rows: Ints) -> Ints:
        """Return the positions in the column of the beacons at these positions."""
        return rows if self.kept is None else np.flatnonzero(self.kept)[rows]


@dataclass(frozen=True)
class DistinctIds:
    """Knowledge of each distinct id, by row. Lags in ms.

    `masks`: presence as rows of 64-bit words, shape (words, ids); `newest`: the largest lag, live or replayed;
    `first`: the smallest live lag at each delivery checkpoint, infinity where there is none, shape (deliveries, ids).
    """

    ids: U64
    masks: U64
    newest: F32
    first: F32


Beacons = Mapping[str, tuple[Column, SampledBeacons]]


@dataclass(frozen=True)
class CountedIds:
    """The ids of a window's part as counted: `codes` are their patterns' numbers, `lossy` says of which patterns
    something is missing; `live` and `replayed` are the beacons by checkpoint. `missing`: rows of those that are named;
    `corrupted`: rows by link; `share` of the window's ids."""

    plan: WindowPlan
    live: Beacons
    replayed: Beacons
    ids: DistinctIds
    codes: Ints
    patterns: Sequence[int]
    lossy: Bools
    missing: Ints
    corrupted: Mapping[str, Ints]
    sample: int
    share: float


def pick(counted: CountedIds) -> PickedMessages:
    """Pick the messages that the whole window may keep, and describe them."""
    ids, codes, patterns = counted.ids.ids, counted.codes, counted.patterns
    counts = np.bincount(codes, minlength=len(patterns))
    is_dead = _dead_patterns(counted)
    lateness = np.zeros(ids.size, np.float32)
    _raise(lateness, counted.ids.first, np.array(counted.plan.lag_targets_ms, np.float64))
    late = np.flatnonzero(lateness)
    dead = np.flatnonzero(is_dead[codes]) if is_dead.any() else late[:0]
    corrupted = np.unique(np.concatenate([late[:0], *counted.corrupted.values()]))
    what = np.zeros(ids.size, np.uint8)
    what[counted.missing] |= MISSING
    for kind, rows in ((LATE, late), (DEAD, dead), (CORRUPTED, corrupted)):
        what[_drawn(ids, rows, ROOM[kind])] |= kind
    what[_latest(lateness, late)] |= LATEST
    good = counts - np.bincount(codes[corrupted], minlength=counts.size)
    good_late = np.bincount(codes[np.setdiff1d(late, corrupted, assume_unique=True)], minlength=counts.size)
    good[counted.lossy] = good_late[counted.lossy] = 0
    limits = _good_limits(counted, good, good_late, is_dead)
    drawn = np.empty(ids.size, np.int32)
    drawn = drawn[: _choose(ids, codes, lateness, limits, drawn)]
    what[np.setdiff1d(drawn, corrupted, assume_unique=True)] |= GOOD
    totals = {
        "missing": int(counts[counted.lossy].sum()),
        "late": late.size,
        "dead": dead.size,
        "corrupted": corrupted.size,
    }
    return replace(
        _describe(counted, what, lateness),
        totals=totals,
        good=_by_pattern(patterns, good),
        good_late=_by_pattern(patterns, good_late),
    )


def settle(facts: WindowFacts, plan: WindowPlan) -> WindowFacts:
    """Keep of a whole window's picked messages what it gives reason to."""
    graph = plan.graph
    dead = {pattern.mask: pattern.count for pattern in facts.patterns if _is_dead(graph, pattern.mask)}
    has_dead = sum(dead.values()) > DEAD_SHARE * sum(pattern.count for pattern in facts.patterns)
    picked = facts.picked.settled(many_late=_are_many_late(plan, facts), dead=dead if has_dead else ())
    return replace(facts, picked=picked)


def _are_many_late(plan: WindowPlan, facts: WindowFacts) -> bool:
    """Return whether, at any destination, more messages than usual arrived after its lag target. Where one destination
    has many, the late ones of all are kept: else it would seem to be the only one."""
    on_time = [sum(soon) for soon in zip(*(pattern.on_time for pattern in facts.patterns), strict=True)]
    return any(
        destination.count - soon > share * destination.count
        for destination, soon, share in zip(
            facts.arrivals, on_time or [0] * len(facts.arrivals), plan.late_shares, strict=True
        )
    )


def _dead_patterns(counted: CountedIds) -> Bools:
    """Return which patterns are those of dead messages."""
    return np.array([_is_dead(counted.plan.graph, mask) for mask in counted.patterns], bool)


def _is_dead(graph: Graph, mask: int) -> bool:
    return bool(mask & graph.dead_mask) and not is_unsettled(graph, mask) and good_fate(graph, mask) is Fate.DEAD


def _by_pattern(patterns: Sequence[int], counts: Ints) -> dict[int, int]:
    return {mask: count for mask, count in zip(patterns, counts.tolist(), strict=True) if count}


@compiled
def _raise(lateness: F32, first: F32, targets_ms: npt.NDArray[np.float64]) -> None:
    """Raise each row's lateness to its largest lag (ms) of those above a destination's target."""
    for index in range(targets_ms.size):
        for row in range(lateness.size):
            lag = first[index, row]
            if lag > targets_ms[index] and lag > lateness[row] and lag != np.inf:
                lateness[row] = lag


def _drawn(ids: U64, rows: Ints, room: int) -> Ints:
    """Return so many of the rows at most, drawn by their ids."""
    if rows.size <= room:
        return rows
    return rows[np.argpartition(spread(ids[rows]), room)[:room]]


def _latest(lateness: F32, late: Ints) -> Ints:
    room = ROOM[LATEST]
    return late if late.size <= room else late[np.argpartition(-lateness[late], room)[:room]]


def _good_limits(counted: CountedIds, good: Ints, good_late: Ints, is_dead: Bools) -> U64:
    """Return below which `spread` messages are drawn that can turn out good, by lateness (0, 1) and pattern.

    Whether late and dead ones count as bad is open until all parts of the window are together. Each kind has the limit
    of the case in which it is good: enough are drawn then, and those too many are dropped later (`settled`)."""
    patterns = counted.patterns
    limits = np.zeros((2, len(patterns)), np.uint64)
    for late, dead in product((False, True), repeat=2):
        counts = good if late else good - good_late
        limit_of = good_limits(_by_pattern(patterns, counts if dead else np.where(is_dead, 0, counts)), counted.share)
        for code in np.flatnonzero(is_dead == dead).tolist():
            limits[int(late), code] = limit_of.get(patterns[code], 0)
    return limits


@compiled
def _choose(ids: U64, codes: Ints, lateness: F32, limits: U64, rows: Rows) -> int:
    """Fill `rows` with those that the limits take; return how many there are."""
    size = 0
    for row in range(ids.size):
        mixed = ids[row] * SPREAD
        # `picked.spread`, which compiled code cannot call
        if (mixed ^ (mixed >> np.uint64(32))) < limits[1 if lateness[row] > 0 else 0, codes[row]]:
            rows[size] = row
            size += 1
    return size


def _describe(counted: CountedIds, what: npt.NDArray[np.uint8], lateness: F32) -> PickedMessages:
    """Look every beacon of the picked messages up."""
    graph, rows = counted.plan.graph, np.flatnonzero(what)
    sightings = _Sightings(counted, rows)
    for beacons in (counted.replayed, counted.live):  # a live one last: it stays
        for index, name in enumerate(graph.checkpoints):
            if name in beacons:
                sightings.add(index, *beacons[name], is_dead=name.endswith(".dead"))
    event_ms = sightings.event_ms()
    since_ms = np.where(event_ms < 0, counted.plan.window_end_ms - counted.plan.window_start_s * 1000, event_ms)
    late = np.flatnonzero(what[rows] & np.uint8(LATE | LATEST))
    hop, hop_ms = np.full(rows.size, -1, np.int16), np.full(rows.size, -1, np.float32)
    hop[late], hop_ms[late] = longest_hops(graph, sightings.lags[late], counted.ids.first[:, rows[late]])
    link = np.full(rows.size, -1, np.int16)
    for number, mine in enumerate(counted.corrupted.values()):
        link[np.isin(rows, mine)] = number
    observed = since_ms[:, np.newaxis] + sightings.lags
    tenths = np.full(observed.shape, NOWHERE, np.int32)
    is_seen = np.isfinite(observed)
    tenths[is_seen] = np.clip(np.floor(observed[is_seen] / SEEN_MS), NOWHERE + 1, -(NOWHERE + 1)).astype(np.int32)
    first = [
        beacons[name] for beacons in (counted.live, counted.replayed) for name in graph.entrances if name in beacons
    ]
    names = _names_of(first, rows, counted.ids.ids.size)
    emitters, codes = sightings.emitters()
    reasons = tuple(dict.fromkeys(sightings.reasons.values()))
    numbers = {
        **blank(rows.size, len(graph.checkpoints)),
        "ids": counted.ids.ids[rows],
        "what": what[rows],
        "event_ms": event_ms.astype(np.int32),
        "lag_ms": lateness[rows],
        "hop": hop,
        "hop_ms": hop_ms,
        "link": link,
        "emitter": codes,
        "seen": tenths,
    }
    for slot, reason in sightings.reasons.items():
        numbers["reason"][slot] = reasons.index(reason)
    return PickedMessages(
        checkpoints=graph.checkpoints,
        emitters=emitters,
        hops=hop_labels(graph),
        links=tuple(counted.corrupted),
        reasons=reasons,
        names=tuple(map(names.get, rows.tolist())),
        masks=tuple(counted.patterns[code] for code in counted.codes[rows].tolist()),
        numbers=numbers,
        sample=counted.sample,
    )


class _Sightings:
    """What the beacons of some rows say: the smallest lag (ms, infinity for none) and the emitter at each checkpoint,
    the event's offset, and why a message died."""

    def __init__(self, counted: CountedIds, rows: Ints) -> None:
        self._graph, self._ids = counted.plan.graph, counted.ids
        self._slots = np.full(counted.ids.ids.size, -1, np.int16)  # `ROOM` and `GOOD_ROOM` bound the rows
        self._slots[rows] = np.arange(rows.size, dtype=np.int16)
        width = len(self._graph.checkpoints)
        self.lags = np.full((rows.size, width), np.inf, np.float32)
        self.reasons: dict[int, str] = {}
        self._codes = np.full((rows.size, width), -1, np.int32)  # every sighting can be of a process of its own
        self._emitters: dict[bytes, int] = {}
        self._offsets = np.full(rows.size, -1, np.int32)

    def add(self, checkpoint: int, column: Column, beacons: SampledBeacons, *, is_dead: bool) -> None:
        """Take the beacons of one checkpoint in, instead of those that are known of a row there."""
        row_numbers = np.empty(beacons.rows.size, np.int32)
        row_numbers = row_numbers[: _hits(beacons.rows, self._slots, row_numbers)]
        if not row_numbers.size:
            return
        slots, lags = self._slots[beacons.rows[row_numbers]], beacons.lags[row_numbers]
        order = np.argsort(-lags, kind="stable")  # the smallest last: it stays
        row_numbers, slots, lags = row_numbers[order], slots[order], lags[order]
        places = beacons.places(row_numbers)
        blocks, which = np.unique(np.searchsorted(column.starts, places, side="right") - 1, return_inverse=True)
        codes = [
            self._emitters.setdefault(emitter, len(self._emitters)) for emitter in column.emitters[blocks].tolist()
        ]
        self.lags[slots, checkpoint] = lags
        self._codes[slots, checkpoint] = np.array(codes, np.int32)[which]
        if beacons.offsets.size:
            np.maximum.at(self._offsets, slots, beacons.offsets[row_numbers])
        if is_dead:
            starts = [start for start, _, _ in column.reasons]
            for place, slot in zip(places.tolist(), slots.tolist(), strict=True):
                block = int(np.searchsorted(starts, place, side="right")) - 1
                if block >= 0 and place < column.reasons[block][0] + column.reasons[block][1]:
                    self.reasons[slot] = column.reasons[block][2]

    def event_ms(self) -> npt.NDArray[np.int32]:
        """Return each row's event time - window start, -1 where it is not known."""
        return self._offsets

    def emitters(self) -> tuple[tuple[bytes, ...], npt.NDArray[np.int32]]:
        """Return the emitters, and by row and checkpoint the number of the one that saw it there, -1 for none."""
        return tuple(self._emitters), self._codes


@compiled
def _hits(rows: Rows, slots: npt.NDArray[np.int16], row_numbers: Rows) -> int:
    """Fill `rows` with the positions of the beacons of rows with a slot; return how many there are."""
    size = 0
    for position in range(rows.size):
        if slots[rows[position]] >= 0:
            row_numbers[size] = position
            size += 1
    return size


def _names_of(columns: Iterable[tuple[Column, SampledBeacons]], rows: Ints, n: int) -> dict[int, str]:
    """Return the names of these rows (of `n`), from the blocks of the sources' `in` that carry names."""
    is_wanted, names = np.zeros(n, bool), dict[int, str]()
    is_wanted[rows] = True
    for column, beacons in columns if rows.size else ():
        hits = np.flatnonzero(is_wanted[beacons.rows])
        places = beacons.places(hits)
        hit_rows = beacons.rows[hits].tolist()
        starts = np.array([start for start, _, _ in column.names], np.int64)
        ends = starts + np.array([count for _, count, _ in column.names], np.int64)
        firsts, lasts = np.searchsorted(places, starts).tolist(), np.searchsorted(places, ends).tolist()
        for (start, _, packed), first, last in zip(column.names, firsts, lasts, strict=True):
            if first < last:
                raw = unpack_ids(packed, (places[first:last] - start).tolist())
                names.update(zip(hit_rows[first:last], map(readable_id, raw), strict=True))
    return names

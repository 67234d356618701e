"""Picking: the messages of one window that are kept one by one, and what its blocks say of each.

Where all is well nothing is picked. Else every beacon is looked at once more, to find those of the picked messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from aggregator.kernel.beacons import Bools, DistinctIds, Found, Ints, names_of
from aggregator.kernel.columns import Column
from aggregator.kernel.compiled import compiled
from aggregator.kernel.id_index import Rows
from aggregator.kernel.plan import DEAD_SHARE, WindowPlan
from lagloss.wire.format import F32, U64
from lagloss_server.rules.arithmetic import Fate, good_fate
from lagloss_server.rules.hops import hop_labels, longest_hops
from lagloss_server.rules.picked import (
    CORRUPTED,
    DEAD,
    GOOD,
    GOOD_ROOM,
    LATE,
    LATEST,
    MISSING,
    NOWHERE,
    ROOM,
    SEEN_MS,
    SPREAD,
    PickedMessages,
    blank,
    good_rooms,
    spread,
)

MANY_IDS: Final = 20_000
GOOD_OF_MANY: Final = 250
"""Good messages that are picked of a part with more than `MANY_IDS` distinct ids: such a window has several parts."""
Beacons = Mapping[str, tuple[Column, Found]]


@dataclass(frozen=True)
class CountedIds:
    """One window's ids as counted: `codes` are their patterns' numbers, `lossy` says of which patterns something is
    missing; `live` and `replayed` are the beacons by checkpoint. `missing`: rows of those that are named;
    `are_many_late`: at any destination; `corrupted`: rows by link."""

    plan: WindowPlan
    live: Beacons
    replayed: Beacons
    ids: DistinctIds
    codes: Ints
    patterns: Sequence[int]
    lossy: Bools
    missing: Ints
    are_many_late: bool
    corrupted: Mapping[str, Ints]
    sample: int


def pick(counted: CountedIds) -> PickedMessages:
    """Pick the messages to keep, and describe them."""
    ids, codes = counted.ids.ids, counted.codes
    counts = np.bincount(codes, minlength=len(counted.patterns))
    is_dead = _dead_patterns(counted)
    has_dead = counts[is_dead].sum() > DEAD_SHARE * ids.size
    if not (counted.missing.size or counted.are_many_late or has_dead or counted.corrupted):
        return PickedMessages()
    lateness = _lateness(counted)
    late = np.flatnonzero(lateness > 0)
    dead = np.flatnonzero(is_dead[codes]) if has_dead else late[:0]
    corrupted = np.unique(np.concatenate([late[:0], *counted.corrupted.values()]))
    what = np.zeros(ids.size, np.uint8)
    what[counted.missing] |= MISSING
    for kind, rows in ((LATE, late), (DEAD, dead), (CORRUPTED, corrupted)):
        what[_drawn(ids, rows, ROOM[kind])] |= kind
    what[_latest(lateness, late)] |= LATEST
    bad = np.zeros(ids.size, np.bool_)
    for rows in (late, dead, corrupted):
        bad[rows] = True
    good = counts - np.bincount(codes[bad], minlength=counts.size)
    good[counted.lossy] = 0
    good_of = {mask: count for mask, count in zip(counted.patterns, good.tolist(), strict=True) if count}
    what[_drawn_good(counted, good, good_of, bad)] |= GOOD
    totals = {
        "missing": int(counts[counted.lossy].sum()),
        "late": late.size,
        "dead": dead.size,
        "corrupted": corrupted.size,
    }
    return _describe(counted, what, lateness, totals, good_of)


def _dead_patterns(counted: CountedIds) -> Bools:
    """Return which patterns are those of dead messages."""
    graph = counted.plan.graph
    return np.array(
        [
            bool(mask & graph.dead_mask) and not lossy and good_fate(graph, mask) is Fate.DEAD
            for mask, lossy in zip(counted.patterns, counted.lossy.tolist(), strict=True)
        ],
        bool,
    )


def _lateness(counted: CountedIds) -> F32:
    """Return by row the largest lag (ms) of those above a destination's target, else 0; 0 for all where few are late.
    Where one destination has many, the late ones of all are taken: else it would seem to be the only one."""
    worst = np.zeros(counted.ids.ids.size, np.float32)
    if counted.are_many_late:
        for lags, target_ms in zip(counted.ids.first, counted.plan.lag_targets_ms, strict=True):
            late = (lags.astype(np.float64) > target_ms) & np.isfinite(lags)
            worst[late] = np.maximum(worst[late], lags[late])
    return worst


def _drawn(ids: U64, rows: Ints, room: int) -> Ints:
    """Return so many of the rows at most, drawn by their ids."""
    if rows.size <= room:
        return rows
    return rows[np.argpartition(spread(ids[rows]), room)[:room]]


def _latest(lateness: F32, late: Ints) -> Ints:
    room = ROOM[LATEST]
    return late if late.size <= room else late[np.argpartition(-lateness[late], room)[:room]]


def _drawn_good(counted: CountedIds, good: Ints, good_of: Mapping[int, int], bad: Bools) -> Ints:
    """Return rows of messages that nothing is wrong with: some of each pattern, drawn by their ids."""
    ids = counted.ids.ids
    rooms = good_rooms(good_of, GOOD_OF_MANY if ids.size > MANY_IDS else GOOD_ROOM)
    limits = np.zeros(len(counted.patterns), np.uint64)
    for at, mask in enumerate(counted.patterns):
        if rooms.get(mask):
            limits[at] = min(int(rooms[mask] / good[at] * 2**64), 2**64 - 1)
    rows = np.empty(ids.size, np.int32)
    return rows[: _choose(ids, counted.codes, bad, limits, rows)].astype(np.intp)


@compiled
def _choose(ids: U64, codes: Ints, bad: Bools, limits: U64, rows: Rows) -> int:
    """Fill `rows` with those that their pattern's limit takes; return how many there are."""
    size = 0
    for row in range(ids.size):
        mixed = ids[row] * SPREAD
        if (mixed ^ (mixed >> np.uint64(32))) < limits[codes[row]] and not bad[row]:
            rows[size] = row
            size += 1
    return size


def _describe(
    counted: CountedIds, what: npt.NDArray[np.uint8], lateness: F32, totals: Mapping[str, int], good: Mapping[int, int]
) -> PickedMessages:
    """Look every beacon of the picked messages up."""
    graph, rows = counted.plan.graph, np.flatnonzero(what)
    seen = _Sightings(counted, rows)
    for beacons in (counted.replayed, counted.live):  # a live one last: it stays
        for at, name in enumerate(graph.checkpoints):
            if name in beacons:
                seen.add(at, *beacons[name], is_dead=name.endswith(".dead"))
    event_ms = seen.event_ms()
    since_ms = np.where(event_ms < 0, counted.plan.window_end_ms - counted.plan.window_start_s * 1000, event_ms)
    late = np.flatnonzero(what[rows] & np.uint8(LATE | LATEST))
    hop, hop_ms = np.full(rows.size, -1, np.int16), np.full(rows.size, -1, np.float32)
    hop[late], hop_ms[late] = longest_hops(graph, seen.lags[late], counted.ids.first[:, rows[late]])
    link = np.full(rows.size, -1, np.int16)
    for number, mine in enumerate(counted.corrupted.values()):
        link[np.isin(rows, mine)] = number
    observed = since_ms[:, np.newaxis] + seen.lags
    tenths = np.full(observed.shape, NOWHERE, np.int32)
    is_seen = np.isfinite(observed)
    tenths[is_seen] = np.clip(np.floor(observed[is_seen] / SEEN_MS), NOWHERE + 1, -(NOWHERE + 1)).astype(np.int32)
    first = [(beacons[graph.first]) for beacons in (counted.live, counted.replayed) if graph.first in beacons]
    names = names_of(first, rows, counted.ids.ids.size)
    emitters, codes = seen.emitters()
    reasons = tuple(dict.fromkeys(seen.reasons.values()))
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
    for slot, reason in seen.reasons.items():
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
        totals=totals,
        good=good,
        sample=counted.sample,
    )


class _Sightings:
    """What the beacons of some rows say: the smallest lag (ms, infinity for none) and the emitter at each checkpoint,
    the event's offset, and why a message died."""

    def __init__(self, counted: CountedIds, rows: Ints) -> None:
        self._graph, self._ids = counted.plan.graph, counted.ids
        self._slots = np.full(counted.ids.ids.size, -1, np.int16)
        self._slots[rows] = np.arange(rows.size, dtype=np.int16)
        width = len(self._graph.checkpoints)
        self.lags = np.full((rows.size, width), np.inf, np.float32)
        self.reasons: dict[int, str] = {}
        self._codes = np.full((rows.size, width), -1, np.int16)
        self._emitters: dict[bytes, int] = {}
        self._offsets = np.full(rows.size, -1, np.int32)

    def add(self, checkpoint: int, column: Column, found: Found, *, is_dead: bool) -> None:
        """Take the beacons of one checkpoint in, instead of those that are known of a row there."""
        at = np.empty(found.rows.size, np.int32)
        at = at[: _hits(found.rows, self._slots, at)]
        if not at.size:
            return
        slots, lags = self._slots[found.rows[at]], found.lags[at]
        order = np.argsort(-lags, kind="stable")  # the smallest last: it stays
        at, slots, lags = at[order], slots[order], lags[order]
        places = found.places(at)
        blocks, which = np.unique(np.searchsorted(column.starts, places, side="right") - 1, return_inverse=True)
        codes = [self._emitters.setdefault(each, len(self._emitters)) for each in column.emitters[blocks].tolist()]
        self.lags[slots, checkpoint] = lags
        self._codes[slots, checkpoint] = np.array(codes, np.int16)[which]
        if found.offsets.size:
            np.maximum.at(self._offsets, slots, found.offsets[at])
        if is_dead:
            starts = [start for start, _, _ in column.reasons]
            for place, slot in zip(places.tolist(), slots.tolist(), strict=True):
                block = int(np.searchsorted(starts, place, side="right")) - 1
                if block >= 0 and place < column.reasons[block][0] + column.reasons[block][1]:
                    self.reasons[slot] = column.reasons[block][2]

    def event_ms(self) -> npt.NDArray[np.int32]:
        """Return each row's event time - window start, -1 where it is not known."""
        return self._offsets

    def emitters(self) -> tuple[tuple[bytes, ...], npt.NDArray[np.int16]]:
        """Return the emitters, and by row and checkpoint the number of the one that saw it there, -1 for none."""
        return tuple(self._emitters), self._codes


@compiled
def _hits(rows: Rows, slots: npt.NDArray[np.int16], at: Rows) -> int:
    """Fill `at` with the positions of the beacons of rows with a slot; return how many there are."""
    size = 0
    for position in range(rows.size):
        if slots[rows[position]] >= 0:
            at[size] = position
            size += 1
    return size

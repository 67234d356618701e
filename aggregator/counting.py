"""Counting one window of one partition: from its blocks' columns to its facts. Pure numpy: no Spark, no Kafka.

Ids are sorted once a checkpoint; presence is then a bit a checkpoint for each distinct id. Everything that needs a
message's lags ("last seen", first arrival) touches only the ids it is needed for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from aggregator.plan import WindowPlan
from lagloss.arithmetic import missing_places
from lagloss.facts import MAX_NAMES, Account, CheckpointFacts, MissingId, Pattern, WindowFacts
from lagloss.graph import Graph
from lagloss.sketch import Sketch
from lagloss.wire import F32, SAMPLE_ALL, U32, U64, BeaconBlock, partition_of, unpack_ids

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]
F64 = npt.NDArray[np.float64]


@dataclass
class WindowBlocks:
    """The blocks of one window that were found in one partition, each (emitter, seq) once."""

    plan: WindowPlan
    blocks: dict[str, list[BeaconBlock]] = field(default_factory=dict)
    read: Counter[Account] = field(default_factory=Counter)
    quarantined: set[str] = field(default_factory=set)
    partitions: set[int] = field(default_factory=set)
    sample: int = SAMPLE_ALL
    _seen: set[tuple[bytes, int]] = field(default_factory=set)

    def add(self, block: BeaconBlock) -> None:
        """Take a block in, unless it was there before (a block sent twice is one block)."""
        if (block.emitter, block.seq) in self._seen:
            return
        self._seen.add((block.emitter, block.seq))
        self.blocks.setdefault(block.checkpoint, []).append(block)
        self.read[block.emitter, block.checkpoint, block.replay] += block.count
        self.partitions.add(block.partitions)
        self.sample = min(self.sample, block.sample)


@dataclass(frozen=True)
class Column:
    """One checkpoint's beacons in arrival order, live ones first; `live` says how many those are."""

    ids: U64
    lags: F32
    live: int
    distinct: U64
    distinct_live: int


def count_window(found: WindowBlocks, partition: int) -> WindowFacts:
    """The facts of the ids of this partition."""
    plan, graph = found.plan, found.plan.graph
    sample = min(plan.sample, found.sample)
    columns = {name: _column(blocks, sample) for name, blocks in found.blocks.items()}
    ids = _all_ids(columns, graph)
    masks = _presence(ids, columns, graph)
    codes, patterns = _distinct_patterns(masks)
    lossy = np.array([bool(missing_places(graph, mask)) for mask in patterns], bool)
    first_lag = _first_arrivals(ids, columns, graph)
    delivered = first_lag[np.isfinite(first_lag)]
    missing = _Missing.of(ids, codes, lossy, columns, found, sample)
    return WindowFacts(
        patterns=_whole_patterns(plan, patterns, lossy, codes, first_lag) + missing.patterns(plan, patterns),
        checkpoints={name: _checkpoint_facts(graph, name, columns) for name in columns},
        e2e_lags=Sketch.of(delivered),
        read=dict(found.read),
        corrupted=_corrupted(found, sample),
        quarantined=frozenset(found.quarantined),
        sample=sample,
        cuts=plan.cuts,
        missing=missing.names(found, patterns),
        partitions=frozenset(found.partitions),
        scattered=len(found.partitions) > 1 or _is_scattered(found, columns, partition),
    )


def _sampled(block: BeaconBlock, sample: int) -> Bools | slice:
    """Which beacons of a block the window's sample takes."""
    if sample == SAMPLE_ALL:
        return slice(None)
    return (block.id_hash & np.uint64(SAMPLE_ALL - 1)) < np.uint64(sample)


def _column(blocks: Sequence[BeaconBlock], sample: int) -> Column:
    live = [block for block in blocks if block.replay is None]
    replayed = [block for block in blocks if block.replay is not None]
    ordered = live + replayed
    ids = np.concatenate([block.id_hash[_sampled(block, sample)] for block in ordered])
    lags = np.concatenate([block.lag_ms[_sampled(block, sample)] for block in ordered])
    live_count = sum(int(block.id_hash[_sampled(block, sample)].size) for block in live)
    distinct_live = _distinct(ids[:live_count])
    distinct = distinct_live if not replayed else _distinct(ids)
    return Column(ids, lags, live_count, distinct, distinct_live.size)


def _distinct(ids: U64) -> U64:
    ordered = np.sort(ids)
    if ordered.size < 2:
        return ordered
    keep = np.empty(ordered.size, bool)
    keep[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=keep[1:])
    return ordered if keep.all() else ordered[keep]


def _is_scattered(found: WindowBlocks, columns: dict[str, Column], partition: int) -> bool:
    """Whether blocks hold ids that belong to another partition. The distinct ids are sorted and the partition grows
    with the id, so the ends speak for all."""
    ends = [int(column.distinct[at]) for column in columns.values() if column.distinct.size for at in (0, -1)]
    return any(partition_of(end, partitions) != partition for partitions in found.partitions for end in ends)


def _all_ids(columns: dict[str, Column], graph: Graph) -> U64:
    """Every id at a checkpoint of the graph, sorted."""
    known = [columns[name].distinct for name in graph.checkpoints if name in columns]
    if not known:
        return np.empty(0, np.uint64)
    ids, strangers = known[0], []
    for other in known[1:]:
        if other.size == ids.size and np.array_equal(other, ids):
            continue
        new = other[~_is_in(other, ids)]
        if new.size:
            strangers.append(new)
    return np.unique(np.concatenate([ids, *strangers])) if strangers else ids


def _is_in(ids: U64, ordered: U64) -> Bools:
    if not ordered.size:
        return np.zeros(ids.size, bool)
    at = np.searchsorted(ordered, ids)
    at[at == ordered.size] = 0
    found: Bools = ordered[at] == ids
    return found


def _presence(ids: U64, columns: dict[str, Column], graph: Graph) -> U64:
    """The presence masks of the ids, as rows of 64-bit words: shape (words, ids)."""
    masks = np.zeros((len(graph.checkpoints) // 64 + 1, ids.size), np.uint64)
    for name, column in columns.items():
        bit = graph.bit.get(name)
        if bit is None:
            continue
        word, flag = masks[bit // 64], np.uint64(1 << bit % 64)
        if column.distinct.size == ids.size:
            word |= flag
        else:
            word[np.searchsorted(ids, column.distinct)] |= flag
    return masks


def _distinct_patterns(masks: U64) -> tuple[Ints, list[int]]:
    """For each id the number of its pattern, and the patterns."""
    codes, patterns = pd.factorize(masks[0])
    distinct = [int(word) for word in patterns]
    for row, words in enumerate(masks[1:], start=1):
        if not words.any():
            continue
        more, patterns = pd.factorize(words)
        codes, pairs = pd.factorize(codes.astype(np.int64) * len(patterns) + more)
        distinct = [
            distinct[pair // len(patterns)] | int(patterns[pair % len(patterns)]) << 64 * row for pair in pairs.tolist()
        ]
    return codes, distinct


def _first_arrivals(ids: U64, columns: dict[str, Column], graph: Graph) -> F32:
    """Each id's smallest live lag over the delivery checkpoints (ms); infinity where it was not delivered live."""
    first = np.full(ids.size, np.inf, np.float32)
    for name in graph.delivery:
        column = columns.get(name)
        if column is None or not column.live:
            continue
        live_ids, lags = column.ids[: column.live], column.lags[: column.live]
        order = np.argsort(live_ids)
        ordered = live_ids[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        at = np.searchsorted(ids, ordered[starts])
        first[at] = np.minimum(first[at], np.minimum.reduceat(lags[order], starts))
    return first


def _whole_patterns(
    plan: WindowPlan, patterns: list[int], lossy: Bools, codes: Ints, first_lag: F32
) -> tuple[Pattern, ...]:
    """Patterns with nothing missing: counts, and how many were on time."""
    counts = np.bincount(codes, minlength=len(patterns))
    on_time = np.bincount(codes[first_lag.astype(np.float64) <= plan.lag_target_ms], minlength=len(patterns))
    return tuple(Pattern(mask, int(counts[at]), int(on_time[at])) for at, mask in enumerate(patterns) if not lossy[at])


def _checkpoint_facts(graph: Graph, name: str, columns: dict[str, Column]) -> CheckpointFacts:
    column = columns[name]
    return CheckpointFacts(
        beacons=column.live,
        replayed=column.ids.size - column.live,
        distinct=column.distinct.size,
        duplicates=_duplicates(graph, name, columns),
        lags=Sketch.of(column.lags[: column.live]),
    )


def _duplicates(graph: Graph, name: str, columns: dict[str, Column]) -> int:
    """Rule 9: live beacons beyond those a message may have here."""
    column, bit = columns[name], graph.bit.get(name)
    if bit is None:
        return column.live - column.distinct_live
    if graph.retry_loop_mask >> bit & 1:
        return 0
    allowed = graph.allowed_copies[bit]
    back = columns.get(graph.returns.get(name, ""))
    if column.live == column.distinct_live or (allowed == 1 and back is None):
        return column.live - column.distinct_live
    ids, counts = np.unique(column.ids[: column.live], return_counts=True)
    extra = counts - allowed
    if back is not None:
        returned, times = np.unique(back.ids[: back.live], return_counts=True)
        at = np.searchsorted(ids, returned)
        there = (at < ids.size) & (ids[np.minimum(at, ids.size - 1)] == returned)
        extra[at[there]] -= times[there]
    return int(np.maximum(extra, 0).sum())


@dataclass(frozen=True)
class _Missing:
    """The ids that something is missing of: their pattern's number and when each was last seen (epoch ms)."""

    ids: U64
    codes: Ints
    last_seen: F64

    @classmethod
    def of(
        cls, ids: U64, codes: Ints, lossy: Bools, columns: dict[str, Column], found: WindowBlocks, sample: int
    ) -> _Missing:
        wanted = lossy[codes] if ids.size else np.zeros(0, bool)
        missing = ids[wanted]
        if not missing.size:
            return cls(missing, codes[wanted], np.empty(0))
        lookup = _Lookup(missing)
        newest_lag = np.full(missing.size, -np.inf)
        for name in found.plan.graph.checkpoints:
            if name in columns:
                rows, at = lookup.find(columns[name].ids)
                np.maximum.at(newest_lag, at, columns[name].lags[rows].astype(np.float64))
        event_ms = np.full(missing.size, -np.inf)
        for block in found.blocks.get(found.plan.graph.first, ()):
            if block.event_offset_ms is not None:
                rows, at = lookup.find(block.id_hash)
                stamps = block.event_offset_ms[rows].astype(np.float64) + found.plan.window_start_s * 1000
                np.maximum.at(event_ms, at, stamps)
        event_ms[np.isinf(event_ms)] = found.plan.window_end_ms
        return cls(missing, codes[wanted], event_ms + newest_lag)

    def patterns(self, plan: WindowPlan, patterns: list[int]) -> tuple[Pattern, ...]:
        """One pattern for each mask and stretch between the cuts."""
        if not self.ids.size:
            return ()
        stretches = np.searchsorted(np.array(plan.cuts, np.float64), self.last_seen, side="right")
        table = pd.DataFrame({"code": self.codes, "stretch": stretches, "seen": self.last_seen})
        cells = table.groupby(["code", "stretch"])["seen"].agg(["size", "min", "max"])
        return tuple(
            Pattern(patterns[code], int(size), 0, float(first), float(last))
            for (code, _), size, first, last in cells.itertuples(name=None)
        )

    def names(self, found: WindowBlocks, patterns: list[int]) -> tuple[MissingId, ...]:
        """The first of the missing ids, with their names where the first checkpoint's blocks tell them."""
        ids = self.ids[:MAX_NAMES]
        lookup, names = _Lookup(ids), dict[int, str]()
        for block in found.blocks.get(found.plan.graph.first, ()):
            if block.message_ids is None or not ids.size:
                continue
            rows, at = lookup.find(block.id_hash)
            raw = unpack_ids(block.message_ids, rows.tolist())
            names.update(zip(at.tolist(), (name.decode("utf-8", "replace") for name in raw), strict=True))
        return tuple(
            MissingId(int(ids[at]), patterns[self.codes[at]], float(self.last_seen[at]), names.get(at))
            for at in range(ids.size)
        )


class _Lookup:
    """Finds rows of long unsorted columns whose id is one of a few sorted ids: a bit table first, a search for the
    rest."""

    def __init__(self, ids: U64) -> None:
        self.ids = ids
        bits = min(22, max(10, int(ids.size * 16).bit_length()))
        self._mask = np.uint64((1 << bits) - 1)
        self._table = np.zeros(1 << bits, bool)
        self._table[ids & self._mask] = True

    def find(self, column: U64) -> tuple[Ints, Ints]:
        """The rows (ascending) whose id is wanted, and which id each is."""
        rows = np.flatnonzero(self._table[column & self._mask])
        if not rows.size:
            return rows, rows
        at = np.searchsorted(self.ids, column[rows])
        at[at == self.ids.size] = 0
        hit = self.ids[at] == column[rows]
        return rows[hit], at[hit]


def _corrupted(found: WindowBlocks, sample: int) -> dict[str, int]:
    """Rule 13: by link, the ids whose checksums were seen on both sides and never agreed."""
    counts = {}
    for link in found.plan.graph.links:
        sent = _checksums(found.blocks.get(link.out, ()), sample)
        taken = _checksums(found.blocks.get(f"{link.target}.in", ()), sample)
        if sent is None or taken is None:
            continue
        on_both = np.intersect1d(sent["id"].to_numpy(), taken["id"].to_numpy())
        agreed = sent.merge(taken, on=["id", "crc"])["id"].unique()
        if on_both.size > agreed.size:
            counts[link.name] = int(on_both.size - agreed.size)
    return counts


def _checksums(blocks: Sequence[BeaconBlock], sample: int) -> pd.DataFrame | None:
    parts: list[tuple[U64, U32]] = [
        (block.id_hash[_sampled(block, sample)], block.payload_crc[_sampled(block, sample)])
        for block in blocks
        if block.payload_crc is not None
    ]
    if not parts:
        return None
    ids, crcs = (np.concatenate(column) for column in zip(*parts, strict=True))
    return pd.DataFrame({"id": ids, "crc": crcs}).drop_duplicates()

"""Counting one window of one partition: from its blocks' columns to its facts. Pure numpy: no Spark, no Kafka.

Every distinct id gets a row, found by one hash look-up a beacon; presence is then a bit a checkpoint in the row's mask,
and what needs a message's lags ("last seen", first arrival) is a minimum or maximum by row. Nothing is sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """One checkpoint's beacons, live ones first: `live` says how many those are. `blocks` are theirs, in that order."""

    ids: U64
    lags: F32
    live: int
    blocks: Sequence[BeaconBlock]


@dataclass(frozen=True)
class Rows:
    """The distinct ids of all checkpoints, and for each checkpoint's beacons the row of their id."""

    ids: U64
    of: dict[str, Ints]


def count_window(found: WindowBlocks, partition: int) -> WindowFacts:
    """The facts of the ids of this partition."""
    plan, graph = found.plan, found.plan.graph
    sample = min(plan.sample, found.sample)
    columns = {name: _column(found.blocks[name], sample) for name in graph.checkpoints if name in found.blocks}
    rows = _number(columns)
    masks = _presence(rows, graph)
    codes, patterns = _distinct_patterns(masks)
    lossy = np.array([bool(missing_places(graph, mask)) for mask in patterns], bool)
    first_lag = _first_arrivals(rows, columns, graph)
    missing = _Missing.of(rows, codes, lossy, columns, plan, sample)
    return WindowFacts(
        patterns=_whole_patterns(plan, patterns, lossy, codes, first_lag) + missing.patterns(plan, patterns),
        checkpoints={name: _checkpoint_facts(graph, name, columns, rows) for name in columns},
        e2e_lags=Sketch.of(first_lag[np.isfinite(first_lag)]),
        read=dict(found.read),
        corrupted=_corrupted(found, sample),
        quarantined=frozenset(found.quarantined),
        sample=sample,
        cuts=plan.cuts,
        missing=missing.named(patterns, columns.get(graph.first), rows.of.get(graph.first), sample),
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
    ordered = live + [block for block in blocks if block.replay is not None]
    ids = [block.id_hash[_sampled(block, sample)] for block in ordered]
    lags = [block.lag_ms[_sampled(block, sample)] for block in ordered]
    return Column(np.concatenate(ids), np.concatenate(lags), sum(part.size for part in ids[: len(live)]), ordered)


def _is_scattered(found: WindowBlocks, columns: dict[str, Column], partition: int) -> bool:
    """Whether blocks hold ids that belong to another partition. The partition grows with the id, so the smallest and
    the largest speak for all."""
    ends = [int(end) for column in columns.values() if column.ids.size for end in (column.ids.min(), column.ids.max())]
    return any(partition_of(end, partitions) != partition for partitions in found.partitions for end in ends)


def _number(columns: dict[str, Column]) -> Rows:
    """Give every distinct id a row, the first checkpoint's first."""
    if not columns:
        return Rows(np.empty(0, np.uint64), {})
    ids = pd.unique(next(iter(columns.values())).ids)
    of = _rows_in(ids, columns)
    strangers = [name for name, found in of.items() if (found < 0).any()]
    if strangers:
        more = pd.unique(np.concatenate([columns[name].ids[of[name] < 0] for name in strangers]))
        ids = np.concatenate([ids, more])
        of |= _rows_in(ids, {name: columns[name] for name in strangers})  # rows given before stay as they are
    return Rows(ids, of)


def _rows_in(ids: U64, columns: dict[str, Column]) -> dict[str, Ints]:
    """For each column the rows of its ids among these distinct ones, -1 where one is not there."""
    index: Any = pd.Index(ids)  # its stubs know nothing of arrays
    return {name: index.get_indexer(column.ids) for name, column in columns.items()}


def _presence(rows: Rows, graph: Graph) -> U64:
    """The presence masks of the ids, as rows of 64-bit words: shape (words, ids)."""
    masks = np.zeros((len(graph.checkpoints) // 64 + 1, rows.ids.size), np.uint64)
    for name, of in rows.of.items():
        masks[graph.bit[name] // 64][of] |= np.uint64(1 << graph.bit[name] % 64)
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


def _first_arrivals(rows: Rows, columns: dict[str, Column], graph: Graph) -> F32:
    """Each id's smallest live lag over the delivery checkpoints (ms); infinity where it was not delivered live."""
    first = np.full(rows.ids.size, np.inf, np.float32)
    for name in graph.delivery:
        if name in columns:
            live = columns[name].live
            np.minimum.at(first, rows.of[name][:live], columns[name].lags[:live])
    return first


def _whole_patterns(
    plan: WindowPlan, patterns: list[int], lossy: Bools, codes: Ints, first_lag: F32
) -> tuple[Pattern, ...]:
    """Patterns with nothing missing: counts, and how many were on time."""
    counts = np.bincount(codes, minlength=len(patterns))
    on_time = np.bincount(codes[first_lag.astype(np.float64) <= plan.lag_target_ms], minlength=len(patterns))
    return tuple(Pattern(mask, int(counts[at]), int(on_time[at])) for at, mask in enumerate(patterns) if not lossy[at])


def _checkpoint_facts(graph: Graph, name: str, columns: dict[str, Column], rows: Rows) -> CheckpointFacts:
    column, of, n = columns[name], rows.of[name], rows.ids.size
    times = np.bincount(of[: column.live], minlength=n)
    there = times if column.live == of.size else np.bincount(of, minlength=n)
    return CheckpointFacts(
        beacons=column.live,
        replayed=of.size - column.live,
        distinct=int(np.count_nonzero(there)),
        duplicates=_duplicates(graph, name, times, columns, rows),
        lags=Sketch.of(column.lags[: column.live]),
    )


def _duplicates(graph: Graph, name: str, times: Ints, columns: dict[str, Column], rows: Rows) -> int:
    """Rule 9: live beacons beyond those a message may have here; `times` says how many each id has."""
    if graph.retry_loop_mask >> graph.bit[name] & 1:
        return 0
    extra = times - graph.allowed_copies[graph.bit[name]]
    back = graph.returns.get(name)
    if back in columns:
        extra = extra - np.bincount(rows.of[back][: columns[back].live], minlength=rows.ids.size)
    return int(np.maximum(extra, 0).sum())


@dataclass(frozen=True)
class _Missing:
    """The ids that something is missing of, in order: their row, pattern's number and when last seen (epoch ms)."""

    ids: U64
    rows: Ints
    codes: Ints
    last_seen: F64

    @classmethod
    def of(
        cls, rows: Rows, codes: Ints, lossy: Bools, columns: dict[str, Column], plan: WindowPlan, sample: int
    ) -> _Missing:
        wanted = lossy[codes] if rows.ids.size else np.zeros(0, bool)
        which = np.flatnonzero(wanted)
        which = which[np.argsort(rows.ids[which])]
        rank = np.full(rows.ids.size, -1, np.intp)
        rank[which] = np.arange(which.size)
        newest_lag = np.full(which.size, -np.inf)
        for name, column in columns.items():
            hits = np.flatnonzero(wanted[rows.of[name]])
            np.maximum.at(newest_lag, rank[rows.of[name][hits]], column.lags[hits].astype(np.float64))
        event_ms = np.full(which.size, -np.inf)
        first = columns.get(plan.graph.first)
        if first is not None:
            stamps = _event_offsets(first, sample) + plan.window_start_s * 1000
            hits = np.flatnonzero(wanted[rows.of[plan.graph.first]])
            np.maximum.at(event_ms, rank[rows.of[plan.graph.first][hits]], stamps[hits])
        event_ms[np.isinf(event_ms)] = plan.window_end_ms
        return cls(rows.ids[which], which, codes[which], event_ms + newest_lag)

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

    def named(self, patterns: list[int], first: Column | None, of: Ints | None, sample: int) -> tuple[MissingId, ...]:
        """The first of them, with their names where the first checkpoint's blocks tell them."""
        kept = self.rows[:MAX_NAMES]
        names = {} if first is None or of is None else _names(first, of, kept, sample)
        return tuple(
            MissingId(int(self.ids[at]), patterns[self.codes[at]], float(self.last_seen[at]), names.get(row))
            for at, row in enumerate(kept.tolist())
        )


def _event_offsets(first: Column, sample: int) -> F64:
    """event_time - window_start of the first checkpoint's beacons (ms); minus infinity where a block does not say."""
    nothing = np.float64(-np.inf)
    parts = [
        np.full(block.count, nothing)[_sampled(block, sample)]
        if block.event_offset_ms is None
        else block.event_offset_ms[_sampled(block, sample)].astype(np.float64)
        for block in first.blocks
    ]
    return np.concatenate(parts)


def _names(first: Column, of: Ints, wanted: Ints, sample: int) -> dict[int, str]:
    """The names of these rows, from the blocks that carry names."""
    hits = np.flatnonzero(np.isin(of, wanted))
    sizes = [block.id_hash[_sampled(block, sample)].size for block in first.blocks]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    block_of = np.searchsorted(starts, hits, side="right") - 1
    names: dict[int, str] = {}
    for at in np.unique(block_of).tolist():
        block, mine = first.blocks[at], hits[block_of == at]
        if block.message_ids is None:
            continue
        taken = np.arange(block.count)[_sampled(block, sample)]
        raw = unpack_ids(block.message_ids, taken[mine - starts[at]].tolist())
        names.update(zip(of[mine].tolist(), (name.decode("utf-8", "replace") for name in raw), strict=True))
    return names


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

"""Counting one window: from its blocks' columns to its facts. No Spark, no Kafka, no clock.

Every distinct id gets a row, found by one hash look-up a beacon; presence is then a bit a checkpoint in the row's mask,
and what needs a message's lags ("last seen", first arrival) is a minimum or maximum by row. Nothing is sorted.

Integer arrays here number five things:
row       a distinct id of the window
code      a presence pattern (`patterns[code]` is its mask); `codes` is by row
position  a beacon in a `SampledBeacons`
place     a beacon in its `Column`, which holds those outside of the sample as well
cell      a pattern in one range between two cuts
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from aggregator.kernel.bins import sketch_of
from aggregator.kernel.columns import BlockColumns, Column
from aggregator.kernel.id_index import IdIndex, Rows
from aggregator.kernel.picking import Bools, CountedIds, DistinctIds, Ints, SampledBeacons, pick
from aggregator.kernel.plan import WindowPlan
from lagloss.wire.format import F32, SAMPLE_ALL, U32, U64, WINDOW_S
from lagloss.wire.sketch import Sketch
from lagloss.wire.traces import TraceContext, find_traces
from lagloss_server.judging.arithmetic import is_of_source, is_unsettled
from lagloss_server.judging.facts import MAX_NAMES, CheckpointFacts, MissingId, Pattern, WindowFacts
from lagloss_server.judging.picked import PickedMessages
from lagloss_server.model.graph import Graph
from lagloss_server.packing.compiled import compiled

F64 = npt.NDArray[np.float64]

TIMED_SAMPLE = SAMPLE_ALL // 16
"""Which ids' own durations are taken: those a sample of this size would leave in."""


def count_window(block_columns: BlockColumns) -> WindowFacts:
    """Count the facts of all ids in these blocks."""
    plan, graph = block_columns.plan, block_columns.plan.graph
    sample = min(plan.sample, block_columns.sample)
    index = IdIndex(max((column.ids.size for column in block_columns.live.values()), default=0))
    live = {
        name: _sampled(block_columns.live[name], sample, index)
        for name in graph.checkpoints
        if name in block_columns.live
    }
    again = {name: _sampled(column, sample, index) for name, column in block_columns.replayed.items()}
    ids, checkpoints = _mark(graph, index, live, again, block_columns.live)
    codes, patterns = _distinct_patterns(ids.masks)
    lossy = np.array([is_unsettled(graph, mask) for mask in patterns], bool)
    first = [
        (columns[name], side[name])
        for columns, side in ((block_columns.live, live), (block_columns.replayed, again))
        for name in graph.entrances
        if name in side
    ]
    every = [(block_columns.live[name], beacons) for name, beacons in live.items()]
    every += [(block_columns.replayed[name], beacons) for name, beacons in again.items()]
    missing = _Missing.of(plan, ids, codes, lossy, [beacons for _, beacons in first], every)
    counts = _whole_patterns(plan, patterns, lossy, codes, ids.first) + missing.patterns(plan, patterns, ids.first)
    arrivals = tuple(sketch_of(first[np.isfinite(first)]) for first in ids.first)
    by_source = _source_arrivals(graph, patterns, codes, ids.first) if len(graph.sources) > 1 else ()
    checks = _checked(block_columns, sample)
    corrupted = {link: index.rows_of(wrong) for link, (_, wrong) in checks.items() if wrong.size}
    picked = pick(
        CountedIds(
            plan=plan,
            live={name: (block_columns.live[name], part) for name, part in live.items()},
            replayed={name: (block_columns.replayed[name], part) for name, part in again.items()},
            ids=ids,
            codes=codes,
            patterns=patterns,
            lossy=lossy,
            missing=missing.rows[:MAX_NAMES],
            corrupted=corrupted,
            sample=sample,
            share=block_columns.share,
        )
    )
    return WindowFacts(
        patterns=counts,
        checkpoints={name: checkpoints[name] for name in graph.checkpoints if name in checkpoints},
        arrivals=arrivals,
        source_arrivals=by_source,
        durations=_durations(graph, live, ids.ids, sample),
        read=dict(block_columns.read),
        strangers=dict(block_columns.strangers),
        bad=dict(block_columns.bad),
        corrupted={link: wrong.size for link, wrong in corrupted.items()},
        checked={link: checked for link, (checked, _) in checks.items()},
        reasons={name: reasons for name, part in live.items() if (reasons := _reasons(block_columns.live[name], part))},
        quarantined=frozenset(block_columns.quarantined),
        sample=sample,
        cuts=plan.cuts,
        missing=missing.named(patterns, picked, _traces(first, missing.rows[:MAX_NAMES], index.size)),
        picked=picked,
        partitions=frozenset(block_columns.partitions),
        scattered=block_columns.scattered or len(block_columns.partitions) > 1,
    )


def _in_sample(ids: U64, sample: int) -> Bools:
    """Rule 14: which ids a sample takes."""
    return (ids & np.uint64(SAMPLE_ALL - 1)) < np.uint64(sample)


def _sampled(column: Column, sample: int, index: IdIndex) -> SampledBeacons:
    if sample == SAMPLE_ALL:
        return SampledBeacons(column.ids, column.lags, column.offsets, index.rows_of(column.ids), None)
    in_sample = _in_sample(column.ids, sample)
    ids = column.ids[in_sample]
    offsets = column.offsets[in_sample] if column.offsets.size else column.offsets
    return SampledBeacons(ids, column.lags[in_sample], offsets, index.rows_of(ids), in_sample)


def _mark(
    graph: Graph,
    index: IdIndex,
    live: Mapping[str, SampledBeacons],
    again: Mapping[str, SampledBeacons],
    columns: Mapping[str, Column],
) -> tuple[DistinctIds, dict[str, CheckpointFacts]]:
    """Mark presence in one pass over all beacons, and count each checkpoint's beacons and lags. `columns`: the live
    ones."""
    n = index.size
    ids = DistinctIds(
        index.ids,
        np.zeros((len(graph.checkpoints) // 64 + 1, n), np.uint64),
        np.full(n, -np.inf, np.float32),
        np.full((len(graph.delivery), n), np.inf, np.float32),
    )
    nowhere = np.empty(0, np.int32)
    empty = SampledBeacons(np.empty(0, np.uint64), np.empty(0, np.float32), nowhere, nowhere, None)
    facts = {}
    for name in {**live, **again}:
        bit, part, replayed = graph.bit[name], live.get(name, empty), again.get(name, empty)
        word, flag = ids.masks[bit // 64], np.uint64(1 << bit % 64)
        distinct_live = _take(part.rows, part.lags, word, flag, ids.newest)
        distinct = distinct_live + _take(replayed.rows, replayed.lags, word, flag, ids.newest)
        if name in graph.delivery:
            _lower(part.rows, part.lags, ids.first[graph.delivery.index(name)])
        facts[name] = CheckpointFacts(
            beacons=part.ids.size,
            replayed=replayed.ids.size,
            distinct=distinct,
            duplicates=_duplicates(graph, name, live, distinct_live, n),
            lags=sketch_of(part.lags),
            out_of_order=_out_of_order(columns[name], part) if name in columns else 0,
        )
    return ids, facts


@compiled
def _take(rows: Rows, lags: F32, masks: U64, flag: np.uint64, newest: F32) -> int:
    """Put a checkpoint's bit into the masks of these rows, and raise their newest lag; in how many the bit is new."""
    fresh = 0
    for index in range(rows.size):
        row = rows[index]
        if masks[row] & flag == 0:
            masks[row] |= flag
            fresh += 1
        newest[row] = max(newest[row], lags[index])
    return fresh


@compiled
def _lower(rows: Rows, lags: F32, least: F32) -> None:
    for index in range(rows.size):
        least[rows[index]] = min(least[rows[index]], lags[index])


def _duplicates(graph: Graph, name: str, live: Mapping[str, SampledBeacons], distinct: int, n: int) -> int:
    """Rule 9: live beacons beyond those a message may have here."""
    if name not in live or graph.retry_loop_mask >> graph.bit[name] & 1:
        return 0
    back, allowed = live.get(graph.returns.get(name, "")), graph.allowed_copies[graph.bit[name]]
    if back is None and allowed == 1:
        return int(live[name].rows.size) - distinct
    may = allowed if back is None else allowed + np.bincount(back.rows, minlength=n)
    return int(np.maximum(np.bincount(live[name].rows, minlength=n) - may, 0).sum())


def _out_of_order(column: Column, beacons: SampledBeacons) -> int:
    """Rule 20: messages of which a live beacon is out of order."""
    if not column.out_of_order:
        return 0
    is_one = np.zeros(column.ids.size, bool)
    is_one[np.concatenate(column.out_of_order)] = True
    return int(np.unique(beacons.rows[is_one if beacons.kept is None else is_one[beacons.kept]]).size)


def _distinct_patterns(masks: U64) -> tuple[Ints, list[int]]:
    """Return the number of each id's pattern, and the patterns."""
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


def _whole_patterns(
    plan: WindowPlan, patterns: list[int], lossy: Bools, codes: Ints, first: F32
) -> tuple[Pattern, ...]:
    """Patterns with nothing missing: counts, and how many were on time at each destination."""
    counts = np.bincount(codes, minlength=len(patterns)).tolist()
    on_time = _count_on_time(plan, codes, first, len(patterns))
    return tuple(
        Pattern(mask, counts[index], on_time[index]) for index, mask in enumerate(patterns) if not lossy[index]
    )


def _count_on_time(plan: WindowPlan, cells: Ints, first: F32, n: int) -> list[tuple[int, ...]]:
    """For each of `n` cells, how many of its ids arrived on time at each destination; `cells` and the columns of
    `first` are by id."""
    counts = [
        # as float64: numpy would round the target to a lag's float32
        np.bincount(cells[lags.astype(np.float64) <= target_ms], minlength=n).tolist()
        for lags, target_ms in zip(first, plan.lag_targets_ms, strict=True)
    ]
    return list(zip(*counts, strict=True))


def _source_arrivals(graph: Graph, patterns: list[int], codes: Ints, first: F32) -> tuple[Sketch, ...]:
    """Sketch, by source, the lags of the first arrivals of its messages at each destination."""
    sketches = []
    for index, source in enumerate(graph.sources):
        side = graph.side_of(source)
        mine = np.array([is_of_source(graph, index, mask) for mask in patterns], bool)[codes]
        arrivals = [
            lags for destination, lags in zip(graph.destinations, first, strict=True) if destination.at & side.mask
        ]
        sketches.append(Sketch.merged(sketch_of(lags[mine & np.isfinite(lags)]) for lags in arrivals))
    return tuple(sketches)


def _durations(graph: Graph, live: Mapping[str, SampledBeacons], ids: U64, sample: int) -> dict[str, Sketch]:
    """Measure how long each node and each link kept a message: from its first arrival to its first departure, message
    by message, over one id in 16."""
    limit = min(sample, TIMED_SAMPLE)
    timed = _in_sample(ids, limit)
    slots = (np.cumsum(timed) - 1).astype(np.int32)
    firsts = {}
    for name, column in live.items():
        firsts[name] = np.full(int(timed.sum()), np.inf, np.float32)
        _lower_timed(column.ids, column.rows, column.lags, np.uint64(limit), slots, firsts[name])
    sketches = {}
    for label, arrivals, departures in graph.spans:
        into, out = _earliest(firsts, arrivals), _earliest(firsts, departures)
        if into is None or out is None:
            continue
        both = np.isfinite(into) & np.isfinite(out)
        if both.any():
            sketches[label] = Sketch.of(out[both].astype(np.float64) - into[both])
    return sketches


def _earliest(firsts: Mapping[str, F32], checkpoints: Iterable[str]) -> F32 | None:
    first_arrivals = [firsts[name] for name in checkpoints if name in firsts]
    return np.minimum.reduce(first_arrivals) if first_arrivals else None


@compiled
def _lower_timed(ids: U64, rows: Rows, lags: F32, limit: np.uint64, slots: Rows, least: F32) -> None:
    for index in range(ids.size):
        if ids[index] & np.uint64(0xFFFFFFFF) < limit:  # `_in_sample`, which compiled code cannot call
            slot = slots[rows[index]]
            least[slot] = min(least[slot], lags[index])


@dataclass(frozen=True)
class _Missing:
    """The ids that something is missing of, in order: their row, pattern's number, when they were last seen by what
    their beacons say, and between which moments they surely were (epoch ms)."""

    ids: U64
    rows: Ints
    codes: Ints
    last_seen: F64
    seen_from: F64
    seen_by: F64

    @classmethod
    def of(
        cls,
        plan: WindowPlan,
        ids: DistinctIds,
        codes: Ints,
        lossy: Bools,
        first: Sequence[SampledBeacons],
        every: Sequence[tuple[Column, SampledBeacons]],
    ) -> _Missing:
        """Build the table of missing ids. `first`: the beacons of the sources' `in`, which know event times; `every`:
        those of all checkpoints."""
        is_shown = lossy[codes] if ids.ids.size else np.zeros(0, bool)
        which = np.flatnonzero(is_shown)
        which = which[np.argsort(ids.ids[which])]
        if not which.size:
            return cls(ids.ids[which], which, codes[which], *(np.empty(0) for _ in range(3)))
        offsets = np.full(ids.ids.size, -1, np.int32)
        for column in first:
            np.maximum.at(offsets, column.rows, column.offsets)
        seen_from, last_seen = _event_times_ms(plan, offsets[which]) + ids.newest[which]
        seen_by = last_seen
        if any(column.supplied for column, _ in every):
            seen_from, seen_by = _seen_between(_event_times_ms(plan, offsets), every)[:, which]
        return cls(ids.ids[which], which, codes[which], last_seen, seen_from, seen_by)

    def patterns(self, plan: WindowPlan, patterns: list[int], first_lags: F32) -> tuple[Pattern, ...]:
        """One pattern for each mask, and stretch between the cuts from which on they may have been last seen, and by
        which they surely were, if that is later."""
        if not self.ids.size:
            return ()
        cuts, width = np.array(plan.cuts, np.float64), len(plan.cuts) + 1
        keys = (self.codes * width + np.searchsorted(cuts, self.seen_from, side="right")) * (width + 1)
        is_between = self.seen_by > self.seen_from
        if is_between.any():
            keys += np.where(is_between, np.searchsorted(cuts, self.seen_by, side="right") + 1, 0)
        cells, cells_of_rows = np.unique(keys, return_inverse=True)
        first, last = _bounds(self.seen_from, cells_of_rows, cells.size)
        by_first, by_last = _bounds(self.seen_by, cells_of_rows, cells.size) if is_between.any() else (first, last)
        counts = np.bincount(cells_of_rows).tolist()
        on_time = _count_on_time(plan, cells_of_rows, first_lags[:, self.rows], cells.size)
        return tuple(
            Pattern(
                patterns[cell // (width + 1) // width],
                counts[index],
                on_time[index],
                first[index],
                last[index],
                *((by_first[index], by_last[index]) if cell % (width + 1) else ()),
            )
            for index, cell in enumerate(cells.tolist())
        )

    def named(
        self, patterns: list[int], picked: PickedMessages, traces: Mapping[int, TraceContext]
    ) -> tuple[MissingId, ...]:
        """Return the first of them, with their names and traces where they are known, and who saw each last."""
        rows = {id_hash: row for row, id_hash in enumerate(picked["ids"].tolist())}
        last = picked.last_emitters()
        return tuple(
            MissingId(
                id_hash,
                patterns[code],
                *times_ms,
                picked.names[rows[id_hash]],
                traces.get(row),
                last[rows[id_hash]],
            )
            for id_hash, code, times_ms, row in zip(
                self.ids[:MAX_NAMES].tolist(),
                self.codes.tolist(),
                zip(self.last_seen.tolist(), self.seen_from.tolist(), self.seen_by.tolist(), strict=True),
                self.rows.tolist(),
                strict=False,
            )
        )


def _event_times_ms(plan: WindowPlan, offsets: npt.NDArray[np.int32]) -> F64:
    """Return the earliest and the latest event time of messages, shape (2, messages): where no source has said it
    (-1), it is any of the window (rule 4)."""
    in_window_ms = np.where(offsets < 0, np.array([[0], [WINDOW_S * 1000]]), offsets)
    return plan.window_start_s * 1000.0 + in_window_ms


def _seen_between(events_ms: F64, columns: Iterable[tuple[Column, SampledBeacons]]) -> F64:
    """Return between which moments messages were last seen (epoch ms), where times were supplied, shape (2, rows).
    `events_ms`: the earliest and the latest event time of each, of the same shape."""
    seen = np.full(events_ms.shape, -np.inf)
    seen_from, seen_by = seen
    for column, beacons in columns:
        earliest, latest = events_ms[:, beacons.rows] + beacons.lags
        if column.supplied:
            supplied_ms = _supplied_of(column, beacons)
            earliest = np.minimum(earliest, supplied_ms)
            latest = np.where(np.isfinite(supplied_ms), supplied_ms, latest)
        np.maximum.at(seen_from, beacons.rows, earliest)
        np.maximum.at(seen_by, beacons.rows, latest)
    return seen


def _supplied_of(column: Column, beacons: SampledBeacons) -> F64:
    """Return by when these beacons of a column were supplied (epoch ms); infinity where no time was."""
    of_places = np.full(column.ids.size, np.inf)
    for start, count, time_ms in column.supplied:
        of_places[start : start + count] = time_ms
    return of_places if beacons.kept is None else of_places[beacons.kept]


def _bounds(times_ms: F64, cells: Ints, n: int) -> tuple[list[float], list[float]]:
    """Return the first and the last of these times in each of `n` cells."""
    first, last = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(first, cells, times_ms)
    np.maximum.at(last, cells, times_ms)
    return first.tolist(), last.tolist()


def _traces(columns: Iterable[tuple[Column, SampledBeacons]], rows: Ints, n: int) -> dict[int, TraceContext]:
    """Return the traces of these rows (of `n`), from the blocks of the sources' `in` that carry them."""
    is_wanted, seen_in = np.zeros(n, bool), dict[int, tuple[float, TraceContext]]()
    is_wanted[rows] = True
    for column, beacons in columns if rows.size else ():
        if not column.traces:
            continue
        hits = np.flatnonzero(is_wanted[beacons.rows])
        places = hits if beacons.kept is None else np.flatnonzero(beacons.kept)[hits]
        row_at = dict(zip(places.tolist(), beacons.rows[hits].tolist(), strict=True))
        for start, count, packed in column.traces:
            first, last = np.searchsorted(places, (start, start + count)).tolist()
            # a message that came in several times is in the trace in which it came in first, however blocks are read
            for position, trace in find_traces(packed, places[first:last] - start).items():
                row, sighting = row_at[start + position], (float(column.lags[start + position]), trace)
                seen_in[row] = min(sighting, seen_in.get(row, sighting))
    return {row: trace for row, (_, trace) in seen_in.items()}


def _reasons(column: Column, beacons: SampledBeacons) -> Counter[str]:
    """Count the beacons of a checkpoint by the reason that their blocks give."""
    counts: Counter[str] = Counter()
    for start, count, reason in column.reasons:
        counts[reason] += count if beacons.kept is None else int(beacons.kept[start : start + count].sum())
    return +counts


def _checked(columns: BlockColumns, sample: int) -> dict[str, tuple[int, U64]]:
    """Rule 13: by link, how many ids have checksums on both sides, and those of them that never agreed."""
    checks = {}
    for link in columns.plan.graph.links:
        sent, taken = _checksums(columns, link.out, sample), _checksums(columns, f"{link.target}.in", sample)
        if sent is None or taken is None:
            continue
        on_both = np.intersect1d(sent["id"].to_numpy(), taken["id"].to_numpy())
        agreed = sent.merge(taken, on=["id", "crc"])["id"].unique()
        wrong = np.setdiff1d(on_both, agreed) if on_both.size > agreed.size else on_both[:0]
        checks[link.name] = int(on_both.size), wrong
    return checks


def _checksums(block_columns: BlockColumns, checkpoint: str, sample: int) -> pd.DataFrame | None:
    columns = [side[checkpoint] for side in (block_columns.live, block_columns.replayed) if checkpoint in side]
    parts: list[tuple[U64, U32]] = [part for column in columns for part in column.checksums]
    if not parts:
        return None
    ids, crcs = (np.concatenate(column) for column in zip(*parts, strict=True))
    in_sample = _in_sample(ids, sample)
    return pd.DataFrame({"id": ids[in_sample], "crc": crcs[in_sample]}).drop_duplicates()

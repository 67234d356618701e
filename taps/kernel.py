"""The kernel of a tap: a plan's records become blocks, the same ones whoever makes them. Pure.

The order of the beacons is that of partitions and offsets, the blocks' numbers follow from the plan's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from lagloss.sdk.packing import Kind, Observed, PackedBlock, Packer, TallyKey, apply_sample
from lagloss.sdk.shipper import Position
from lagloss.wire.format import MAX_AHEAD_MS, RETENTION_MS, WINDOW_S, window_start_of
from lagloss.wire.traces import CONTEXT_BYTES
from lagloss_server.model.taps import Tap
from taps.counts import TapCounts, UnreadableRecords
from taps.extraction import Extracted, Extractor
from taps.extraction.columns import ByteColumn
from taps.order import KeyTimes, PartitionOrder
from taps.plan import OffsetSpan, TapPlan
from taps.records import SpanRecords

SEQ_BITS: Final = 30
"""Of a block's number, for its place in a plan."""
SPAN_BITS: Final = 16
"""Of these, for its place among the blocks of a span, where each span makes its own."""
AHEAD_MS: Final = MAX_AHEAD_MS // 2
"""Largest distance of an event time from the plan, ahead: closing takes no block of a later window."""
AHEAD: Final = "time_ahead"
TOO_OLD: Final = "time_too_old"


def oldest_ms(plan: TapPlan) -> int:
    """Return the event time (epoch ms) before which closing takes no beacon of a plan any more, with a window to spare
    for the plan to be carried out."""
    return plan.planned_at_ms - RETENTION_MS + WINDOW_S * 1_000


def span_seq(plan: TapPlan, span: OffsetSpan) -> int:
    """Return the number after which the blocks of a span are numbered, where each span makes its own."""
    return (plan.number << SEQ_BITS) + (span.partition << SPAN_BITS)


@dataclass(slots=True)
class Blocks:
    """What a plan, or a part of it, comes to."""

    blocks: list[PackedBlock] = field(default_factory=list)
    dropped: Counter[TallyKey] = field(default_factory=Counter)
    thinned: dict[TallyKey, int] = field(default_factory=dict)
    counts: TapCounts = field(default_factory=TapCounts)
    positions: list[Position] | None = None
    """Where the blocks are if they were sent already."""

    @classmethod
    def merged(cls, parts: Iterable[Blocks]) -> Blocks:
        """Return all parts of a plan together."""
        made = cls()
        for part in parts:
            made.blocks += part.blocks
            made.dropped.update(part.dropped)
            made.thinned |= part.thinned
            made.counts.add(part.counts)
            if part.positions is not None:
                made.positions = [*(made.positions or ()), *part.positions]
        return made


@dataclass(frozen=True, slots=True)
class BlockMaker:
    """Makes the blocks of one tap's plans. `since_ms`: start of its first window."""

    tap: Tap
    emitter: bytes
    since_ms: int
    extractor: Extractor

    @property
    def wants_keys(self) -> bool:
        """Whether records' keys are looked at."""
        return self.tap.order == "key" or any(part.source == "key" for part in self.tap.extraction.parts())

    @property
    def wants_headers(self) -> bool:
        """Whether records' headers are looked at."""
        return any(part.source == "header" for part in self.tap.extraction.parts())

    def make(
        self, plan: TapPlan, read: Mapping[int, SpanRecords], orders: Mapping[int, PartitionOrder] | None = None
    ) -> Blocks:
        """Return the blocks of a plan whose records these are, by partition.

        `orders`: of a tap with an order, by partition, what the records before its span come to; these are added.
        """
        orders = orders or {}
        if plan.is_spread:
            parts = (self._make(plan, [span], read, orders, span_seq(plan, span)) for span in plan.spans)
            made = Blocks.merged(parts)
        else:
            made = self._make(plan, plan.spans, read, orders, plan.number << SEQ_BITS)
        gone = sum(plan.gone.values()) + sum(read[span.partition].gone for span in plan.spans)
        self.drop_gone(plan, gone, made)
        return made

    def _make(
        self,
        plan: TapPlan,
        spans: Sequence[OffsetSpan],
        read: Mapping[int, SpanRecords],
        orders: Mapping[int, PartitionOrder],
        seq: int,
    ) -> Blocks:
        made = Blocks()
        observed = (self.observe(plan, span, read[span.partition], made, orders.get(span.partition)) for span in spans)
        parts = [part for part in observed if part is not None]
        made.blocks = list(self.pack(plan, parts, seq, made))
        return made

    def pack(self, plan: TapPlan, parts: Sequence[Observed], seq: int, made: Blocks) -> Iterator[PackedBlock]:
        """Yield the blocks of beacons that were observed, numbered on from `seq`."""
        if not parts:
            return
        kinds = [Kind(place, None, None, has_crc=False) for place in self.tap.places]
        packer = Packer(self.tap.pipeline, self.tap.node, self.emitter, self.tap.first, seq=seq)
        observed = Observed.joined(parts)
        for code, kind in enumerate(kinds):
            is_named = self.tap.first and kind.place == "in"  # names are costly to sort, and only there they are sent
            raw_ids = observed.raw_ids if is_named else []
            at_place = replace(observed, code=np.full(len(observed), code, np.int64), raw_ids=raw_ids)
            kept, left_out = apply_sample(at_place, kinds, plan.sample)
            made.thinned |= dict.fromkeys(left_out, plan.sample)
            yield from packer.pack(kept, kinds, plan.partitions, plan.sample)

    def remember(self, read: SpanRecords, order: PartitionOrder) -> None:
        """Have `order` know of records before a span."""
        self._judge(read, self.extractor.extract(read.records), order, 0)

    def observe(
        self,
        plan: TapPlan,
        span: OffsetSpan,
        read: SpanRecords,
        made: Blocks,
        order: PartitionOrder | None = None,
    ) -> Observed | None:
        """Return the beacons of a span, or of a part of it, one per record, and count the records that make none.
        `order` knows of the records before, and comes to know of these."""
        made.counts.seen += int(read.offsets.size)
        found = self.extractor.extract(read.records)
        made.counts.left_out += found.left_out
        times_ms = read.records.timestamp_ms
        for reason, rows in found.unreadable_rows.items():
            self._count_unreadable(reason, rows, span, read, made)
        event_ms, rows, ids = found.event_ms, found.rows, found.ids
        out_of_order = np.empty(0, np.bool_)
        if order is not None:
            out_of_order = self._judge(read, found, order, plan.planned_at_ms + AHEAD_MS)
        early = event_ms < self.since_ms
        made.counts.early += int(np.count_nonzero(early))
        ahead = event_ms > plan.planned_at_ms + AHEAD_MS
        self._count_unreadable(AHEAD, rows[ahead], span, read, made)
        too_old = (event_ms < oldest_ms(plan)) & ~early
        self._count_unreadable(TOO_OLD, rows[too_old], span, read, made)
        kept = np.flatnonzero(~(early | ahead | too_old))
        if not kept.size:
            return None
        if kept.size < rows.size:
            event_ms, rows = event_ms[kept], rows[kept]
            ids = [ids[row] for row in kept.tolist()]
            out_of_order = out_of_order[kept] if order is not None else out_of_order
        observed_ms = self._observed_ms(span, read, rows, times_ms)
        return Observed(
            code=np.zeros(rows.size, np.int64),
            id_hash=np.fromiter(map(xxhash.xxh3_64_intdigest, ids), np.uint64, len(ids)),
            event_ms=event_ms,
            lag_ms=observed_ms - event_ms,
            crc=np.zeros(rows.size, np.uint32),
            payload_bytes=read.records.value_sizes()[rows],
            raw_ids=ids if self.tap.first else [],
            traces=np.empty((0, CONTEXT_BYTES), np.uint8),
            out_of_order=out_of_order,
        )

    def _judge(
        self, read: SpanRecords, found: Extracted, order: PartitionOrder, newest_ms: float
    ) -> npt.NDArray[np.bool_]:
        """Return which of the rows that were extracted are out of order; those without a key are not judged."""
        rows, offsets = np.arange(found.rows.size), read.offsets[found.rows]
        if self.tap.order == "partition":
            keys = np.zeros(rows.size, np.uint64)
        else:
            column = ByteColumn.of(read.records.keys)
            rows = np.flatnonzero(~column.is_null[found.rows])
            hashes = (xxhash.xxh3_64_intdigest(column.at(row)) for row in found.rows[rows].tolist())
            keys = np.fromiter(hashes, np.uint64, rows.size)
        flags = np.zeros(found.rows.size, np.bool_)
        flags[rows] = order.take(KeyTimes(offsets[rows], keys, found.event_ms[rows]), newest_ms)
        return flags

    def _observed_ms(
        self, span: OffsetSpan, read: SpanRecords, rows: npt.NDArray[np.intp], times_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return when these records were observed: when a commit passed them, or when they were appended.

        Where the broker keeps the producer's time, and that is older than a moment at which the record was not there
        yet (a stream processor hands on the time of its input), it is that moment.
        """
        marked, at_ms = (
            (np.array(column, np.int64) for column in zip(*span.marks, strict=True)) if span.marks else ((), ())
        )
        following = np.searchsorted(marked, read.offsets[rows], side="right")
        if self.tap.group is not None:
            return at_ms[following].astype(np.float64)
        found = times_ms[rows].astype(np.float64)
        if read.is_append_time or not span.marks:
            return found
        before = np.where(following > 0, at_ms[np.maximum(following - 1, 0)], 0)
        return np.maximum(found, before)

    def _count_unreadable(
        self, reason: str, rows: npt.NDArray[np.intp], span: OffsetSpan, read: SpanRecords, made: Blocks
    ) -> None:
        """Count records that cannot be read: each may be the beacon of a message in the window of its timestamp or the
        one before, whose evidence is incomplete by it."""
        if not rows.size:
            return
        times_ms = read.records.timestamp_ms[rows]
        found = UnreadableRecords(int(rows.size), span.partition, int(read.offsets[rows[-1]]), int(times_ms[-1]))
        made.counts.add_unreadable(reason, found)
        windows = np.unique(times_ms // (WINDOW_S * 1_000))
        for window in {int(found) * WINDOW_S - back for found in windows for back in (0, WINDOW_S)}:
            self._drop(window, 1, made)

    def drop_gone(self, plan: TapPlan, gone: int, made: Blocks) -> None:
        """Count offsets that retention deleted unread, in every window that they may have been of."""
        if not gone:
            return
        made.counts.gone += gone
        first = window_start_of(max(plan.begins_ms - WINDOW_S * 1_000, self.since_ms, oldest_ms(plan)))
        windows = range(first, window_start_of(plan.planned_at_ms) + WINDOW_S, WINDOW_S)
        for at, window in enumerate(windows):
            share = gone // len(windows) + (at < gone % len(windows))
            self._drop(window, max(1, share), made)

    def _drop(self, window_start_s: int, beacons: int, made: Blocks) -> None:
        if window_start_s * 1_000 < self.since_ms:
            return
        for place in self.tap.places:
            made.dropped[TallyKey(place, None, window_start_s)] += beacons

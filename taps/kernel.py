"""The kernel of a tap: a plan's records become blocks, the same ones whoever makes them. Pure.

The order of the beacons is that of partitions and offsets, the blocks' numbers follow from the plan's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from lagloss.identity import REPLAY_HEADER, replay_in
from lagloss.sdk.packing import SAME_CLOCK_MS, Kind, Observed, PackedBlock, Packer, TallyKey, apply_sample
from lagloss.sdk.shipper import Position
from lagloss.wire.format import MAX_AHEAD_MS, RETENTION_MS, UNNAMED_REPLAY, WINDOW_S, window_start_of
from lagloss.wire.traces import CONTEXT_BYTES
from lagloss_server.extraction import Extracted, Extractor
from lagloss_server.extraction.columns import ByteColumn
from lagloss_server.model.tables import AnyTap
from lagloss_server.model.taps import Tap
from taps.order import KeyTimes, PartitionOrder
from taps.plan import STANDING_MS, OffsetSpan, TapPlan
from taps.records import SpanRecords, TapCounts, UnreadableRecords

SEQ_BITS: Final = 30
"""Of a block's number, for its place in a plan."""
SPAN_BITS: Final = 16
"""Of these, for its place among the blocks of a span, where each span makes its own."""
AHEAD_MS: Final = MAX_AHEAD_MS // 2
"""Largest distance of an event time from the plan, ahead: closing takes no block of a later window."""
COMMIT_SLACK_MS: Final = 5_000
"""By how much the clocks of a group's coordinator and of the other brokers may be apart."""
UNSET_MS: Final = 946_684_800_000
"""2000-01-01: an event time before that was never set (0, -1, the year 1), or is a number of another unit. Its message
may be of any window."""
MAX_REPLAYS: Final = 100
"""Replays that blocks of a tap name at a time, half of those that are kept of an emitter: each makes blocks and tallies
of its own. Further ones count as unnamed."""
AHEAD: Final = "time_ahead"
TOO_OLD: Final = "time_too_old"
COMMIT_AHEAD: Final = "commit_ahead"
WINDOW_MS: Final = WINDOW_S * 1_000


def oldest_ms(plan: TapPlan) -> int:
    """Return the event time (epoch ms) before which closing takes no beacon of a plan any more, with a window to spare
    for the plan to be carried out."""
    return plan.planned_at_ms - RETENTION_MS + WINDOW_S * 1_000


def span_seq(plan: TapPlan, span: OffsetSpan) -> int:
    """Return the number after which the blocks of a span are numbered, where each span makes its own."""
    return (plan.sequence << SEQ_BITS) + (span.partition << SPAN_BITS)


@dataclass(slots=True)
class Blocks:
    """What a plan, or a part of it, comes to."""

    blocks: list[PackedBlock] = field(default_factory=list)
    dropped: Counter[TallyKey] = field(default_factory=Counter)
    thinned: dict[TallyKey, int] = field(default_factory=dict)
    counts: TapCounts = field(default_factory=TapCounts)
    positions: list[Position] | None = None
    """Where the blocks are if they were sent already."""
    seen_in: set[int] = field(default_factory=set)
    """Windows of the records that were read, until `BlockMaker.drop_aside`."""
    aside: dict[str, set[int]] = field(default_factory=dict)
    """By reason, windows that those may be of which make no beacons, until then."""

    @classmethod
    def merged(cls, parts: Iterable[Blocks]) -> Blocks:
        """Return all parts of a plan together."""
        blocks = cls()
        for part in parts:
            blocks.blocks += part.blocks
            blocks.dropped.update(part.dropped)
            blocks.thinned |= part.thinned
            blocks.counts.add(part.counts)
            if part.positions is not None:
                blocks.positions = [*(blocks.positions or ()), *part.positions]
        return blocks


@dataclass(frozen=True, slots=True)
class SpanBeacons:
    """The beacons of a span, or of a part of it, one per record; `observed.code` is the position of a beacon's replay
    in `replays`, whose first is None: live traffic."""

    observed: Observed
    replays: tuple[str | None, ...]

    def coded(self, replays: Sequence[str | None]) -> Observed:
        """Return the beacons with positions in these replays; those of others are of the unnamed one."""
        if len(self.replays) == 1:
            return self.observed
        position_of = {replay: position for position, replay in enumerate(replays)}
        positions = [position_of.get(replay, position_of.get(UNNAMED_REPLAY, 0)) for replay in self.replays]
        return replace(self.observed, code=np.array(positions, np.int64)[self.observed.code])


def named_replays(parts: Sequence[SpanBeacons], known: Iterable[str]) -> list[str | None]:
    """Return the replays that blocks of these beacons name, live traffic first: the `known` ones and, up to
    `MAX_REPLAYS`, those with the most beacons. The same ones however the beacons are split into parts."""
    beacons = Counter[str]()
    for part in parts:
        counts = np.bincount(part.observed.code, minlength=len(part.replays)).tolist()
        beacons.update({replay: count for replay, count in zip(part.replays, counts, strict=True) if replay})
    known = set(known)
    new = sorted(beacons.keys() - known, key=lambda replay: (-beacons[replay], replay))
    room = max(0, MAX_REPLAYS - len(known))
    named = (beacons.keys() & known) | set(new[:room])
    return [None, *sorted(named | {UNNAMED_REPLAY} if len(new) > room else named)]


@dataclass(frozen=True, slots=True)
class BlockMaker:
    """Makes the blocks of one tap's plans. `since_ms`: start of its first window."""

    tap: AnyTap
    emitter: bytes
    since_ms: int
    extractor: Extractor

    @property
    def wants_keys(self) -> bool:
        """Whether records' keys are looked at."""
        return self.tap.order == "key" or any(part.source == "key" for part in self.tap.extraction.parts())

    @property
    def headers(self) -> set[str]:
        """Names of the headers of records that are looked at."""
        return {REPLAY_HEADER, *self.tap.extraction.headers()}

    def make(
        self, plan: TapPlan, read: Mapping[int, SpanRecords], orders: Mapping[int, PartitionOrder] | None = None
    ) -> Blocks:
        """Return the blocks of a plan whose records these are, by partition; see `make_of_pieces`."""
        return self.make_of_pieces(plan, read.items(), orders)

    def make_of_pieces(
        self,
        plan: TapPlan,
        pieces: Iterable[tuple[int, SpanRecords]],
        orders: Mapping[int, PartitionOrder] | None = None,
    ) -> Blocks:
        """Return the blocks of a plan, the same ones however the records of its partitions are cut into pieces. Only
        those of a partition come in their order.

        `orders`: of a tap with an order, by partition, what the records before its span come to; these are added.
        """
        orders, gone = orders or {}, sum(plan.gone.values())
        spans = {span.partition: span for span in plan.spans}
        made = {partition: Blocks() for partition in spans}
        parts: dict[int, list[SpanBeacons]] = {partition: [] for partition in spans}
        for partition, read in pieces:
            part = self.observe(plan, spans[partition], read, made[partition], orders.get(partition))
            parts[partition] += [] if part is None else [part]
            gone += read.gone
        for partition, blocks in made.items():
            self.drop_aside(plan, blocks)
            if plan.is_spread:
                blocks.blocks = list(self.pack(plan, parts[partition], span_seq(plan, spans[partition]), blocks))
        blocks = Blocks.merged(made.values())
        if not plan.is_spread:
            all_parts = [part for some in parts.values() for part in some]
            blocks.blocks = list(self.pack(plan, all_parts, plan.sequence << SEQ_BITS, blocks))
        self.drop_gone(plan, gone, blocks)
        return blocks

    def pack(self, plan: TapPlan, parts: Sequence[SpanBeacons], seq: int, blocks: Blocks) -> Iterator[PackedBlock]:
        """Yield the blocks of beacons that were observed, numbered on from `seq`."""
        if not parts:
            return
        replays = named_replays(parts, plan.replays)
        packer = Packer(self.tap.pipeline, self.tap.node, self.emitter, self.tap.first, seq=seq)
        observed = Observed.joined([part.coded(replays) for part in parts])
        for place in self.tap.places:
            kinds = [Kind(place, replay, None, has_crc=False) for replay in replays]
            is_named = self.tap.first and place == "in"  # names are costly to sort, and only there they are sent
            at_place = observed if is_named else replace(observed, raw_ids=[])
            sampled, left_out = apply_sample(at_place, kinds, plan.sample)
            blocks.thinned |= dict.fromkeys(left_out, plan.sample)
            yield from packer.pack(sampled, kinds, plan.partitions, plan.sample)

    def remember(self, read: SpanRecords, order: PartitionOrder) -> None:
        """Have `order` know of records before a span."""
        replays = _Replays.of(read)
        self._judge(read, self.extractor.extract(read.records), order, 0, replays)

    def observe(
        self,
        plan: TapPlan,
        span: OffsetSpan,
        read: SpanRecords,
        blocks: Blocks,
        order: PartitionOrder | None = None,
    ) -> SpanBeacons | None:
        """Return the beacons of a span, or of a part of it, one per record, and count the records that make none:
        `drop_aside` follows once all of the span was observed. `order` knows of the records before, and comes to know
        of these."""
        blocks.counts.seen += int(read.offsets.size)
        observed = self.extractor.extract(read.records)
        blocks.counts.left_out += observed.left_out
        event_ms, rows, ids = observed.event_ms, observed.rows, observed.ids
        replays = _Replays.of(read)
        appended = _appended(plan, span, read)
        observed_ms = self._observed_ms(span, read, rows, event_ms, appended)
        out_of_order = np.empty(0, np.bool_)
        if order is not None:
            out_of_order = self._judge(read, observed, order, plan.planned_at_ms + AHEAD_MS, replays)
        early = (event_ms < self.since_ms) & (event_ms >= UNSET_MS)
        blocks.counts.early += int(np.count_nonzero(early))
        ahead = event_ms > plan.planned_at_ms + AHEAD_MS
        too_old = (event_ms < oldest_ms(plan)) & ~early
        others = event_ms >= (math.inf if plan.ends_ms is None else plan.ends_ms)
        in_reach = ~(early | ahead | too_old | others)
        past = too_old & (replays.codes[rows] > 0) & (event_ms >= UNSET_MS)
        if past.any():  # a replay of what is too old to be evaluated may be of no other window
            _count_aside(TOO_OLD, rows[past], span, read, blocks)
        blocks.seen_in |= _windows_of(event_ms[in_reach])
        for reason, odd in (*observed.unreadable_rows.items(), (AHEAD, rows[ahead]), (TOO_OLD, rows[too_old & ~past])):
            if odd.size:
                _count_aside(reason, odd, span, read, blocks)
                blocks.aside.setdefault(reason, set()).update(self._windows_around(plan, read, odd, appended))
        if ahead.any():  # who looks at them later may find them in reach
            near = event_ms[ahead & (event_ms < plan.planned_at_ms + MAX_AHEAD_MS)]
            blocks.aside[AHEAD].update(_windows_of(near))
        not_read = in_reach & self._is_committed_ahead(read, rows, observed_ms)
        if not_read.any():
            _count_aside(COMMIT_AHEAD, rows[not_read], span, read, blocks)
            blocks.aside.setdefault(COMMIT_AHEAD, set()).update(_windows_of(event_ms[not_read]))
        readable = np.flatnonzero(in_reach & ~not_read)
        if not readable.size:
            return None
        if readable.size < rows.size:
            event_ms, rows, observed_ms = event_ms[readable], rows[readable], observed_ms[readable]
            ids = [ids[row] for row in readable.tolist()]
            out_of_order = out_of_order[readable] if order is not None else out_of_order
        columns = Observed(
            code=replays.codes[rows],
            id_hash=np.fromiter(map(xxhash.xxh3_64_intdigest, ids), np.uint64, len(ids)),
            event_ms=event_ms,
            lag_ms=observed_ms - event_ms,
            crc=np.zeros(rows.size, np.uint32),
            payload_bytes=read.records.value_sizes()[rows],
            raw_ids=ids if self.tap.first else [],
            traces=np.empty((0, CONTEXT_BYTES), np.uint8),
            out_of_order=out_of_order,
            supplied_ms=self._supplied_ms(plan, rows, observed_ms, appended),
        )
        return SpanBeacons(columns, replays.names)

    def _judge(
        self,
        read: SpanRecords,
        extracted: Extracted,
        order: PartitionOrder,
        newest_ms: float,
        replays: _Replays,
    ) -> npt.NDArray[np.bool_]:
        """Return which of the rows that were extracted are out of order; those without a key and those of replays are
        not judged."""
        offsets, is_live = read.offsets[extracted.rows], replays.codes[extracted.rows] == 0
        if self.tap.order == "partition":
            rows = np.flatnonzero(is_live)
            keys = np.zeros(rows.size, np.uint64)
        else:
            column = ByteColumn.of(read.records.keys)
            rows = np.flatnonzero(~column.is_null[extracted.rows] & is_live)
            hashes = (xxhash.xxh3_64_intdigest(column.at(row)) for row in extracted.rows[rows].tolist())
            keys = np.fromiter(hashes, np.uint64, rows.size)
        flags = np.zeros(extracted.rows.size, np.bool_)
        flags[rows] = order.take(KeyTimes(offsets[rows], keys, extracted.event_ms[rows]), newest_ms)
        return flags

    def _observed_ms(
        self,
        span: OffsetSpan,
        read: SpanRecords,
        rows: npt.NDArray[np.intp],
        event_ms: npt.NDArray[np.float64],
        appended: _Appended,
    ) -> npt.NDArray[np.float64]:
        """Return when these records were observed: when a commit passed them, or when they were appended.

        A producer's timestamp may be anything (the time of its input, another unit, a clock ahead): it counts as far as
        the looks before and after allow. Where none was before, nothing is appended before it has happened.
        """
        if self.tap.group is not None:
            commits, at_ms = (np.array(column, np.int64) for column in zip(*span.commits, strict=True))
            return at_ms[np.searchsorted(commits, read.offsets[rows], side="right")].astype(np.float64)
        since_ms, until_ms = appended.since_ms[rows], appended.until_ms[rows]
        lowest = np.where(np.isfinite(since_ms), since_ms, np.minimum(event_ms, until_ms))
        return np.clip(read.records.timestamp_ms[rows].astype(np.float64), lowest, until_ms)

    def _supplied_ms(
        self, plan: TapPlan, rows: npt.NDArray[np.intp], observed_ms: npt.NDArray[np.float64], appended: _Appended
    ) -> npt.NDArray[np.float64]:
        """Return by when these records were observed, for those of which a clock says so that lagloss does not measure:
        a producer's, or that of another cluster's brokers; empty if there are none."""
        if isinstance(self.tap, Tap) and self.tap.cluster:
            by_ms = np.full(rows.size, float(plan.planned_at_ms))
        elif self.tap.group is None:
            by_ms = appended.until_ms[rows]
        else:
            return np.empty(0, np.float64)
        is_supplied = by_ms - observed_ms > SAME_CLOCK_MS
        return np.where(is_supplied, by_ms, 0.0) if is_supplied.any() else np.empty(0, np.float64)

    def _is_committed_ahead(
        self, read: SpanRecords, rows: npt.NDArray[np.intp], committed_ms: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        """Return which records of a group were committed before they were there: by the brokers' clocks, or since the
        commit is older than the tap's first window. The group has not read them by that commit."""
        if self.tap.group is None:
            return np.zeros(rows.size, np.bool_)
        later = read.records.timestamp_ms[rows] > committed_ms + COMMIT_SLACK_MS
        ahead: npt.NDArray[np.bool_] = (read.is_append_time[rows] & later) | (committed_ms == STANDING_MS)
        return ahead

    def drop_aside(self, plan: TapPlan, blocks: Blocks) -> None:
        """Count the records of a span that make no beacons, by reason once in each window that they may be of, whose
        evidence is incomplete. What the records beside are of, one that cannot be read may be of, too: a backlog, say.
        """
        for reason, windows in blocks.aside.items():
            for window in windows if reason == COMMIT_AHEAD else windows | blocks.seen_in:
                self._drop(plan, window, 1, blocks)
        blocks.seen_in, blocks.aside = set(), {}

    def _windows_around(
        self, plan: TapPlan, read: SpanRecords, rows: npt.NDArray[np.intp], appended: _Appended
    ) -> set[int]:
        """Return the windows that records may be of which cannot be read: from the one before they were appended, since
        messages take their time, to that in which they had been; and those of their timestamps, where these can be."""
        oldest = max(self.since_ms, oldest_ms(plan))
        first = np.maximum(appended.since_ms[rows] - WINDOW_MS, oldest)
        bounds = np.unique(np.stack([first, appended.until_ms[rows]]) // WINDOW_MS, axis=1).astype(np.int64)
        windows = {window for since, until in bounds.T.tolist() for window in range(since, until + 1)}
        stamps = read.records.timestamp_ms[rows]
        stamps = stamps[(stamps >= oldest) & (stamps <= plan.planned_at_ms + AHEAD_MS)]
        windows.update(np.unique(np.concatenate([stamps, stamps - WINDOW_MS]) // WINDOW_MS).tolist())
        return {window * WINDOW_S for window in windows}

    def drop_gone(self, plan: TapPlan, gone: int, blocks: Blocks) -> None:
        """Count offsets that were deleted unread, or may have been, in every window that they may have been of."""
        if not gone:
            return
        blocks.counts.gone += gone
        first = window_start_of(max(plan.begins_ms - WINDOW_S * 1_000, self.since_ms, oldest_ms(plan)))
        windows = range(first, window_start_of(plan.planned_at_ms) + WINDOW_S, WINDOW_S)
        for index, window in enumerate(windows):
            share = gone // len(windows) + (index < gone % len(windows))
            self._drop(plan, window, max(1, share), blocks)

    def _drop(self, plan: TapPlan, window_start_s: int, beacons: int, blocks: Blocks) -> None:
        start_ms = window_start_s * 1_000
        if start_ms < self.since_ms or (plan.ends_ms is not None and start_ms >= plan.ends_ms):
            return
        for place in self.tap.places:
            blocks.dropped[TallyKey(place, None, window_start_s)] += beacons


def _count_aside(reason: str, rows: npt.NDArray[np.intp], span: OffsetSpan, read: SpanRecords, blocks: Blocks) -> None:
    """Count records that make no beacons."""
    newest = rows[-1]
    offset, at_ms = int(read.offsets[newest]), int(read.records.timestamp_ms[newest])
    blocks.counts.add_unreadable(reason, UnreadableRecords(int(rows.size), span.partition, offset, at_ms))


class _Replays(NamedTuple):
    """Replays of records: names, the first None for live traffic, and by record the position of its own."""

    names: tuple[str | None, ...]
    codes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, read: SpanRecords) -> _Replays:
        """Return those that the records' headers name; the name of a replay that no block can carry is the SDK's."""
        codes = np.zeros(read.offsets.size, np.int64)
        position_of: dict[str | None, int] = {None: 0}
        for row, value in read.records.with_header(REPLAY_HEADER).items():
            codes[row] = position_of.setdefault(replay_in(value), len(position_of))
        return cls(tuple(position_of), codes)


@dataclass(frozen=True, slots=True)
class _Appended:
    """Bounds of when records were appended (epoch ms), of shape (records,): after `since_ms` (-inf: unknown), and by
    `until_ms`."""

    since_ms: npt.NDArray[np.float64]
    until_ms: npt.NDArray[np.float64]


def _appended(plan: TapPlan, span: OffsetSpan, read: SpanRecords) -> _Appended:
    """Return when records were appended, by the broker's clock where it says so, else by looks at the topic."""
    ends = np.array(span.ends, np.float64).reshape(-1, 3)
    # Marks of several looks and readers: of those at or below a record the newest bounds it, of those above the oldest.
    not_there = np.maximum.accumulate(np.concatenate([[-np.inf], ends[:, 1]]))
    appended_ms = np.minimum.accumulate(np.concatenate([ends[:, 2], [plan.planned_at_ms]])[::-1])[::-1]
    following = np.searchsorted(ends[:, 0], read.offsets, side="right")
    stamps = read.records.timestamp_ms.astype(np.float64)
    return _Appended(
        np.where(read.is_append_time, stamps, not_there[following]),
        np.where(read.is_append_time, stamps, appended_ms[following]),
    )


def _windows_of(event_ms: npt.NDArray[np.float64]) -> set[int]:
    """Return the starts (epoch s) of the windows that these times are in."""
    return {int(window) * WINDOW_S for window in np.unique(event_ms // WINDOW_MS)}

"""Collecting: the columns of a window's blocks, each block once, until they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aggregator.kernel.plan import WindowPlan
from aggregator.kernel.scanner import Headers
from lagloss.wire.format import F32, SAMPLE_ALL, U32, U64, BadReason, BeaconBlock, partition_of
from lagloss.wire.positions import read_positions
from lagloss_server.judging.facts import Account
from lagloss_server.model.graph import node_of
from lagloss_server.packing.compiled import U8, compiled

I32 = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
EMITTER = np.dtype("V16")  # not S16: of bytes numpy drops zeros at the end, with which a UUID can end


class Growing:
    """An array that grows at its end, doubling its room."""

    __slots__ = ("_room", "size")

    def __init__(self, kind: Any) -> None:
        self._room = np.empty(256, kind)
        self.size = 0

    def more(self, count: int) -> npt.NDArray[Any]:
        """Return room for more values, to be filled in."""
        start, self.size = self.size, self.size + count
        if self.size > self._room.size:
            wider = np.empty(max(self.size, 2 * self._room.size), self._room.dtype)
            wider[:start] = self._room[:start]
            self._room = wider
        return self._room[start : self.size]

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._room[: self.size]


class Column:
    """The beacons of one checkpoint, in the order they were found.

    `offsets`: event_time - window_start in ms, -1 where a block does not say, kept only if `with_offsets`; `starts` and
    `emitters`: where each block begins, and whose it is; `names`: where each block with message ids begins, and these;
    `traces`: the like, kept as `offsets` are; `reasons`: likewise of blocks with a reason; `checksums`: the ids and
    checksums of blocks that carry them; `out_of_order`: positions of the beacons that are; `supplied`: where each block
    with supplied times begins, and by when they were.
    """

    def __init__(self, *, with_offsets: bool) -> None:
        self._ids, self._lags, self._offsets = Growing(np.uint64), Growing(np.float32), Growing(np.int32)
        self._starts, self._emitters = Growing(np.int64), Growing(EMITTER)
        self._with_offsets = with_offsets
        self.names: list[tuple[int, int, bytes]] = []
        self.traces: list[tuple[int, int, bytes]] = []
        self.reasons: list[tuple[int, int, str]] = []
        self.checksums: list[tuple[U64, U32]] = []
        self.out_of_order: list[Places] = []
        self.supplied: list[tuple[int, int, int]] = []
        self._looked_at = 0

    @property
    def ids(self) -> U64:
        return self._ids.values

    @property
    def lags(self) -> F32:
        return self._lags.values

    @property
    def offsets(self) -> I32:
        return self._offsets.values

    @property
    def starts(self) -> Places:
        return self._starts.values

    @property
    def emitters(self) -> npt.NDArray[np.void]:
        return self._emitters.values

    def add(self, block: BeaconBlock) -> None:
        start = self._ids.size
        self._starts.more(1)[:] = start
        self._emitters.more(1)[:] = np.frombuffer(block.emitter, EMITTER)
        self._ids.more(block.count)[:] = block.id_hash
        self._lags.more(block.count)[:] = block.lag_ms
        if self._with_offsets:
            self._offsets.more(block.count)[:] = -1 if block.event_offset_ms is None else block.event_offset_ms
        if block.message_ids is not None:
            self.names.append((start, block.count, block.message_ids))
        if block.traces is not None and self._with_offsets:
            self.traces.append((start, block.count, block.traces))
        if block.reason is not None:
            self.reasons.append((start, block.count, block.reason))
        if block.payload_crc is not None:
            self.checksums.append((block.id_hash, block.payload_crc))
        if block.out_of_order is not None:
            self.out_of_order.append(start + read_positions(block.out_of_order))
        if block.supplied_at is not None:
            self.supplied.append((start, block.count, block.supplied_at))

    def add_rows(self, headers: Headers, rows: Places, emitters: npt.NDArray[np.void]) -> None:
        data, fields = headers.data, headers.of(rows)
        counts = fields["count"]
        total, size = int(counts.sum()), self._ids.size
        _gather(data, fields["ids"], counts * 8, self._ids.more(total).view(np.uint8))
        _gather(data, fields["lags"], counts * 4, self._lags.more(total).view(np.uint8))
        if self._with_offsets:
            _gather_offsets(data, fields["offsets"], counts, self._offsets.more(total))
        starts = np.cumsum(counts) - counts
        self._starts.more(rows.size)[:] = size + starts
        self._emitters.more(rows.size)[:] = emitters
        if headers.extras[rows].any():
            self._add_extras(data, fields, size + starts)

    def _add_extras(self, data: U8, places_by_name: Mapping[str, Places], starts: Places) -> None:
        """Take in what some blocks have beside ids, lags and offsets; `starts`: where their beacons begin."""
        counts = places_by_name["count"]
        for row in np.flatnonzero(places_by_name["names"] >= 0).tolist():
            first, size = int(places_by_name["names"][row]), int(places_by_name["names_size"][row])
            self.names.append((int(starts[row]), int(counts[row]), data[first : first + size].tobytes()))
        for row in np.flatnonzero(places_by_name["traces"] >= 0).tolist() if self._with_offsets else ():
            first, size = int(places_by_name["traces"][row]), int(places_by_name["traces_size"][row])
            self.traces.append((int(starts[row]), int(counts[row]), data[first : first + size].tobytes()))
        for row in np.flatnonzero(places_by_name["reason"] >= 0).tolist():
            first, size = int(places_by_name["reason"][row]), int(places_by_name["reason_size"][row])
            reason = data[first : first + size].tobytes().decode()
            self.reasons.append((int(starts[row]), int(counts[row]), reason))
        for row in np.flatnonzero(places_by_name["crcs"] >= 0).tolist():
            start, count = int(starts[row]), int(counts[row])
            first = int(places_by_name["crcs"][row])
            crcs = np.frombuffer(data[first : first + 4 * count].tobytes(), "<u4")
            # a copy: a view would keep the whole array alive once that has grown
            self.checksums.append((self.ids[start : start + count].copy(), crcs))
        for row in np.flatnonzero(places_by_name["out_of_order"] >= 0).tolist():
            first, size = int(places_by_name["out_of_order"][row]), int(places_by_name["out_of_order_size"][row])
            self.out_of_order.append(int(starts[row]) + read_positions(data[first : first + size].tobytes()))
        for row in np.flatnonzero(places_by_name["supplied_at"] >= 0).tolist():
            self.supplied.append((int(starts[row]), int(counts[row]), int(places_by_name["supplied_at"][row])))

    def ends_since(self) -> tuple[int, int] | None:
        """Return the smallest and the largest id since the last call."""
        fresh, self._looked_at = self.ids[self._looked_at :], self._ids.size
        return (int(fresh.min()), int(fresh.max())) if fresh.size else None


@dataclass
class BlockColumns:
    """The blocks of one window that were found so far, each (emitter, seq) once. `strangers` counts beacons of
    checkpoints that only other versions of the definition have, `bad` bad records under the window's key; `ended`
    counts partitions."""

    plan: WindowPlan
    live: dict[str, Column] = field(default_factory=dict)
    replayed: dict[str, Column] = field(default_factory=dict)
    read: Counter[Account] = field(default_factory=Counter)
    strangers: Counter[str] = field(default_factory=Counter)
    bad: Counter[BadReason] = field(default_factory=Counter)
    quarantined: set[str] = field(default_factory=set)
    partitions: set[int] = field(default_factory=set)
    sample: int = SAMPLE_ALL
    scattered: bool = False
    ended: int = 0
    _seen: set[tuple[bytes, int]] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Number of beacons."""
        return sum(self.read.values())

    @property
    def share(self) -> float:
        """Share of the window's messages that the partitions so far hold, or somewhat more."""
        return min(1.0, self.ended / max(self.partitions, default=1))

    def add(self, block: BeaconBlock) -> None:
        """Take a block in, unless it was there before (a block sent twice is one block)."""
        if not self._is_new(block.emitter, block.seq):
            return
        if block.checkpoint not in self.plan.graph.bit:
            self.strangers[block.checkpoint] += block.count
            self.mark_bad(block.checkpoint)
            return
        self._column(self.live if block.replay is None else self.replayed, block.checkpoint).add(block)
        self.read[block.emitter, block.checkpoint, block.replay] += block.count
        self.partitions.add(block.partitions)
        self.sample = min(self.sample, block.sample)

    def add_rows(self, checkpoint: str, headers: Headers, rows: Sequence[int]) -> None:
        """Take these rows of a scanned batch in: live blocks of one checkpoint of the graph."""
        fields = headers.of(rows)
        emitters = headers.data[fields["emitter"][:, np.newaxis] + np.arange(16)].view(EMITTER).ravel()
        named, seqs = emitters.tolist(), fields["seq"].tolist()
        fresh = [index for index, key in enumerate(zip(named, seqs, strict=True)) if self._is_new(*key)]
        if not fresh:
            return
        taken = np.asarray(rows)[fresh]
        self._column(self.live, checkpoint).add_rows(headers, taken, emitters[fresh])
        for row, count in zip(fresh, fields["count"][fresh].tolist(), strict=True):
            self.read[named[row], checkpoint, None] += count
        self.partitions.update(fields["partitions"][fresh].tolist())
        self.sample = min(self.sample, int(fields["sample"][fresh].min()))

    def mark_bad(self, checkpoint: str) -> None:
        """Note that a block of this checkpoint cannot be counted: its node's evidence is incomplete (rule 7)."""
        if node_of(checkpoint) in self.plan.graph.nodes:
            self.quarantined.add(node_of(checkpoint))

    def end_partition(self, partition: int) -> None:
        """Check, after all blocks of a partition, whether any holds ids that belong to another one. The partition grows
        with the id, so the smallest and the largest decide for all. A block is never sent to two partitions; the pieces
        of one that was scattered are."""
        self._seen.clear()
        self.ended += 1
        ends = [column.ends_since() for columns in (self.live, self.replayed) for column in columns.values()]
        for made_for in self.partitions:
            if any(partition_of(end, made_for) != partition for pair in ends if pair for end in pair):
                self.scattered = True

    def _column(self, columns: dict[str, Column], checkpoint: str) -> Column:
        if checkpoint not in columns:
            columns[checkpoint] = Column(with_offsets=checkpoint in self.plan.graph.entrances)
        return columns[checkpoint]

    def _is_new(self, emitter: bytes, seq: int) -> bool:
        key = (emitter, seq)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


@compiled
def _gather(data: U8, starts: Places, sizes: Places, out: U8) -> None:
    """Return the bytes of these places, one after another."""
    position = 0
    for place in range(starts.size):
        size = sizes[place]
        out[position : position + size] = data[starts[place] : starts[place] + size]
        position += size


@compiled
def _gather_offsets(data: U8, starts: Places, counts: Places, out: I32) -> None:
    """Return the uint16 at these places, -1 for all of a block without them (a start of -1)."""
    position = 0
    for place in range(starts.size):
        start = starts[place]
        for step in range(counts[place]):
            out[position] = (
                -1 if start < 0 else np.int32(data[start + 2 * step]) | np.int32(data[start + 2 * step + 1]) << 8
            )
            position += 1

"""The trail of one message: every beacon of it that the log holds, found by its id alone.

All beacons of an id lie in one partition (docs/scaling.md), so a search reads an eighth of the log or less: that
partition's ranges, as the tallies name them, newest windows first. Where the topic was widened, blocks were made for
fewer partitions, and an id lies elsewhere in each: then every partition it may lie in is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NotRequired, TypedDict

import numpy as np
from sqlalchemy import func, select

from lagloss.wire.format import WINDOW_S, BeaconBlock, OffsetRange, block_key, partition_of, unpack_ids, unpack_ranges
from lagloss.wire.positions import read_positions
from lagloss.wire.traces import TraceContext, find_traces
from lagloss_server.base.trace_links import NO_LINKS, TraceDocument, TraceLinks
from lagloss_server.model.graph import node_of
from lagloss_server.model.message_ids import readable_id, unescape_id
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.named_ranges import believed
from lagloss_server.queries.offset_ranges import Watermarks, clamp, merge_ranges
from lagloss_server.queries.window_blocks import good_block, good_blocks, window_ranges
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

_BATCH_BEACONS: Final = 2_000_000
"""Beacons, as tallies count them, of windows that are searched in one step: about a second."""
_BATCH_WINDOWS: Final = 60


@dataclass(frozen=True, slots=True)
class SearchLimit:
    """Cost limits of a search, at which it returns its answer so far."""

    seconds: float = 30
    beacons: int = 200_000_000


class BeaconDocument(TypedDict):
    """`payload_crc`: the checksum of the payload, if it has one; `out_of_order`: if it was."""

    checkpoint: str
    lag_ms: float
    emitter: str
    host: str | None
    replay: str | None
    reason: str | None
    payload_crc: int | None
    node: str
    observed_at: str
    out_of_order: NotRequired[bool]


class TrailDocument(TraceDocument):
    """A message's beacons by time. `event_time`: null if no source's `in` has it."""

    id_hash: str
    message_id: str | None
    window_start: str
    event_time: str | None
    beacons: list[BeaconDocument]


LookedThrough = TypedDict("LookedThrough", {"from": str | None, "to": str | None})
"""The bounds of the windows that a search has looked through; null if it has none."""


class SearchDocument(TypedDict):
    """`oldest`: the start of the oldest window that the log's tallies know; `cut`: whether the limit ended the search
    before it had seen all."""

    trail: TrailDocument | None
    looked_through: LookedThrough
    oldest: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class Beacon:
    """One beacon of a message. Times are epoch ms on its emitter's clock; `emitter` in hex, `host` None where its
    report is not known any more."""

    checkpoint: str
    observed_ms: float
    lag_ms: float
    emitter: str
    host: str | None = None
    replay: str | None = None
    reason: str | None = None
    payload_crc: int | None = None
    is_out_of_order: bool = False

    @property
    def node(self) -> str:
        return node_of(self.checkpoint)

    def document(self) -> BeaconDocument:
        document: BeaconDocument = {
            "checkpoint": self.checkpoint,
            "lag_ms": self.lag_ms,
            "emitter": self.emitter,
            "host": self.host,
            "replay": self.replay,
            "reason": self.reason,
            "payload_crc": self.payload_crc,
            "node": self.node,
            "observed_at": rfc3339(round(self.observed_ms) / 1000),
        }
        if self.is_out_of_order:
            document["out_of_order"] = True
        return document


@dataclass(frozen=True, slots=True)
class Trail:
    """A message's beacons by time, and how much of the log was looked through for them.

    `event_ms`: epoch ms; None where no source's `in` has it, and the window's end stands in (rule 4).
    `trace`: in which it came in, where that is known.
    """

    id_hash: int
    message_id: str | None
    window_start_s: int
    event_ms: int | None
    beacons: tuple[Beacon, ...]
    trace: TraceContext | None = None

    @property
    def last_seen_ms(self) -> float:
        return max(beacon.observed_ms for beacon in self.beacons)

    def document(self, links: TraceLinks = NO_LINKS) -> TrailDocument:
        return {
            "id_hash": f"{self.id_hash:016x}",
            "message_id": None if self.message_id is None else unescape_id(self.message_id),
            "window_start": rfc3339(self.window_start_s),
            "event_time": None if self.event_ms is None else rfc3339(self.event_ms / 1000),
            **links.document(self.trace, self.window_start_s),
            "beacons": [beacon.document() for beacon in self.beacons],
        }


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search. Windows with from_s <= start < to_s were looked through, None if none were; the log's
    tallies reach back to `oldest_s`. `is_cut`: the limit ended it before it had seen all."""

    trail: Trail | None
    from_s: int | None
    to_s: int | None
    oldest_s: int | None
    is_cut: bool = False

    def document(self, links: TraceLinks = NO_LINKS) -> SearchDocument:
        from_, to, oldest = (
            None if start_s is None else rfc3339(start_s) for start_s in (self.from_s, self.to_s, self.oldest_s)
        )
        return {
            "trail": None if self.trail is None else self.trail.document(links),
            "looked_through": {"from": from_, "to": to},
            "oldest": oldest,
            "cut": self.is_cut,
        }


def search(
    store: Store,
    log: BeaconLog,
    pipeline: str,
    ids: Sequence[int],
    *,
    around_s: float | None = None,
    before_s: float | None = None,
    after_s: float | None = None,
    limit: SearchLimit | None = None,
) -> Search:
    """Look for the newest window with a beacon of any of these ids (hashes), or the one nearest to `around_s`; only
    windows that start before `before_s`, and not before `after_s`. Then read all that the log holds of it there.

    Blocks of an emitter that died before it reported them are found in a window that another beacon leads to.

    Raises:
        KafkaException: the broker does not answer.
    """
    limit = limit or SearchLimit()
    watermarks, begun = log.watermarks(), time.monotonic()
    tallied = _tallied_windows(store, pipeline)
    oldest_s = min(tallied, default=None)
    first_s, end_s = (-math.inf if after_s is None else after_s), (math.inf if before_s is None else before_s)
    starts = [start for start in tallied if first_s <= start < end_s]
    starts.sort(key=lambda start: -start if around_s is None else abs(start + WINDOW_S // 2 - around_s))
    partitions = _partitions_of(ids, _partition_counts(store, log, pipeline, oldest_s, watermarks))
    offsets_seen: list[int] = []
    read = 0
    for batch, beacons in _batches(starts, tallied):
        read += beacons
        if offsets_seen and (time.monotonic() - begun > limit.seconds or read > limit.beacons):
            return Search(None, min(offsets_seen), max(offsets_seen) + WINDOW_S, oldest_s, is_cut=True)
        ranges = clamp(_ranges_of(store, log, pipeline, batch, partitions), watermarks)
        hit = _best_hit(log, ranges, pipeline, ids, batch)
        offsets_seen += batch
        if hit is not None:
            trail = read_trail(store, log, pipeline, hit[0], hit[1], partitions)
            return Search(trail, min(offsets_seen), max(offsets_seen) + WINDOW_S, oldest_s)
    return Search(
        None, min(offsets_seen, default=None), max(offsets_seen) + WINDOW_S if offsets_seen else None, oldest_s
    )


def read_trail(
    store: Store,
    log: BeaconLog,
    pipeline: str,
    window_start_s: int,
    id_hash: int,
    partitions: frozenset[int] | None = None,
) -> Trail | None:
    """Return all beacons of a message in a window that is known to hold it; None if the log has none. `partitions`:
    those it may lie in, if that is known.

    Raises:
        NotEnoughData, KafkaException: as `lagloss_server.queries.window_blocks.read_window`.
    """
    ranges, _ = window_ranges(store, log, pipeline, window_start_s)
    if partitions is None:
        watermarks = log.watermarks()
        partitions = _partitions_of([id_hash], _partition_counts(store, log, pipeline, window_start_s, watermarks))
    ranges = [item for item in ranges if item.partition in partitions]
    hits = [
        (block, row)
        for block in good_blocks(log, ranges, pipeline, window_start_s)
        for row in np.flatnonzero(block.id_hash == np.uint64(id_hash)).tolist()
    ]
    if not hits:
        return None
    event_ms, name = _named(hits)
    since_ms = event_ms if event_ms is not None else (window_start_s + WINDOW_S) * 1000
    hosts = _hosts(store, pipeline)
    beacons = (_beacon(block, row, since_ms, hosts) for block, row in hits)
    in_order = tuple(sorted(beacons, key=lambda beacon: (beacon.observed_ms, beacon.checkpoint)))
    return Trail(id_hash, name, window_start_s, event_ms, in_order, _trace(hits))


def _beacon(block: BeaconBlock, row: int, since_ms: int, hosts: Mapping[bytes, str]) -> Beacon:
    lag_ms = float(block.lag_ms[row])
    return Beacon(
        block.checkpoint,
        since_ms + lag_ms,
        round(lag_ms, 3),
        block.emitter.hex(),
        hosts.get(block.emitter),
        block.replay,
        block.reason,
        None if block.payload_crc is None else int(block.payload_crc[row]),
        block.out_of_order is not None and row in read_positions(block.out_of_order),
    )


def _named(hits: Iterable[tuple[BeaconBlock, int]]) -> tuple[int | None, str | None]:
    """Event time (epoch ms) and name, from the beacons of the sources' `in`."""
    event_ms, name = None, None
    for block, row in hits:
        if block.event_offset_ms is not None:
            event_ms = block.window_start * 1000 + int(block.event_offset_ms[row])
        if block.message_ids is not None:
            name = readable_id(unpack_ids(block.message_ids, [row])[0])
    return event_ms, name


def _trace(hits: Iterable[tuple[BeaconBlock, int]]) -> TraceContext | None:
    """Return the trace in which a message came in first, from the beacons of the sources' `in`."""
    traces = [
        (float(block.lag_ms[row]), trace)
        for block, row in hits
        if block.traces is not None
        for trace in find_traces(block.traces, np.array([row])).values()
    ]
    return min(traces)[1] if traces else None


def _best_hit(
    log: BeaconLog, ranges: Sequence[OffsetRange], pipeline: str, ids: Sequence[int], windows: Sequence[int]
) -> tuple[int, int] | None:
    """(window, id) of the first of these windows that has one of the ids: an id may be used again, and the log is in
    an order of its own."""
    rank = {block_key(pipeline, start): place for place, start in enumerate(windows)}
    hashes = np.array(ids, np.uint64)
    best, best_hit = len(windows), None
    for record in log.records(ranges):
        if record.key is None or rank.get(record.key, best) >= best:
            continue
        block = good_block(record, pipeline)
        if block is not None and (hits := block.id_hash[np.isin(block.id_hash, hashes)]).size:
            best, best_hit = rank[record.key], (block.window_start, int(hits[0]))
        if best == 0:
            break
    return best_hit


def _batches(starts: Sequence[int], beacons: Mapping[int, int]) -> Iterator[tuple[list[int], int]]:
    """Return the windows in their order, so many at a time as are read in a second or so, and how many beacons that
    are."""
    batch: list[int] = []
    size = 0
    for start in starts:
        if batch and (len(batch) == _BATCH_WINDOWS or size + beacons[start] > _BATCH_BEACONS):
            yield batch, size
            batch, size = [], 0
        batch.append(start)
        size += beacons[start]
    if batch:
        yield batch, size


def _tallied_windows(store: Store, pipeline: str) -> dict[int, int]:
    """Return the windows that the log may hold blocks of, and how many beacons they have."""
    tally = tables.TallyRow
    with store.engine.connect() as connection:
        rows = connection.execute(
            select(tally.window_start, func.sum(tally.beacons))
            .where(tally.pipeline == pipeline)
            .group_by(tally.window_start)
        )
        return {start: int(beacons) for start, beacons in rows}


def _ranges_of(
    store: Store,
    log: BeaconLog,
    pipeline: str,
    starts: Sequence[int],
    partitions: frozenset[int] | None = None,
) -> list[OffsetRange]:
    tally = tables.TallyRow
    named: dict[int, list[tuple[list[OffsetRange], int]]] = {}
    with store.engine.connect() as connection:
        rows = connection.execute(
            select(tally.window_start, tally.ranges, tally.beacons).where(
                tally.pipeline == pipeline,
                tally.window_start.between(min(starts), max(starts)),
                tally.window_start.in_(starts),
            )
        )
        for start, ranges, beacons in rows:
            places = [
                offset_range
                for offset_range in unpack_ranges(ranges)
                if partitions is None or offset_range.partition in partitions
            ]
            named.setdefault(start, []).append((places, beacons))
    return merge_ranges(place for start, of_it in named.items() for place in believed(log, pipeline, start, of_it))


def _partition_counts(
    store: Store, log: BeaconLog, pipeline: str, oldest_s: int | None, watermarks: Mapping[int, Watermarks]
) -> range:
    """Return how many partitions blocks of this window and later ones may be made for. Their number only grows, so it
    is at least what the first blocks of the oldest window say."""
    if oldest_s is None:
        return range(len(watermarks), len(watermarks) + 1)
    first: dict[int, OffsetRange] = {}
    for item in clamp(_ranges_of(store, log, pipeline, [oldest_s]), watermarks):
        first.setdefault(item.partition, replace(item, last=item.first))
    blocks = (good_block(record, pipeline) for record in log.records(list(first.values())))
    least = min((block.partitions for block in blocks if block is not None), default=len(watermarks))
    return range(min(least, len(watermarks)), len(watermarks) + 1)


def _partitions_of(ids: Iterable[int], counts: range) -> frozenset[int]:
    return frozenset(partition_of(id_hash, count) for id_hash in ids for count in counts)


def _hosts(store: Store, pipeline: str) -> dict[bytes, str]:
    emitter = tables.EmitterRow
    with store.engine.connect() as connection:
        rows = connection.execute(select(emitter.emitter, emitter.host).where(emitter.pipeline == pipeline))
        return {row.emitter: row.host for row in rows}

"""The blocks of one window, read straight from the log: what `lagloss diff` and `lagloss matrix` look into.

They are those that a closing counts: in the ranges that tallies name and around the last reports of emitters that died,
with or without a tally, good ones only, at the lowest sample of the window. See docs/closing.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lagloss.wire.checks import check_block
from lagloss.wire.format import SAMPLE_ALL, U64, BadRecord, BeaconBlock, OffsetRange, block_key, id_starts
from lagloss.wire.traces import TraceContext, TraceRows, read_traces
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.model.graph import Graph
from lagloss_server.model.message_ids import readable_id
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog, LogRecord
from lagloss_server.queries.emitters import last_words, read_emitters
from lagloss_server.queries.named_ranges import believed
from lagloss_server.queries.offset_ranges import clamp, merge_ranges, records_in
from lagloss_server.store.store import Store


@dataclass(frozen=True)
class WindowBlocks:
    """The good blocks of one window by checkpoint, each once; of their beacons those count that the window's `sample`
    takes."""

    graph: Graph
    window_start_s: int
    blocks: Mapping[str, Sequence[BeaconBlock]]
    sample: int

    @property
    def count(self) -> int:
        """Number of beacons."""
        return sum(block.count for blocks in self.blocks.values() for block in blocks)

    def beacons(self, checkpoint: str) -> Iterator[tuple[BeaconBlock, npt.NDArray[np.intp]]]:
        """Return the blocks of a checkpoint, each with the positions of the beacons that the sample takes."""
        for block in self.blocks.get(checkpoint, ()):
            taken = (block.id_hash & np.uint64(SAMPLE_ALL - 1)) < np.uint64(self.sample)
            yield block, np.flatnonzero(taken)

    def ids(self, checkpoint: str) -> U64:
        """Return the distinct id hashes at a checkpoint, ascending."""
        parts = [block.id_hash[rows] for block, rows in self.beacons(checkpoint)]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))

    def names(self, ids: U64) -> list[str]:
        """Return the names of these ids, from the blocks of the sources' `in`; a hash in hex where none has it."""
        hashes, places = self._named
        if not hashes.size:
            return [f"{id_hash:016x}" for id_hash in ids.tolist()]
        indexes = np.minimum(np.searchsorted(hashes, ids), hashes.size - 1)
        rows = zip(ids.tolist(), (hashes[indexes] == ids).tolist(), places[indexes].tolist(), strict=True)
        return [self._name(place) if is_named else f"{id_hash:016x}" for id_hash, is_named, place in rows]

    def traces(self, ids: U64) -> dict[int, TraceContext]:
        """Return the traces of these ids, as far as they are known, from the blocks of the sources' `in`: of a message
        that came in several times, the one in which it came in first."""
        hashes, places = self._traced
        with_traces = ids[np.isin(ids, hashes)] if hashes.size else hashes
        where = places[np.searchsorted(hashes, with_traces)].tolist()
        return {
            id_hash: TraceContext.of(self._tracing[place >> 32][place & 0xFFFF_FFFF]["context"].tobytes())
            for id_hash, place in zip(with_traces.tolist(), where, strict=True)
        }

    def _name(self, place: int) -> str:
        block, start = place >> 32, place & 0xFFFF_FFFF
        packed = self._naming[block]
        return readable_id(packed[start + 1 : start + 1 + packed[start]])

    @cached_property
    def _naming(self) -> list[bytes]:
        """The packed ids of the blocks that have some."""
        return [block.message_ids for block in self._first_blocks if block.message_ids is not None]

    @property
    def _first_blocks(self) -> list[BeaconBlock]:
        """The blocks of the sources' `in`, which tell names, event times and traces."""
        return [block for name in self.graph.entrances for block in self.blocks.get(name, ())]

    @cached_property
    def _named(self) -> tuple[U64, npt.NDArray[np.int64]]:
        """The ids that have names, ascending, and where each name is: the number of its block in the upper half, in the
        lower half its start there. Names are made when they are asked for: they would need much more memory."""
        blocks = [block for block in self._first_blocks if block.message_ids is not None]
        starts = [id_starts(packed) + (index << 32) for index, packed in enumerate(self._naming)]
        ids = np.concatenate([np.empty(0, np.uint64), *(block.id_hash for block in blocks)])
        hashes, first = np.unique(ids, return_index=True)
        return hashes, np.concatenate([np.empty(0, np.int64), *starts])[first]

    @cached_property
    def _tracing(self) -> list[TraceRows]:
        """The traces of the blocks that have some."""
        return [read_traces(block.traces) for block in self._traced_blocks]

    @cached_property
    def _traced(self) -> tuple[U64, npt.NDArray[np.int64]]:
        """The ids that have traces, ascending, and where each one's trace is, as `_named` has it for names."""
        blocks = self._traced_blocks
        ids = [block.id_hash[rows["position"]] for block, rows in zip(blocks, self._tracing, strict=True)]
        lags = [block.lag_ms[rows["position"]] for block, rows in zip(blocks, self._tracing, strict=True)]
        places = [np.arange(rows.size, dtype=np.int64) + (index << 32) for index, rows in enumerate(self._tracing)]
        by_lag = np.argsort(np.concatenate([np.empty(0, np.float32), *lags]), kind="stable")
        hashes, first = np.unique(np.concatenate([np.empty(0, np.uint64), *ids])[by_lag], return_index=True)
        return hashes, np.concatenate([np.empty(0, np.int64), *places])[by_lag][first]

    @property
    def _traced_blocks(self) -> list[BeaconBlock]:
        return [block for block in self._first_blocks if block.traces]


def read_window(
    store: Store, log: BeaconLog, pipeline: str, window_start_s: int, now_ms: int | None = None
) -> WindowBlocks:
    """Read the blocks of one window; silence is judged as of `now_ms` (by default, now).

    Raises:
        NotEnoughData: no tally of the window is left, it is sealed, or the log no longer holds its blocks.
        KafkaException: the broker does not answer.
    """
    graph = store.graph_at(pipeline, window_start_s)
    ranges, sample = window_ranges(store, log, pipeline, window_start_s, now_ms)
    blocks: dict[str, list[BeaconBlock]] = {}
    for block in good_blocks(log, ranges, pipeline, window_start_s):
        if block.checkpoint in graph.bit:
            blocks.setdefault(block.checkpoint, []).append(block)
            sample = min(sample, block.sample)
    return WindowBlocks(graph, window_start_s, blocks, sample)


def window_ranges(
    store: Store, log: BeaconLog, pipeline: str, window_start_s: int, now_ms: int | None = None
) -> tuple[list[OffsetRange], int]:
    """Return where the blocks of a window lie, merged and held by the broker, and the lowest sample that its tallies
    speak of.

    Raises:
        NotEnoughData, KafkaException: as `read_window`.
    """
    named, sample = store.tallied(pipeline, window_start_s)
    if not any(ranges for ranges, _ in named):
        raise NotEnoughData(detail=f"{pipeline} has no tallies for window {rfc3339(window_start_s)}.")
    watermarks = log.watermarks()
    ranges = merge_ranges(believed(log, pipeline, window_start_s, named))
    if store.is_sealed(pipeline, window_start_s) or records_in(clamp(ranges, watermarks)) < records_in(ranges):
        raise NotEnoughData(detail=f"some blocks of window {rfc3339(window_start_s)} are no longer in the log.")
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    with store.engine.connect() as connection:
        emitters = read_emitters(connection, [pipeline], now_ms)[pipeline]
    silent = [state for state in emitters if state.is_silent_in(window_start_s, now_ms)]
    return clamp(merge_ranges([*ranges, *last_words(log.offsets_at, silent, watermarks)]), watermarks), sample


def good_blocks(
    log: BeaconLog, ranges: Sequence[OffsetRange], pipeline: str, window_start_s: int
) -> Iterator[BeaconBlock]:
    """Yield the good blocks of a window, each once, however often it was sent; closing counts the bad ones."""
    key, blocks = block_key(pipeline, window_start_s), set[tuple[bytes, int]]()
    for record in log.records(ranges):
        block = good_block(record, pipeline) if record.key == key else None
        if block is not None and (block.emitter, block.seq) not in blocks:
            blocks.add((block.emitter, block.seq))
            yield block


def good_block(record: LogRecord, pipeline: str) -> BeaconBlock | None:
    """Return the block of a record; None if it is none of this pipeline that closing would count."""
    try:
        return check_block(record.key, record.value, record.appended_ms, {pipeline})
    except BadRecord:
        return None

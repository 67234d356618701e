"""The set difference between two checkpoints of a window, read from the log: ids(from) without ids(to), by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lagloss.beacon_log import BeaconLog
from lagloss.errors import NotEnoughData, UnknownCheckpoint
from lagloss.ranges import clamp, merge_ranges
from lagloss.result import rfc3339
from lagloss.store import Store
from lagloss.wire import U64, BadRecord, BeaconBlock, block_key, decode_block, unpack_ids

MAX_NAMES = 1_000


@dataclass(frozen=True)
class Difference:
    """Ids at `source` and not at `target` in one window. `message_ids` holds at most 1,000 names, in order; a hash in
    hex where the name is not known."""

    source: str
    target: str
    window_start_s: int
    count: int
    message_ids: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        found = {
            "from": self.source,
            "to": self.target,
            "window_start": rfc3339(self.window_start_s),
            "count": self.count,
            "message_ids": list(self.message_ids),
        }
        return {**found, "truncated": True} if self.count > len(self.message_ids) else found


def difference(
    store: Store, log: BeaconLog, pipeline: str, window_start_s: int, source: str, target: str
) -> Difference:
    """Read what the difference needs of one window's blocks.

    Raises:
        UnknownCheckpoint: the pipeline has no such checkpoint.
        NotEnoughData: no tally of the window is left, or the log no longer holds its blocks.
        KafkaException: the broker does not answer.
    """
    graph = store.graph_at(pipeline, window_start_s)
    for name in (source, target):
        if name not in graph.bit:
            raise UnknownCheckpoint(pipeline=pipeline, checkpoint=name, known=", ".join(graph.checkpoints))
    ranges = merge_ranges(store.ranges(pipeline, window_start_s, {source, target, graph.first}))
    if not ranges and not store.ranges(pipeline, window_start_s, graph.checkpoints):
        raise NotEnoughData(detail=f"no tally of {pipeline} tells of the window {rfc3339(window_start_s)}.")
    held = clamp(ranges, log.watermarks())
    if sum(item.last - item.first for item in held) < sum(item.last - item.first for item in ranges):
        raise NotEnoughData(detail=f"the log no longer holds all blocks of the window {rfc3339(window_start_s)}.")
    blocks = _blocks(log, held, block_key(pipeline, window_start_s))
    ids = np.setdiff1d(_ids(blocks, source), _ids(blocks, target))
    names = _names(blocks.get(graph.first, []), ids[:MAX_NAMES])
    return Difference(source, target, window_start_s, int(ids.size), tuple(sorted(names)))


def _blocks(log: BeaconLog, ranges: Any, key: bytes) -> dict[str, list[BeaconBlock]]:
    found: dict[str, list[BeaconBlock]] = {}
    for record_key, value in log.records(ranges):
        if record_key != key:
            continue
        try:
            block = decode_block(value)
        except BadRecord:
            continue  # counted where the window is closed
        found.setdefault(block.checkpoint, []).append(block)
    return found


def _ids(blocks: dict[str, list[BeaconBlock]], checkpoint: str) -> U64:
    return np.concatenate([np.empty(0, np.uint64), *(block.id_hash for block in blocks.get(checkpoint, []))])


def _names(first: list[BeaconBlock], ids: U64) -> list[str]:
    names = {int(id_hash): f"{int(id_hash):016x}" for id_hash in ids}
    for block in first:
        if block.message_ids is None:
            continue
        rows = np.flatnonzero(np.isin(block.id_hash, ids))
        found = zip(rows.tolist(), unpack_ids(block.message_ids, rows.tolist()), strict=True)
        names.update({int(block.id_hash[row]): raw.decode("utf-8", "replace") for row, raw in found})
    return list(names.values())

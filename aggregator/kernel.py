"""The kernel: Arrow batches of Kafka records in, one packed row of facts a window and partition out.

One call a Spark task; a task holds whole partitions, so no id is elsewhere. Runs on the executors, needs no Spark
itself.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from aggregator.counting import WindowBlocks, count_window
from aggregator.plan import ReadPlan
from lagloss.facts import WindowFacts
from lagloss.graph import node_of
from lagloss.wire import (
    F32,
    MAX_BLOCK_BEACONS,
    SAMPLE_ALL,
    BadReason,
    BadRecord,
    BeaconBlock,
    decode_block,
    encode_block,
    pack_ids,
    partitions_of,
    unpack_ids,
)

INPUT: Final = "partition int, offset long, appended_ms long, key binary, value binary"
OUTPUT: Final = "part binary"
FIRST_BYTES: Final = 64
_ZEROS: Final = np.zeros(MAX_BLOCK_BEACONS, np.float32)

Record = tuple[int, int, int, bytes | None, bytes | None]
"""One row of INPUT."""


@dataclass(frozen=True, slots=True)
class BadBlock:
    """A record of the beacons topic that could not be used."""

    partition: int
    offset: int
    reason: BadReason
    first_bytes: bytes


@dataclass(frozen=True, slots=True)
class Counted:
    """The facts of one window in one partition."""

    key: bytes
    facts: WindowFacts


def count_partitions(batches: Iterable[pa.RecordBatch], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """The kernel: count every wanted window in every partition among the batches (columns as in INPUT).

    The records of a partition must follow each other; only one partition's blocks are held at a time.
    """
    gc.disable()  # nothing here makes cycles, and looking for them among 100,000 blocks is a tenth of the time
    for partition, records in groupby(_records(batches), key=itemgetter(0)):
        windows: dict[bytes, WindowBlocks] = {}
        parts: list[BadBlock | Counted] = []
        for _, offset, appended_ms, key, value in records:
            try:
                take_block(windows, plan, appended_ms, key, value)
            except BadRecord as bad:
                parts.append(BadBlock(partition, offset, bad.reason, bytes(value or b"")[:FIRST_BYTES]))
        parts.extend(Counted(key, count_window(blocks, partition)) for key, blocks in windows.items())
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(part) for part in parts], pa.binary())], ["part"])


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "appended_ms", "key", "value"))
        yield from zip(*columns, strict=True)


def take_block(
    windows: dict[bytes, WindowBlocks], plan: ReadPlan, appended_ms: int, key: bytes | None, value: bytes | None
) -> None:
    """Put one record's block into its window.

    Raises:
        BadRecord: it cannot be used; where it is known whose it was, that node's evidence is marked first.
    """
    try:
        block = decode_block(value or b"")
    except BadRecord as bad:
        if bad.pipeline is not None and bad.checkpoint is not None and bad.window_start is not None:
            plan.check(key, appended_ms, bad.pipeline, bad.window_start)
            _mark(windows, plan, key, bad.checkpoint)
        raise
    plan.check(key, appended_ms, block.pipeline, block.window_start)
    found = _window(windows, plan, key)
    if found is None:
        return
    if block.checkpoint not in found.plan.graph.bit:
        problem: BadReason = "unknown_checkpoint"
    elif not 1 <= block.sample <= SAMPLE_ALL or block.partitions < 1:
        problem = "header_invalid"
    elif not _is_finite(block.lag_ms):
        problem = "lag_not_finite"
    else:
        found.add(block)
        return
    _mark(windows, plan, key, block.checkpoint)
    raise BadRecord(problem)


def _is_finite(lags: F32) -> bool:
    """Whether all are finite: anything else times zero is no number. A third of the price of asking each."""
    zeros = _ZEROS[: lags.size] if lags.size <= _ZEROS.size else np.zeros_like(lags)
    return bool(lags.dot(zeros) == 0)


def _window(windows: dict[bytes, WindowBlocks], plan: ReadPlan, key: bytes | None) -> WindowBlocks | None:
    """What was found of the wanted window with this key so far; None where nobody wants it."""
    found = windows.get(key or b"")
    if found is None and (wanted := plan.windows.get(key or b"")) is not None:
        found = windows[wanted.key] = WindowBlocks(wanted)
    return found


def _mark(windows: dict[bytes, WindowBlocks], plan: ReadPlan, key: bytes | None, checkpoint: str) -> None:
    """A bad block makes its node's evidence incomplete (rule 7)."""
    found = _window(windows, plan, key)
    if found is not None and node_of(checkpoint) in found.plan.graph.nodes:
        found.quarantined.add(node_of(checkpoint))


def scatter(batches: Iterable[pa.RecordBatch], targets: int) -> Iterator[pa.RecordBatch]:
    """Split every good block by id into `targets` ranges of the id space; the record's partition becomes the range's.

    For windows whose blocks were made for different numbers of partitions: after a shuffle by partition the kernel
    finds all of an id in one place again. Bad blocks go on as they are, to be marked once more.
    """
    for batch in batches:
        rows: list[Record] = []
        for partition, offset, appended_ms, key, value in _records([batch]):
            try:
                pieces = _split(decode_block(value or b""), targets)
            except BadRecord:
                pieces = {partition % targets: value or b""}
            rows.extend((target, offset, appended_ms, key, piece) for target, piece in pieces.items())
        schema = batch.schema
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
            if rows
            else [pa.array([], kind) for kind in schema.types],
            schema=schema,
        )


def _split(block: BeaconBlock, targets: int) -> dict[int, bytes]:
    where = partitions_of(block.id_hash, targets)
    names = None if block.message_ids is None else unpack_ids(block.message_ids, range(block.count))
    pieces = {}
    for target in np.unique(where).tolist():
        rows = np.flatnonzero(where == target)
        pieces[target] = encode_block(
            replace(
                block,
                partitions=targets,
                id_hash=block.id_hash[rows],
                lag_ms=block.lag_ms[rows],
                event_offset_ms=None if block.event_offset_ms is None else block.event_offset_ms[rows],
                payload_crc=None if block.payload_crc is None else block.payload_crc[rows],
                message_ids=None if names is None else pack_ids(names[row] for row in rows.tolist()),
            )
        )
    return pieces

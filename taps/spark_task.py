"""Tasks of Spark: read a plan's spans, make their blocks, and send them. Needs what an executor has."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lagloss.broker.connection import Cluster
from lagloss.broker.topics import BEACONS
from lagloss.sdk.outlets.kafka import KafkaOutlet, Outgoing
from lagloss.sdk.packing import PackedBlock
from lagloss.sdk.shipper import Position
from lagloss_server.extraction import Records
from taps.kernel import BlockMaker, Blocks, SpanBeacons, span_seq
from taps.order import PartitionOrder
from taps.plan import TapPlan
from taps.records import SpanRecords

SEND_S: Final = 60.0
"""Longest wait of a task for the broker; then the plan is tried again."""
_APPEND_TIME: Final = 1
"""Of the column `timestampType`: the broker's time."""


@dataclass(frozen=True, slots=True)
class TapTask:
    """What tasks have to know: whose blocks to make of which plan, and where to send them."""

    maker: BlockMaker
    plan: TapPlan
    beacons: Cluster


def send_spans(batches: Iterable[pa.RecordBatch], task: TapTask) -> Iterator[pa.RecordBatch]:
    """Make and send the blocks of a task's records; yield a row per span, a pickled `Blocks` without the blocks' bytes.

    Raises:
        TimeoutError: the broker did not take them in time.
    """
    spans = {span.partition: span for span in task.plan.spans}
    blocks_by_key: dict[int, Blocks] = {}
    parts: dict[int, list[SpanBeacons]] = {}
    orders: dict[int, PartitionOrder] = {}
    for batch in batches:  # in the order of the log, as each partition is read by one task
        partitions = batch.column("partition").to_numpy()
        for partition in np.unique(partitions).tolist():
            rows = np.flatnonzero(partitions == partition)
            records = span_records(batch if rows.size == len(batch) else batch.take(pa.array(rows)))
            counts = blocks_by_key.setdefault(partition, Blocks())
            order = None if task.maker.tap.order is None else orders.setdefault(partition, PartitionOrder())
            if order is not None:
                before = int(np.searchsorted(records.offsets, spans[partition].start))
                if before:
                    task.maker.remember(records.cut(0, before), order)
                    records = records.cut(before, records.offsets.size)
            part = task.maker.observe(task.plan, spans[partition], records, counts, order)
            if part is not None:
                parts.setdefault(partition, []).append(part)
    if not blocks_by_key:
        return
    outlet = KafkaOutlet(task.beacons)
    try:
        for partition, blocks in blocks_by_key.items():
            task.maker.drop_aside(task.plan, blocks)
            seq = span_seq(task.plan, spans[partition])
            _send(outlet, task.maker.pack(task.plan, parts.get(partition, ()), seq, blocks), blocks)
            yield pa.RecordBatch.from_pydict({"made": pa.array([pickle.dumps(blocks)], pa.binary())})
    finally:
        outlet.close()


def span_records(batch: pa.RecordBatch) -> SpanRecords:
    """Return the records of a batch, columns left in Arrow."""
    headers: Any = batch.column("headers")
    offsets = batch.column("offset").to_numpy()
    return SpanRecords(
        offsets,
        Records(
            batch.column("timestamp_ms").to_numpy(),
            batch.column("key"),
            batch.column("value"),
            headers if pa.types.is_list(headers.type) else [None] * len(batch),
            batch.column("partition").to_numpy().astype(np.int64),  # Spark's is of 32 bits
            offsets,
        ),
        is_append_time=batch.column("timestampType").to_numpy() == _APPEND_TIME,
    )


def _send(outlet: KafkaOutlet, packed: Iterable[PackedBlock], blocks: Blocks) -> None:
    """Send blocks as they are packed, and add them without their bytes, and where the broker put them."""
    positions: list[Position] = []
    left = 0

    def listener(index: int) -> Any:
        def done(partition: int | None, offset: int) -> None:
            nonlocal left
            left -= 1
            positions[index] = None if partition is None else (partition, offset)

        return done

    partitions = outlet.partitions()
    for index, block in enumerate(packed):
        partition = block.partition % partitions if partitions else block.partition
        positions.append(None)
        left += 1
        outlet.send(Outgoing(BEACONS, block.key, block.value, listener(index), partition))
        blocks.blocks.append(replace(block, value=b""))
    deadline = time.monotonic() + SEND_S
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(outlet.last_error or "the broker did not accept the blocks in time")
        outlet.poll(0.05)
    blocks.positions = positions

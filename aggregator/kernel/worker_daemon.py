"""Spark's Python daemon with the kernel already imported and compiled, so that a worker forked from it starts counting
at once.

Idle workers end after a minute, which is just when the next window is due; importing anew cost each of them a second.
"""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
from pyspark.daemon import manager

from aggregator.kernel.kernel import count_partitions
from aggregator.kernel.plan import ReadPlan, WindowPlan
from lagloss.wire.format import BeaconBlock, block_key, encode_block
from lagloss_server.model.definition import Definition


def count_something() -> None:
    """Let the kernel count a message that is lost and one that is not: whatever it compiles is compiled then."""
    spec = {"nodes": [{"name": "a"}]}
    pipeline = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "warm"}, "spec": spec}
    window = WindowPlan(Definition.model_validate(pipeline).graph, 60)
    ids, lags, offsets = np.arange(2, dtype=np.uint64), np.ones(2, np.float32), np.zeros(2, np.uint16)
    blocks = [
        BeaconBlock("warm", "a.in", bytes(16), 1, 60, 1, ids, lags, event_offset_ms=offsets),
        BeaconBlock("warm", "a.out", bytes(16), 2, 60, 1, ids[:1], lags[:1]),
    ]
    columns = {
        "partition": pa.array([0, 0], pa.int32()),
        "offset": pa.array([0, 1], pa.int64()),
        "appended_ms": pa.array([120_000] * 2, pa.int64()),
        "key": pa.array([block_key("warm", 60)] * 2, pa.binary()),
        "value": pa.array([encode_block(block) for block in blocks], pa.binary()),
    }
    plan = ReadPlan({window.key: window}, frozenset(["warm"]))
    list(count_partitions([pa.RecordBatch.from_pydict(columns)], plan))


if __name__ == "__main__":
    gc.disable()  # a task makes no cycles, and looking for them among 100,000 blocks is a tenth of its time
    count_something()
    manager()

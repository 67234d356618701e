"""The kernel: Arrow batches of Kafka records in, one packed row of facts a window out.

One call a Spark task; a task holds whole partitions, so no id is elsewhere. Runs on the executors, needs no Spark
itself.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aggregator.kernel.columns import BlockColumns
from aggregator.kernel.counter import count_window
from aggregator.kernel.plan import ReadPlan
from aggregator.kernel.scanner import Bytes, Headers, scan
from lagloss.wire.checks import check_block, is_in_reach
from lagloss.wire.format import (
    BadReason,
    BadRecord,
    BeaconBlock,
    decode_block,
    encode_block,
    pack_ids,
    partitions_of,
    unpack_ids,
)
from lagloss.wire.positions import pick_positions
from lagloss.wire.traces import pick_traces
from lagloss_server.judging.facts import WindowFacts

INPUT: Final = "partition int, offset long, appended_ms long, key binary, value binary"
OUTPUT: Final = "part binary"
FIRST_BYTES: Final = 64
BAD_SHOWN: Final = 1_000
"""Bad records that a task shows of each reason; the others are only counted."""
SMALL_WINDOW: Final = 20_000
"""Windows with fewer beacons are counted once a task and not once a partition: a count has a price of its own."""

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
    """The facts of one window in one or more partitions."""

    key: bytes
    facts: WindowFacts


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one task: how many bad records belong to no wanted window and were looked at for the first time, by reason,
    and how many bytes of values it was given."""

    strays: Counter[BadReason]
    value_bytes: int


Part = Counted | BadBlock | Totals


def count_partitions(batches: Iterable[pa.RecordBatch], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Count every wanted window in every partition among the batches (columns as in INPUT): the kernel.

    The records of a partition must follow each other; only one partition's blocks of large windows are held at a time.
    """
    task = _Task(plan)
    for batch in batches:
        for run in _runs(batch):
            yield from _rows(task.take(run))
    yield from _rows(task.end())


def _rows(parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
    packed = [pickle.dumps(part) for part in parts]
    if packed:
        yield pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], ["part"])


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice the batch by partition."""
    partitions = batch.column("partition").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), partitions.size]
    return (batch.slice(start, end - start) for start, end in itertools.pairwise(edges) if end > start)


@dataclass
class _Task:
    """Findings of one task so far."""

    plan: ReadPlan
    windows: dict[bytes, BlockColumns] = field(default_factory=dict)
    strays: Counter[BadReason] = field(default_factory=Counter)
    shown: Counter[BadReason] = field(default_factory=Counter)
    value_bytes: int = 0
    partition: int | None = None

    def take(self, run: pa.RecordBatch) -> Iterator[Part]:
        """Take in records of one partition. Yields what is complete with the partition before, and bad ones."""
        partition = run.column("partition")[0].as_py()
        if partition != self.partition:
            yield from self._end_partition()
            self.partition = partition
        keys = run.column("key").to_pylist()
        values = Bytes.of(run.column("value"))
        self.value_bytes += int(values.starts[-1] - values.starts[0])
        headers = scan(Bytes.of(run.column("key")), values)
        good = headers.good & is_in_reach(headers.fields["window_start"] * 1000, run.column("appended_ms").to_numpy())
        deferred = self._take_good(headers, keys, np.flatnonzero(good).tolist())
        # in the order of the log: of bad records the first few are shown
        for row in sorted([*deferred, *np.flatnonzero(~good).tolist()]):
            record = run.slice(row, 1).to_pylist()[0]
            try:
                take_block(self.windows, self.plan, record["appended_ms"], keys[row], record["value"])
            except BadRecord as bad:
                yield from self._bad(bad.reason, record)
            except Exception:  # our bug: one record must not cost all windows
                yield from self._bad("failed", record)

    def end(self) -> Iterator[Part]:
        """Everything that is still held."""
        yield from self._end_partition()
        yield from (Counted(key, count_window(columns)) for key, columns in self.windows.items())
        yield Totals(self.strays, self.value_bytes)

    def _take_good(self, headers: Headers, keys: list[bytes | None], rows: list[int]) -> list[int]:
        """Put well-formed blocks, which nearly all are, into their windows; return the rows of unwanted windows or
        checkpoints."""
        groups: dict[tuple[bytes | None, bytes], list[int]] = {}
        raw, fields = headers.data.data, headers.fields
        starts, sizes = fields["checkpoint"][rows].tolist(), fields["checkpoint_size"][rows].tolist()
        for row, start, size in zip(rows, starts, sizes, strict=True):
            groups.setdefault((keys[row], bytes(raw[start : start + size])), []).append(row)
        deferred = []
        for (key, name), mine in groups.items():
            columns, checkpoint = _window(self.windows, self.plan, key), name.decode("utf-8", "replace")
            # the plan knows one version of the graph: `check_block` tells a node of another version from a bad name
            if columns is None or checkpoint not in columns.plan.graph.bit:
                deferred += mine
            else:
                columns.add_rows(checkpoint, headers, mine)
        return deferred

    def _end_partition(self) -> Iterator[Part]:
        if self.partition is None:
            return
        for key, columns in list(self.windows.items()):
            columns.end_partition(self.partition)
            if columns.size >= SMALL_WINDOW:
                del self.windows[key]
                yield Counted(key, count_window(columns))

    def _bad(self, reason: BadReason, record: Mapping[str, Any]) -> Iterator[BadBlock]:
        """Count a bad record with the window that its key names. One whose key is out of reach is read whichever
        windows are wanted, so it counts when it is looked at for the first time."""
        columns, partition, offset = (
            _window(self.windows, self.plan, record["key"]),
            self.partition or 0,
            record["offset"],
        )
        if columns is not None and is_in_reach(columns.plan.window_start_s * 1000, record["appended_ms"]):
            columns.bad[reason] += 1
        elif offset >= self.plan.audited.get(partition, 0):
            self.strays[reason] += 1
        self.shown[reason] += 1
        if self.shown[reason] <= BAD_SHOWN:
            yield BadBlock(partition, offset, reason, bytes(record["value"] or b"")[:FIRST_BYTES])


def take_block(
    windows: dict[bytes, BlockColumns], plan: ReadPlan, appended_ms: int, key: bytes | None, value: bytes | None
) -> None:
    """Put the block of one record into its window, if the fast way of `_Task.take` does not take it: a replay, a block
    with an unusual text, or a bad one.

    Raises:
        BadRecord: it cannot be used; where it is known whose it was, that node's evidence is marked first.
    """
    columns = _window(windows, plan, key)
    try:
        checkpoints = None if columns is None else columns.plan.checkpoints
        block = check_block(key, value, appended_ms, plan.pipelines, checkpoints)
    except BadRecord as bad:
        if columns is not None and bad.checkpoint is not None:
            columns.mark_bad(bad.checkpoint)
        raise
    if columns is not None:
        columns.add(block)


def _window(windows: dict[bytes, BlockColumns], plan: ReadPlan, key: bytes | None) -> BlockColumns | None:
    """Return the facts so far of the wanted window with this key; None if the plan does not want it."""
    columns = windows.get(key or b"")
    if columns is None and (window_plan := plan.windows.get(key or b"")) is not None:
        columns = windows[window_plan.key] = BlockColumns(window_plan)
    return columns


def scatter(batches: Iterable[pa.RecordBatch], targets: int) -> Iterator[pa.RecordBatch]:
    """Split every good block by id into `targets` ranges of the id space; the record's partition becomes the range's.

    For windows whose blocks were made for different numbers of partitions: after a shuffle by partition the kernel
    finds all of an id in one place again. Bad blocks go on as they are, to be marked once more.
    """
    for batch in batches:
        rows: list[Record] = []
        for partition, offset, appended_ms, key, value in _records(batch):
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


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "appended_ms", "key", "value"))
    return zip(*columns, strict=True)


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
                traces=None if block.traces is None else pick_traces(block.traces, rows),
                out_of_order=None if block.out_of_order is None else pick_positions(block.out_of_order, rows),
            )
        )
    return pieces

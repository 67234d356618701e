"""The soak's traffic: thousands of emitters of small pipelines, some of which lose messages, are late, restart or end.

A pipeline has two nodes, and every second message of some goes to a second process of the second node. All of a flush's
messages have one event time and lie in one partition.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Queue
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from lagloss.broker.topics import BEACONS, BEACONS_PARTITIONS, REPORTS
from lagloss.wire.format import (
    U64,
    WINDOW_S,
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    block_key,
    encode_block,
    encode_report,
    window_start_of,
)
from lagloss.wire.sketch import Sketch, bin_keys

FLUSH_S: Final = 2.5
"""As the SDK flushes below 250 beacons a second."""
SLOTS: Final = 25
"""Moments of a flush interval at which a part of the pipelines flushes."""
MESSAGES: Final = 3
"""Messages of a pipeline in a flush; one lost of 72 a minute is more than the 1 % that are allowed."""
LATE_S: Final = 90
"""Seconds from the end of a window to the beacons of its last message, in pipelines that are late."""
RESTART_S: Final = 120
FORGOTTEN_S: Final = 11 * WINDOW_S
"""From a crash to the end of the last window that it keeps from being idle, if there were emitters that have ended."""
NODES: Final = ("node-0", "node-1")
"""As `generated.node_names` has them."""
Fault = Literal["", "loss", "late", "restart", "stop", "crash"]
_FAULTS: Final[dict[int, Fault]] = {7: "loss", 13: "late", 21: "restart", 33: "stop", 41: "crash"}
_LAGS_MS: Final = np.random.default_rng(1).lognormal(4, 0.5, (64, MESSAGES)).astype(np.float32)
_LAG_KEYS: Final = [bin_keys(lags) for lags in _LAGS_MS]


class Outcome(NamedTuple):
    """What a window is found to be."""

    verdict: str
    messages: int
    lost: int


def pipeline_name(number: int) -> str:
    return f"small-{number:04}"


def fault_of(number: int) -> Fault:
    """Return what is wrong with a pipeline: one in ten has a fault."""
    return _FAULTS.get(number % 50, "")


@dataclass(frozen=True, slots=True)
class Run:
    """What is sent, from a whole minute on. `begins_s`: epoch s."""

    pipelines: int
    emitters: int
    begins_s: int
    minutes: int

    @property
    def stops_s(self) -> int:
        """Return when those that stop or crash do: in the middle, at a whole minute."""
        return self.begins_s + self.minutes // 2 * WINDOW_S

    @property
    def judged(self) -> range:
        """Return the windows whose verdict is certain, late beacons included, soon after the end."""
        return range(self.begins_s, self.begins_s + self.minutes * WINDOW_S - LATE_S - 90, WINDOW_S)

    @property
    def shared(self) -> int:
        """Return how many pipelines have two processes of the second node: the first ones."""
        return self.emitters - len(NODES) * self.pipelines

    def outcome(self, number: int, window_s: int) -> Outcome | None:
        """Return what a window must be found to be; None if that depends on which reports came last."""
        fault, messages = fault_of(number), int(WINDOW_S / FLUSH_S) * MESSAGES
        if fault == "loss":
            return Outcome("loss", messages, 2 if number < self.shared else 1)
        if fault == "stop" and window_s >= self.stops_s:
            return Outcome("idle", 0, 0)
        if fault == "crash" and window_s >= self.stops_s - 2 * WINDOW_S:
            is_forgotten = window_s + WINDOW_S > self.stops_s + FORGOTTEN_S
            return Outcome("idle" if is_forgotten else "unknown", 0, 0) if window_s >= self.stops_s else None
        return Outcome("ok", messages, 0)


@dataclass(slots=True)
class _Account:
    """Beacons of a window so far, at each checkpoint of a node."""

    count: int = 0
    id_sum: int = 0
    lags: Sketch = field(default_factory=Sketch)
    ranges: dict[tuple[str, int], OffsetRange] = field(default_factory=dict)
    is_new: bool = True

    def note(self, side: str, error: KafkaError | None, block: Message) -> None:
        """Note where an acknowledged block lies."""
        partition, offset = block.partition(), block.offset()
        if error is not None or partition is None or offset is None:
            raise RuntimeError(f"a block was not acknowledged: {error}")
        first = self.ranges.get((side, partition), OffsetRange(partition, offset, offset)).first
        self.ranges[side, partition] = OffsetRange(partition, first, offset)


@dataclass(slots=True)
class _Emitter:
    pipeline: int
    node: str
    rows: slice
    lane: str
    started_ms: int
    name: bytes = field(default_factory=lambda: uuid.uuid4().bytes)
    seq: int = 0
    accounts: dict[int, _Account] = field(default_factory=dict)
    held: dict[int, U64] = field(default_factory=dict)
    """Ids by window, of messages that are late."""


class _Sender:
    def __init__(self, bootstrap: str, run: Run) -> None:
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer({**settings, "enable.idempotence": True})
        self._run = run
        self._rng = np.random.default_rng(2)
        self._slots: dict[int, list[list[_Emitter]]] = defaultdict(list)
        for number in range(run.pipelines):
            parts = (slice(0, None, 2), slice(1, None, 2)) if number < run.shared else (slice(None),)
            members = [(NODES[0], slice(None)), *((NODES[1], part) for part in parts)]
            began_ms = run.begins_s * 1_000
            self._slots[number % SLOTS].append(
                [_Emitter(number, node, rows, f"topic/{index}", began_ms) for index, (node, rows) in enumerate(members)]
            )

    def send(self) -> float:
        """Send all of it; return how late (s) the latest flush was."""
        run, late_s = self._run, 0.0
        for flush in range(int(run.minutes * WINDOW_S / FLUSH_S)):
            for slot in range(SLOTS):
                now_s = run.begins_s + (flush + 1 + slot / SLOTS) * FLUSH_S
                time.sleep(max(0.0, now_s - time.time()))
                late_s = max(late_s, time.time() - now_s)
                self._flush(self._slots[slot], flush, now_s - FLUSH_S)
        for pipelines in self._slots.values():
            self._report([emitter for emitters in pipelines for emitter in emitters], time.time(), closed=True)
        self._producer.flush(30)
        return late_s

    def _flush(self, pipelines: list[list[_Emitter]], flush: int, event_s: float) -> None:
        """Send the blocks of these pipelines, and once they are acknowledged what their emitters report."""
        window_s = window_start_of(event_s * 1_000)
        is_first = window_start_of((event_s - FLUSH_S) * 1_000) != window_s
        ids = self._rng.integers(0, 2**61, (len(pipelines), MESSAGES), dtype=np.uint64)
        restarts = flush * FLUSH_S % RESTART_S == RESTART_S / 4
        ending: list[_Emitter] = []
        for index, emitters in enumerate(pipelines):
            fault = fault_of(emitters[0].pipeline)
            if fault in ("stop", "crash") and event_s >= self._run.stops_s:
                ending += emitters if fault == "stop" else ()
                emitters.clear()
                continue
            if fault == "restart" and restarts:
                ending.append(old := emitters[-1])
                emitters[-1] = _Emitter(old.pipeline, old.node, old.rows, old.lane, int(event_s * 1_000))
            mine = ids[index] + np.uint64((emitters[0].pipeline + flush) % BEACONS_PARTITIONS << 61)
            for emitter in emitters:
                sent_ids = mine[emitter.rows]
                if fault == "loss" and emitter.node == NODES[1] and is_first:
                    sent_ids = sent_ids[1:]
                if fault == "late" and emitter is emitters[-1]:
                    if window_s not in emitter.held:
                        emitter.held[window_s], sent_ids = sent_ids[:1], sent_ids[1:]
                    for due_s in [start_s for start_s in emitter.held if event_s >= start_s + WINDOW_S + LATE_S]:
                        self._blocks(emitter, due_s, emitter.held.pop(due_s), flush)
                self._blocks(emitter, window_s, sent_ids, flush)
        self._report(ending, event_s, closed=True)
        pipelines[:] = [emitters for emitters in pipelines if emitters]
        self._producer.flush(30)
        self._report([emitter for emitters in pipelines for emitter in emitters], event_s)

    def _blocks(self, emitter: _Emitter, window_s: int, ids: U64, flush: int) -> None:
        if not ids.size:
            return
        account = emitter.accounts.setdefault(window_s, _Account())
        lags, keys = _LAGS_MS[flush % 64][: ids.size], _LAG_KEYS[flush % 64][: ids.size]
        account.count += ids.size
        account.id_sum = (account.id_sum + int(ids.sum(dtype=np.uint64))) % 2**64
        account.lags, account.is_new = account.lags.plus(keys), True
        partition, pipeline = int(ids[0]) >> 61, pipeline_name(emitter.pipeline)
        for side in ("in", "out"):
            checkpoint = f"{emitter.node}.{side}"
            block = BeaconBlock(
                pipeline, checkpoint, emitter.name, emitter.seq, window_s, BEACONS_PARTITIONS, ids, lags,
                event_offset_ms=np.full(ids.size, 30_000, np.uint16) if checkpoint == f"{NODES[0]}.in" else None,
            )  # fmt: skip
            emitter.seq += 1
            key, noted = block_key(pipeline, window_s), functools.partial(account.note, side)
            self._producer.produce(BEACONS, encode_block(block), key, partition=partition, on_delivery=noted)

    def _report(self, emitters: list[_Emitter], event_s: float, *, closed: bool = False) -> None:
        for emitter in emitters:
            is_late = bool(emitter.held)
            final_s = window_start_of((event_s - (LATE_S if is_late else 0)) * 1_000)
            now_ms = int(time.time() * 1_000)
            until_ms = now_ms - int((LATE_S + 2 * WINDOW_S) * 1_000) if is_late else now_ms
            report = EmitterReport(
                pipeline_name(emitter.pipeline), emitter.node, emitter.name, "pod", emitter.seq, emitter.started_ms,
                now_ms, closed, final_s,
                (Progress(f"{emitter.node}.in", emitter.lane, until_ms), Progress(f"{emitter.node}.out", "", now_ms)),
                tuple(self._tallies(emitter)),
            )  # fmt: skip
            emitter.seq += 1
            self._producer.produce(REPORTS, encode_report(report), emitter.name)
            for old_s in [start_s for start_s in emitter.accounts if start_s < event_s - 4 * WINDOW_S]:
                del emitter.accounts[old_s]
        self._producer.poll(0)

    def _tallies(self, emitter: _Emitter) -> Iterator[Tally]:
        for window_s, account in emitter.accounts.items():
            if account.is_new:
                account.is_new = False
                for side in ("in", "out"):
                    ranges = tuple(
                        ranges for (checkpoint, _), ranges in sorted(account.ranges.items()) if checkpoint == side
                    )
                    yield Tally(f"{emitter.node}.{side}", window_s, account.count, account.id_sum, account.lags, ranges)


def send(bootstrap: str, run: Run, queue: Queue[Any]) -> None:
    """Send a run, and put how late (s) its latest flush was."""
    queue.put(_Sender(bootstrap, run).send())

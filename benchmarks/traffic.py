"""The benchmark's traffic: a chain of five nodes (ten checkpoints), 1 % lost at three hops, 0.5 % sent twice."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Producer

from lagloss.broker.topics import BEACONS
from lagloss.wire.format import BeaconBlock, block_key, encode_block, partitions_of
from lagloss_server.model.definition import Definition

NODES = ("src", "norm", "router", "conn", "sink")
LOSSY = ("norm.in", "router.out", "sink.in")
STEPS = 600
"""Flushes a window: 10 a second: blocks of 250 beacons, as from many emitters."""


def chain(name: str = "bench", nodes: Sequence[str] = NODES) -> Definition:
    """Return a pipeline of these nodes, one after the other."""
    linked = [{"name": node, "to": [after]} for node, after in itertools.pairwise(nodes)]
    return Definition.model_validate(
        {
            "apiVersion": "lagloss/v1",
            "kind": "Pipeline",
            "metadata": {"name": name},
            "spec": {"nodes": [*linked, {"name": nodes[-1]}]},
        }
    )


def emitter_of(pipeline: str, node: str) -> bytes:
    """Return the name of the node's only emitter."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{pipeline}/{node}").bytes


@dataclass(frozen=True)
class Sent:
    """Traffic that was put into the log."""

    beacons: int
    messages: int
    lost: int
    blocks: int


def send(
    bootstrap: str,
    window_starts_s: list[int],
    messages_a_second: int,
    partitions: int,
    steps: int = STEPS,
    seed: int = 1,
    *,
    shuffled: bool = False,
) -> Sent:
    """Fill the beacons topic with these windows' blocks, made in this many flushes per window. `shuffled`: each
    checkpoint sees a flush's messages in an order of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    rng = np.random.default_rng(seed)
    emitters = {
        f"{node}.{side}": uuid.UUID(int=index).bytes for index, node in enumerate(NODES) for side in ("in", "out")
    }
    a_step = messages_a_second * 60 // steps
    seq = beacons = messages = lost = blocks = 0
    for start in window_starts_s:
        for step in range(steps):
            ids = rng.integers(0, 2**64, a_step, dtype=np.uint64)
            messages += ids.size
            lag = np.zeros(ids.size, np.float32)
            offset = np.full(ids.size, step * 60_000 // steps, np.uint16)
            for checkpoint, emitter in emitters.items():
                lag = lag + rng.exponential(30, ids.size).astype(np.float32)
                if checkpoint in LOSSY:
                    keep = rng.random(ids.size) > 0.01
                    lost += int((~keep).sum())
                    ids, lag = ids[keep], lag[keep]
                again = np.flatnonzero(rng.random(ids.size) < 0.005)
                out_ids, out_lag = np.concatenate([ids, ids[again]]), np.concatenate([lag, lag[again]])
                if shuffled:
                    order = rng.permutation(out_ids.size)
                    out_ids, out_lag = out_ids[order], out_lag[order]
                where = partitions_of(out_ids, partitions)
                for partition in range(partitions):
                    rows = np.flatnonzero(where == partition)
                    first = checkpoint == "src.in"
                    block = BeaconBlock(
                        pipeline="bench",
                        checkpoint=checkpoint,
                        emitter=emitter,
                        seq=seq,
                        window_start=start,
                        partitions=partitions,
                        id_hash=out_ids[rows],
                        lag_ms=out_lag[rows],
                        event_offset_ms=np.full(rows.size, offset[0], np.uint16) if first else None,
                        message_ids=_names(out_ids[rows]) if first else None,
                    )
                    seq, blocks, beacons = seq + 1, blocks + 1, beacons + rows.size
                    _produce(producer, partition, block_key("bench", start), encode_block(block))
    producer.flush(120)
    return Sent(beacons, messages, lost, blocks)


def _names(ids: np.typing.NDArray[np.uint64]) -> bytes:
    """Made-up names of 16 characters, packed."""
    packed = np.empty((ids.size, 17), np.uint8)
    packed[:, 0] = 16
    for nibble in range(16):
        packed[:, 1 + nibble] = 97 + ((ids >> np.uint64(4 * nibble)) & np.uint64(15)).astype(np.uint8)
    return packed.tobytes()


def _produce(producer: Producer, partition: int, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(BEACONS, value, key=key, partition=partition)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.05)

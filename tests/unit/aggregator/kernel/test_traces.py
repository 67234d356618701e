"""A lost message keeps the trace in which it came in first, however its blocks are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.kernel.plan import ReadPlan, WindowPlan
from lagloss.wire.format import SAMPLE_ALL, BeaconBlock, block_key, encode_block, hash_id, pack_ids, partition_of
from lagloss.wire.traces import TraceContext, pack_traces
from lagloss_server.model.definition import parse_definition
from tests.oracle.evidence import Record
from tests.support.in_memory import count

START_S = 1_780_000_020
DEFINITION = (
    "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: shop}, "
    "spec: {nodes: [{name: src, to: [snk]}, {name: snk}]}}"
)
GRAPH = parse_definition(DEFINITION).graph
NAMES = [f"m-{at}" for at in range(12)]


@dataclass(frozen=True)
class Came:
    """One beacon at the first checkpoint; `trace`: a byte of which its context is made, 0 for none."""

    name: str
    lag_ms: float
    trace: int


@dataclass(frozen=True)
class Sent:
    """A block of one partition or several: it is cut by partition, as the SDK does."""

    beacons: tuple[Came, ...]
    replay: str | None
    reason: str | None
    partitions: int


came = st.builds(Came, st.sampled_from(NAMES), st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 3))
sent = st.builds(
    Sent,
    st.lists(came, min_size=1, max_size=6).map(tuple),
    st.sampled_from([None, None, "again"]),
    st.sampled_from([None, "späm"]),  # which the fast way leaves to the slow one
    st.sampled_from([4, 4, 4, 7]),  # two numbers of partitions: blocks are split anew
)


def context(trace: int) -> bytes:
    return bytes([trace]) * 24


def records_of(blocks: Sequence[Sent], checkpoint: str) -> list[Record]:
    found = []
    for at, block in enumerate(blocks):
        parts: dict[int, list[Came]] = {}
        for beacon in block.beacons:
            parts.setdefault(partition_of(hash_id(beacon.name), block.partitions), []).append(beacon)
        for partition, beacons in parts.items():
            raws = [beacon.name.encode() for beacon in beacons]
            contexts = np.frombuffer(b"".join(context(beacon.trace) for beacon in beacons), np.uint8)
            value = encode_block(
                BeaconBlock(
                    "shop",
                    checkpoint,
                    bytes(16),
                    100 * at + partition,
                    START_S,
                    block.partitions,
                    np.array([hash_id(beacon.name) for beacon in beacons], np.uint64),
                    np.array([beacon.lag_ms for beacon in beacons], np.float32),
                    replay=block.replay,
                    reason=block.reason,
                    event_offset_ms=np.zeros(len(beacons), np.uint16),
                    message_ids=pack_ids(raws),
                    traces=pack_traces(contexts.reshape(-1, 24)),
                )
            )
            found.append(Record(partition, len(found), START_S * 1000 + 30_000, block_key("shop", START_S), value))
    return found


@settings(max_examples=150)
@given(st.lists(sent, min_size=1, max_size=6), st.integers(1, 3), st.sampled_from([SAMPLE_ALL, SAMPLE_ALL // 2]))
def test_a_missing_id_has_the_trace_of_its_earliest_beacon_that_has_one(
    blocks: list[Sent], batch_size: int, sample: int
) -> None:
    plan = WindowPlan(GRAPH, START_S, sample=sample)
    records = records_of(blocks, "src.in")
    facts = count(records, ReadPlan({plan.key: plan}, frozenset(["shop"])), batch_size)[plan.key]
    beacons = [beacon for block in blocks for beacon in block.beacons if hash_id(beacon.name) % SAMPLE_ALL < sample]
    expected = {}
    for name in {beacon.name for beacon in beacons}:
        traced = [(one.lag_ms, context(one.trace)) for one in beacons if one.name == name and one.trace]
        expected[name] = TraceContext.of(min(traced)[1]) if traced else None
    assert {found.name: found.trace for found in facts.missing} == expected


def test_traces_of_other_checkpoints_are_not_kept() -> None:
    plan = WindowPlan(GRAPH, START_S)
    block = Sent((Came("a", 1.0, 1),), None, None, 4)
    facts = count(records_of([block], "src.out"), ReadPlan({plan.key: plan}, frozenset(["shop"])), 10)[plan.key]
    assert [found.trace for found in facts.missing] == [None]

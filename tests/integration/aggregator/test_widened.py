"""The beacons topic gets more partitions in the middle of a window: the same ids then lie in other partitions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from lagloss.wire.format import (
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Tally,
    block_key,
    encode_block,
    encode_report,
    hash_id,
    pack_ids,
    partitions_of,
)
from lagloss.wire.sketch import Sketch
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.store import Store
from tests.conftest import Topics
from tests.support.closers import driven
from tests.support.window_documents import documents

START_S = int(time.time()) // 60 * 60 - 600
NAMES = [f"order-{at}" for at in range(600)]
LOST = set(NAMES[::50])
DEFINITION = "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: wide}, spec: {nodes: [%s]}}"


class Sender:
    """Sends the beacons of one node as blocks for so many partitions, and its report."""

    def __init__(self, bootstrap: str, topics: Topics, node: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topics, self._node, self._partitions = topics, node, partitions
        self._emitter = node.encode().ljust(16)
        self._seq = 0

    def send(self, names: list[str]) -> None:
        tallies = tuple(self._blocks(f"{self._node}.{side}", names) for side in ("in", "out"))
        now_ms = int(time.time() * 1000)
        final_s = now_ms // 1000
        report = EmitterReport(
            "wide", self._node, self._emitter, "here", 1, START_S * 1000, now_ms, True, final_s, (), tallies
        )
        self._producer.produce(self._topics.reports, encode_report(report), self._emitter)
        assert self._producer.flush(20) == 0

    def _blocks(self, checkpoint: str, names: list[str]) -> Tally:
        ids = np.array([hash_id(name) for name in names], np.uint64)
        where, lags = partitions_of(ids, self._partitions), np.full(ids.size, 20, np.float32)
        places: dict[int, list[int]] = defaultdict(list)
        is_first = checkpoint == "src.in"
        for partition in range(self._partitions):
            rows = np.flatnonzero(where == partition)
            self._seq += 1
            block = BeaconBlock(
                "wide", checkpoint, self._emitter, self._seq, START_S, self._partitions, ids[rows], lags[rows],
                event_offset_ms=np.zeros(rows.size, np.uint16) if is_first else None,
                message_ids=pack_ids(names[row].encode() for row in rows.tolist()) if is_first else None,
            )  # fmt: skip
            self._producer.produce(
                self._topics.beacons,
                encode_block(block),
                block_key("wide", START_S),
                partition=partition,
                on_delivery=lambda _, sent: places[sent.partition()].append(sent.offset()),
            )
        assert self._producer.flush(20) == 0
        ranges = tuple(OffsetRange(partition, min(found), max(found)) for partition, found in sorted(places.items()))
        return Tally(checkpoint, START_S, ids.size, int(ids.sum(dtype=np.uint64)), Sketch.of(lags), ranges)


def test_a_topic_that_is_widened_within_a_window_gives_the_same_answer(
    spark: SparkSession, kafka_bootstrap: str, store: Store, topics: Callable[..., Topics]
) -> None:
    made = topics(beacons_partitions=8)
    store.apply(parse_definition(DEFINITION % "{name: src, to: [snk]}, {name: snk}"), 0)
    Sender(kafka_bootstrap, made, "src", 8).send(NAMES)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(made.beacons, 12)])[made.beacons].result(20)
    Sender(kafka_bootstrap, made, "snk", 12).send([name for name in NAMES if name not in LOST])
    with driven(spark, kafka_bootstrap, store, made.beacons, made.reports) as parts:
        parts.follow_all()
        parts.closer.close_windows([("wide", START_S)], int(time.time() * 1000))
    (window,) = documents(store.windows("wide", START_S, START_S + 60))
    counts = {checkpoint["name"]: checkpoint["distinct"] for checkpoint in window["checkpoints"]}
    assert counts == {"src.in": 600, "src.out": 600, "snk.in": 588, "snk.out": 588}
    assert (window["messages"], window["delivered"]) == (600, 588)
    # nobody reports how far it took in: what is missing is pending until that is told, and named
    assert {found.message_id for found in store.missing("wide", START_S)} == LOST

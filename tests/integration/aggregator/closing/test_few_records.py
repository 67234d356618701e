"""Few records are counted in this process, to the same facts as in Spark's workers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import BlockReader
from lagloss.wire.format import OffsetRange
from lagloss_server.model.definition import Definition
from lagloss_server.queries.beacon_log import BeaconLog
from tests.oracle.evidence import World
from tests.oracle.worlds import make_world
from tests.support.worlds_in_kafka import PARTITIONS, put_world


def windows_of(world: World, start_s: int) -> ReadPlan:
    definition = Definition.model_validate(world.definitions[-1][1])
    plans = [WindowPlan(definition.graph, start_s + 60 * minute, (1e15,)) for minute in range(-1, 2)]
    return ReadPlan({plan.key: plan for plan in plans}, frozenset([definition.name]))


def in_any_order(part: Any) -> Any:
    """What a reading holds, whichever task found it first."""
    if is_dataclass(part):
        return {field.name: in_any_order(getattr(part, field.name)) for field in fields(part)}
    if isinstance(part, Mapping):
        return {key: in_any_order(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return sorted(repr(in_any_order(item)) for item in part)
    return repr(part)


@pytest.mark.parametrize("seed", [3, 7, 209, 1093])
def test_workers_and_this_process_count_the_same(seed: int, spark: SparkSession, kafka_bootstrap: str) -> None:
    world, start_s = make_world(random.Random(seed))
    topic, plan = put_world(kafka_bootstrap, world).beacons, windows_of(world, start_s)
    with closing(BeaconLog(kafka_bootstrap, topic)) as log:
        ranges = [OffsetRange(at, 0, end - 1) for at, end in log.ends().items() if end]
        kept = [record for record in log.records(ranges[:1]) if record.offset % 2]
    for targets in (PARTITIONS, 3):
        here = BlockReader(spark, kafka_bootstrap, topic, targets).read(ranges[1:], plan, kept)
        there = BlockReader(spark, kafka_bootstrap, topic, targets, few=0).read(ranges[1:], plan, kept)
        assert in_any_order(here) == in_any_order(there)

"""A closer on real servers that a test drives by hand, with a clock of the test's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.kernel.spark_reader import FEW_RECORDS, BlockReader
from aggregator.maintenance.retention import Retention
from aggregator.maintenance.tasks import MaintenanceLoop
from aggregator.metrics import AggregatorMetrics
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.feed import ReportFeed
from aggregator.set_aside import SetAside
from lagloss_server.base.settings import Settings
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.store import Store
from tests.support.kafka_log import PATIENCE, pause_s


def wait_until(true: Callable[[], Any], timeout_s: float = 60, what: str = "") -> Any:
    """Wait for a condition and return what it returned; an AssertionError after `timeout_s`, in CI after twice that."""
    timeout_s *= PATIENCE
    began = time.monotonic()
    while True:
        found = true()
        if found:
            return found
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"waited {timeout_s} s in vain {what}"
        time.sleep(pause_s(waited_s))


@dataclass(frozen=True)
class Driven:
    """The parts of an aggregator."""

    store: Store
    watch: DefinitionRegistry
    closer: Closer
    metrics: AggregatorMetrics
    failures: SetAside
    follower: ReportConsumer
    beacons: BeaconLog
    reports: BeaconLog

    def follow_all(self, *, refresh: bool = True) -> None:
        """Waits until the stream has followed every report there is now; `refresh`: the closer learns of it."""
        ends = self.reports.ends()

        def caught_up() -> bool:
            positions = self.follower.positions()
            return all(positions.get(partition, 0) >= end for partition, end in ends.items())

        wait_until(caught_up, what="for the reports to be followed")
        if refresh:
            self.watch.refresh()

    def upkeep(self) -> MaintenanceLoop:
        """What is done beside closing."""
        engine = self.store.engine
        retention = Retention(engine, self.closer, self.watch, self.metrics, Settings())
        return MaintenanceLoop(engine, self.closer, self.watch, retention, self.metrics, self.failures)

    def another(self) -> Driven:
        """The same with another closer, which has not looked at anything yet."""
        metrics = AggregatorMetrics()
        watch = DefinitionRegistry(self.store.engine, self.store, metrics)
        failures = SetAside(self.store.engine)
        closer = Closer(self.store.engine, watch, self.closer.reads.reader, self.beacons, metrics, failures)
        return replace(self, watch=watch, closer=closer, metrics=metrics, failures=failures)


@contextmanager
def driven(
    spark: SparkSession, bootstrap: str, store: Store, beacons: str, reports: str, *, few: int = FEW_RECORDS
) -> Iterator[Driven]:
    """An aggregator's parts on these topics, its stream running; `few`: so many records are counted without workers."""
    logs = BeaconLog(bootstrap, beacons), BeaconLog(bootstrap, reports)
    follower = ReportConsumer(store.engine, reports, logs[1].topic_id())
    reader = BlockReader(spark, bootstrap, beacons, len(logs[0].partitions()), few)
    metrics = AggregatorMetrics()
    watch = DefinitionRegistry(store.engine, store, metrics)
    watch.refresh()
    failures = SetAside(store.engine)
    closer = Closer(store.engine, watch, reader, logs[0], metrics, failures)
    try:
        with ReportFeed(bootstrap, follower, watch.look):
            yield Driven(store, watch, closer, metrics, failures, follower, *logs)
    finally:
        for log in logs:
            log.close()

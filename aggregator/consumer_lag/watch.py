"""Watch of consumer lag: a thread that reads it every 10 s, and stores it by the minute of the reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
from confluent_kafka import KafkaException
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from aggregator.consumer_lag.lag import ConsumerLags
from aggregator.consumer_lag.progress import GroupProgress, read_histories
from aggregator.consumer_lag.queues import QueueLags
from aggregator.consumer_lag.rows import keep, keep_groups
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import QUEUES, NodeGroup, PartitionLag
from aggregator.outage import is_outage
from aggregator.set_aside import Item, SetAside, isolate
from lagloss.broker.connection import KafkaConnection
from lagloss.errors import BadSetting
from lagloss_server.base.turns import WatchedLoop
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.store.partitions import make_days_ahead

log = structlog.get_logger()

EVERY_S: Final = 10.0
ROUND_LIMIT_S: Final = 1_800.0
"""Longest normal round: each cluster that is away costs its time-outs."""
Lags = ConsumerLags | QueueLags
CLOSE_S: Final = 1.0
"""How long an end waits for a round under way: what that writes is right whenever it comes."""


@dataclass
class RoundFindings:
    """Findings of a round."""

    lags: list[PartitionLag] = field(default_factory=list)
    groups: dict[NodeGroup, GroupDescription] = field(default_factory=dict)


class ConsumerLagWatch:
    """Thread that reads consumer lags. Closing never waits for it; a new error is logged, the next round tries again.

    Args:
        groups: returns the consumer groups to read now; called from the thread.
    """

    def __init__(
        self,
        bootstrap: str,
        engine: Engine,
        groups: Callable[[], Collection[NodeGroup]],
        metrics: AggregatorMetrics,
        failures: SetAside,
    ) -> None:
        self.loop = WatchedLoop("the consumer lag loop", ROUND_LIMIT_S)
        self._bootstrap = bootstrap
        self._engine = engine
        self._groups = groups
        self._metrics = metrics
        self._failures = failures
        self._progress = GroupProgress(partial(read_histories, engine))
        self._troubles: Mapping[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer-lag", daemon=True)

    def start(self) -> None:
        """Create the first days' partitions, which maintenance continues, before other writers start; then read
        lags."""
        make_days_ahead(self._engine, time.time())
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and drop the metrics."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        self._metrics.consumer_lag(())

    def round(self, lags_in: Callable[[str], Lags]) -> None:
        """Read the lags once, cluster by cluster, and store them; a cluster that is away costs no other its lags, and a
        group that cannot be read or stored is set aside alone."""
        by_cluster: dict[str, list[NodeGroup]] = {}
        for group in self._wanted():
            by_cluster.setdefault(group.cluster, []).append(group)
        findings = RoundFindings()
        troubles: dict[str, str] = {}
        for cluster, groups in by_cluster.items():
            try:
                lags = lags_in(cluster)
                isolate(groups, lambda some, lags=lags: self._read(lags, some, findings), self._set_aside)  # type: ignore[misc]
                troubles |= {cluster: lags.trouble} if lags.trouble else {}
            except (KafkaException, TimeoutError, DBAPIError, BadSetting) as error:
                troubles[cluster] = str(error) or type(error).__name__
            except Exception as error:  # our bug costs a round, and not the watch
                troubles[cluster] = repr(error)
                log.exception("consumer lag failed", cluster=cluster)
        self._note(troubles)
        if not self._stop.is_set():
            self._metrics.consumer_lag(findings.lags, findings.groups)

    def _wanted(self) -> list[NodeGroup]:
        """Return the groups to read now: not those that are set aside until their time has come."""
        groups, now_ms = self._groups(), int(time.time() * 1_000)
        waiting, items = set(self._failures.waiting("group", now_ms)), {_item(group) for group in groups}
        due = self._failures.due("group", now_ms)
        self._failures.forget(item for item in (*waiting, *due) if item not in items)
        self._progress.forget({group.pipeline for group in groups})
        return [group for group in groups if _item(group) not in waiting]

    def _read(self, lags: Lags, groups: Collection[NodeGroup], findings: RoundFindings) -> int:
        """Read, judge and store the lags of these groups, and add them to what was found."""
        asked_ms, read = lags.read(groups)
        described = lags.describe(groups)
        some = self._progress.judge(asked_ms, read, described)
        if self._stop.is_set():
            return 0
        with self._engine.begin() as connection:
            if some:
                keep(connection, asked_ms, some)
            keep_groups(connection, asked_ms, described)
            self._failures.done(connection, {_item(group) for group in groups})
        self._progress.take(asked_ms, some)
        findings.lags += some
        findings.groups |= described
        return len(some)

    def _set_aside(self, group: NodeGroup, error: Exception) -> None:
        self._failures.put(_item(group), error)

    def _run(self) -> None:
        opened: dict[str, Lags] = {}

        def open_lags(cluster: str) -> Lags:
            if cluster == QUEUES:
                return QueueLags()
            return ConsumerLags(KafkaConnection.named(cluster) if cluster else self._bootstrap)

        def lags_in(cluster: str) -> Lags:
            if cluster not in opened:
                opened[cluster] = open_lags(cluster)
            return opened[cluster]

        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self.round(lags_in)
                except Exception as error:  # whatever it is costs a round, and not the watch
                    if not is_outage(error):
                        log.exception("consumer lag failed")
                self.loop.finished()
                self._stop.wait(max(0.0, began + EVERY_S - time.monotonic()))
        finally:
            for lags in opened.values():
                lags.close()

    def _note(self, troubles: Mapping[str, str]) -> None:
        """Count each cluster's trouble, and log one that is new."""
        for cluster, trouble in troubles.items():
            self._metrics.consumer_lag_failures.inc()
            if trouble != self._troubles.get(cluster):
                log.warning("consumer lag read failed", cluster=cluster, trouble=trouble)
        self._troubles = troubles


def _item(group: NodeGroup) -> Item:
    return Item("group", group.pipeline, group.group)

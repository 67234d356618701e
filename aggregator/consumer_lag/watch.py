"""Watch of consumer lag: a thread that reads it every 10 s, and stores it by the minute of the reading."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
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
from aggregator.consumer_lag.summary import summarize
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import QUEUES, NodeGroup, PartitionLag
from aggregator.outage import is_outage
from aggregator.set_aside import Item, SetAside, isolate
from lagloss.broker.connection import KafkaConnection, prefix_of
from lagloss.errors import BadSetting
from lagloss_server.base.errors import Boto3Missing
from lagloss_server.base.turns import WatchedLoop
from lagloss_server.groups.cluster_groups import (
    ClusterGroup,
    Kind,
    NamedBy,
    forget_cluster_groups,
    forget_other_clusters,
    keep_cluster_groups,
)
from lagloss_server.groups.consumer_groups import DEAD, GroupDescription, ListedGroup
from lagloss_server.groups.coverage import keep_cluster_topics
from lagloss_server.model.taps import Extraction
from lagloss_server.store.partitions import make_days_ahead

log = structlog.get_logger()

EVERY_S: Final = 10.0
TOPICS_EVERY_S: Final = 60.0
"""Between two lists of a cluster's topics."""
ROUND_LIMIT_S: Final = 1_800.0
"""Longest normal round: each cluster that is away costs its time-outs."""
MAX_GROUPS: Final = 10_000
"""Of a cluster, that are read: 2,000 take 11 s. Those that definitions name come first."""
Lags = ConsumerLags | QueueLags
CLOSE_S: Final = 1.0
"""How long an end waits for a round under way: what that writes is right whenever it comes."""


OWN_GROUPS: Final = "lagloss-*"
"""Groups of lagloss's own processes, which are left out."""


@dataclass(frozen=True, slots=True)
class WatchedGroups:
    """What a round reads: the groups that definitions name; by cluster and topic, where the records of tapped topics
    say their event times; and the globs, separated by commas, of the groups that are read whether or not they are
    named."""

    named: Collection[NodeGroup]
    expressions: Mapping[tuple[str, str], Extraction] = field(default_factory=dict)
    patterns: str = "*"

    @property
    def clusters(self) -> list[str]:
        """All clusters to look at, that of lagloss's own topics first."""
        named = {group.cluster for group in self.named}
        known = {prefix_of(cluster) for cluster in named}
        return [
            "",
            *sorted(
                (named | {name for name in KafkaConnection.cluster_names() if prefix_of(name) not in known}) - {""}
            ),
        ]

    def matches(self, group: str) -> bool:
        """Return whether a group is to be read though no definition may name it."""
        globs = [pattern.strip() for pattern in self.patterns.split(",")]
        return not fnmatchcase(group, OWN_GROUPS) and any(fnmatchcase(group, pattern) for pattern in globs)

    def of_cluster(self, cluster: str) -> dict[str, Extraction]:
        """Return the expressions of a cluster's topics."""
        return {topic: expression for (name, topic), expression in self.expressions.items() if name == cluster}


@dataclass
class ClusterRound:
    """What a round has read of a cluster. `groups`: those to read, first the ones that definitions name; `listed`: all
    that exist, None where they could not be listed."""

    cluster: str
    groups: list[NodeGroup] = field(default_factory=list)
    asked_ms: int = 0
    listed: Mapping[str, ListedGroup] | None = None
    trouble: str | None = None
    """Why some of them are left out."""
    lags: list[PartitionLag] = field(default_factory=list)
    described: dict[NodeGroup, GroupDescription] = field(default_factory=dict)

    def others(self, wanted: WatchedGroups) -> list[NodeGroup]:
        """Return the listed groups that no definition names."""
        named = {group.group for group in wanted.named if group.cluster == self.cluster and group.offsets is None}
        return [
            NodeGroup("", "", name, self.cluster)
            for name in sorted(self.listed or ())
            if name not in named and wanted.matches(name)
        ]

    def add_others(self, wanted: WatchedGroups) -> None:
        """Add the groups that no definition names, up to `MAX_GROUPS` in all."""
        others, room = self.others(wanted), max(0, MAX_GROUPS - len(self.groups))
        self.groups += others[:room]
        if len(others) > room:
            self.trouble = f"expected up to {MAX_GROUPS:,} groups, found more; choose some by LAGLOSS_GROUPS"

    def summaries(self) -> list[ClusterGroup]:
        """Return a summary of each group that exists, and of each source connector that has offsets and no group's
        name."""
        by_name: defaultdict[str, dict[NodeGroup, list[PartitionLag]]] = defaultdict(dict)
        for group in self.described:
            by_name[group.group].setdefault(group, [])
        for lag in self.lags:
            if lag.group.offsets is None or lag.group.group not in (self.listed or {}):
                by_name[lag.group.group].setdefault(lag.group, []).append(lag)
        summaries = []
        for name, lags_by_node in by_name.items():
            lags = next(iter(lags_by_node.values()))  # of the nodes that name it, each has the same
            is_connector = all(group.offsets is not None for group in lags_by_node)
            listed = (self.listed or {}).get(name, ListedGroup("consumer", ""))
            descriptions = (self.described[group] for group in lags_by_node if group in self.described)
            description = next(descriptions, GroupDescription(listed.state))
            if description.state == DEAD:  # of a protocol that cannot be described, or deleted meanwhile
                description = GroupDescription(listed.state)
            if lags or listed.state:
                named_by = [NamedBy(group.pipeline, group.node) for group in lags_by_node if group.pipeline]
                kind: Kind = "connect" if is_connector else listed.kind
                summaries.append(summarize(self.cluster, name, kind, description, lags, named_by))
        return summaries


class ConsumerLagWatch:
    """Thread that reads consumer lags. Closing never waits for it; a new error is logged, the next round tries again.

    Args:
        groups: returns the consumer groups to read now; called from the thread.
    """

    def __init__(
        self,
        bootstrap: str,
        engine: Engine,
        groups: Callable[[], WatchedGroups],
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
        self._clusters: Sequence[str] = ()
        """Those of which alone groups are stored."""
        self._topics_listed: dict[str, float] = {}
        """By cluster, when its topics were listed last (monotonic s)."""
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
        wanted = self._groups()
        troubles: dict[str, str] = {}
        rounds = [
            ClusterRound(cluster, [group for group in wanted.named if group.cluster == cluster])
            for cluster in wanted.clusters
        ]
        for cluster_round in rounds:
            cluster = cluster_round.cluster
            try:
                lags = lags_in(cluster)
                self._read_cluster(lags, wanted, cluster_round)
                trouble = lags.trouble or cluster_round.trouble
                troubles |= {cluster: trouble} if trouble else {}
            except (KafkaException, TimeoutError, DBAPIError, BadSetting, Boto3Missing) as error:
                troubles[cluster] = str(error) or type(error).__name__
            except Exception as error:  # our bug costs a round, and not the watch
                troubles[cluster] = repr(error)
                log.exception("consumer lag failed", cluster=cluster)
        self._forget(rounds)
        self._forget_other_clusters(wanted.clusters)
        self._note(troubles)
        if not self._stop.is_set():
            all_lags = [lag for cluster_round in rounds for lag in cluster_round.lags]
            descriptions = {
                group: description
                for cluster_round in rounds
                for group, description in cluster_round.described.items()
                if group.pipeline
            }
            self._metrics.consumer_lag(all_lags, descriptions)

    def _read_cluster(self, lags: Lags, wanted: WatchedGroups, reading: ClusterRound) -> None:
        """Read the groups of a cluster, those that definitions name and all others; what is read is stored."""
        if isinstance(lags, ConsumerLags):
            try:
                reading.listed = lags.listed()
                reading.add_others(wanted)
            except KafkaException:
                if not reading.groups:
                    raise
                # the groups that are named may be readable though they cannot be listed
        waiting = set(self._failures.waiting("group", int(time.time() * 1_000)))
        due = [group for group in reading.groups if _item(group) not in waiting]
        expressions = wanted.of_cluster(reading.cluster)
        isolate(due, lambda some: self._read(lags, some, expressions, reading), self._set_aside)
        if reading.listed is not None and not self._stop.is_set():
            with self._engine.begin() as connection:
                summaries = reading.summaries()
                keep_cluster_groups(connection, reading.asked_ms, summaries)
                existing = reading.listed.keys() | {summary.group for summary in summaries}
                forget_cluster_groups(connection, reading.cluster, existing)
        if isinstance(lags, ConsumerLags):
            self._list_topics(lags, reading.cluster)

    def _list_topics(self, lags: ConsumerLags, cluster: str) -> None:
        """Store the names of a cluster's topics, once a minute. Raises KafkaException."""
        now = time.monotonic()
        if now - self._topics_listed.get(cluster, -TOPICS_EVERY_S) < TOPICS_EVERY_S or self._stop.is_set():
            return
        topics = lags.topics()
        with self._engine.begin() as connection:
            keep_cluster_topics(connection, cluster, int(time.time() * 1_000), topics)
        self._topics_listed[cluster] = now

    def _read(
        self, lags: Lags, groups: Collection[NodeGroup], expressions: Mapping[str, Extraction], reading: ClusterRound
    ) -> int:
        """Read, judge and store the lags of these groups, and add them to what was read."""
        asked_ms, read = lags.read(groups, expressions)
        described = lags.describe(groups)
        some = self._progress.judge(asked_ms, read, described)
        if self._stop.is_set():
            return 0
        named = [lag for lag in some if lag.group.pipeline]
        with self._engine.begin() as connection:
            if named:
                keep(connection, asked_ms, named)
            keep_groups(connection, asked_ms, {group: words for group, words in described.items() if group.pipeline})
            self._failures.done(connection, {_item(group) for group in groups})
        self._progress.take(asked_ms, some)
        reading.asked_ms = max(reading.asked_ms, asked_ms)
        reading.lags += some
        reading.described |= described
        return len(some)

    def _forget(self, rounds: Sequence[ClusterRound]) -> None:
        """Forget groups that are not read any more; those of a cluster that could not be listed may still exist."""
        if any(cluster_round.listed is None and cluster_round.cluster != QUEUES for cluster_round in rounds):
            return
        groups = [group for cluster_round in rounds for group in cluster_round.groups]
        self._progress.forget_others(groups)
        items, now_ms = {_item(group) for group in groups}, int(time.time() * 1_000)
        put_aside = (*self._failures.waiting("group", now_ms), *self._failures.due("group", now_ms))
        self._failures.forget(item for item in put_aside if item not in items)

    def _forget_other_clusters(self, clusters: Sequence[str]) -> None:
        """Delete the rows of clusters that neither the environment nor a definition names any more."""
        if clusters != self._clusters:
            with self._engine.begin() as connection:
                forget_other_clusters(connection, clusters)
            self._clusters = clusters

    def _set_aside(self, group: NodeGroup, error: Exception) -> None:
        self._failures.put(_item(group), error)

    def _run(self) -> None:
        opened: dict[str, Lags] = {}

        def open_lags(cluster: str) -> Lags:
            if cluster == QUEUES:
                return QueueLags()
            return ConsumerLags(
                KafkaConnection.named(cluster) if cluster else self._bootstrap, cluster, self._bootstrap
            )

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
    named = group.group if group.pipeline or not group.cluster else f"{group.cluster}/{group.group}"
    return Item("group", group.pipeline, named)

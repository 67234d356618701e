"""Clusters and schema registries of taps, as the environment names them."""

from __future__ import annotations

import time

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss_server.base.settings import Settings
from taps.cluster_topics import ClusterTopics
from taps.commit_log import CommitLog, GroupCommits, PolledGroups
from taps.consumers import SharedConsumers
from taps.pool import TurnPool
from taps.rounds import TapRounds
from taps.runner import TapRunner
from taps.source_offsets import SourceLog, source_log
from taps.store import TapStore
from taps.topic_reader import PEEKING, TopicReader


def cluster_of(name: str, settings: Settings) -> Cluster:
    """Return the connection to a named cluster; empty: the one of lagloss's own topics.

    Raises:
        BadSetting: the environment does not know it.
        NotConfigured: no Kafka is known.
    """
    return KafkaConnection.named(name) if name else settings.require_kafka()


class TapCluster:
    """What all taps of one cluster share."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rounds: TapRounds | None = None
        self.pool: TurnPool[TapRunner] = TurnPool(f"taps of cluster {name}" if name else "taps")
        self.topics = ClusterTopics(cluster)
        self.consumers = SharedConsumers(cluster)
        self.peeks = SharedConsumers(cluster, PEEKING, kept=1)
        self.groups = PolledGroups(cluster)
        self.commits = CommitLog.of_groups(cluster, self.topics, self.consumers, self.peeks)
        self._sources: dict[str, SourceLog] = {}

    def reader(self, topic: str) -> TopicReader:
        """Return a reader of one topic."""
        return TopicReader(self.cluster, topic, self.topics, self.consumers, self.peeks)

    def group_commits(self, group: str, topic: str) -> GroupCommits:
        """Return a reader of a group's commits in one topic."""
        return GroupCommits(self.commits, self.groups, group, topic)

    def source_offsets(self, topic: str) -> SourceLog:
        """Return the log of the offsets that source connectors have stored in a topic."""
        return self._sources.setdefault(topic, source_log(self.cluster, self.topics, topic, self.consumers, self.peeks))

    def start(self, store: TapStore) -> TapRounds:
        """Begin to go round the runners of the pool that rest."""
        self.rounds = TapRounds(self.pool.name, self, store)
        self.rounds.start()
        return self.rounds

    def close(self, timeout_s: float) -> None:
        """Give no more turns, and close all clients unless some still work when this time is up."""
        deadline = time.monotonic() + timeout_s
        has_ended = self.pool.close(timeout_s)
        if self.rounds is not None:
            has_ended &= self.rounds.close(max(0.0, deadline - time.monotonic()))
        if not has_ended:
            return
        self.topics.close()
        self.commits.close()
        for log in self._sources.values():
            log.close()
        self.groups.close()
        self.consumers.close()
        self.peeks.close()

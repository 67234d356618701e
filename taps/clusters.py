"""Clusters and schema registries of taps, as the environment names them."""

from __future__ import annotations

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss_server.base.settings import Settings
from taps.cluster_topics import ClusterTopics
from taps.commit_log import CommitLog
from taps.source_offsets import SourceLog, source_log


def cluster_of(name: str, settings: Settings) -> Cluster:
    """Return the connection to a named cluster; empty: the one of lagloss's own topics.

    Raises:
        BadSetting: the environment does not know it.
        NotConfigured: no Kafka is known.
    """
    return KafkaConnection.named(name) if name else settings.require_kafka()


class TapCluster:
    """What all taps of one cluster share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topics = ClusterTopics(cluster)
        self.commits = CommitLog.of_groups(cluster, self.topics)
        self._sources: dict[str, SourceLog] = {}

    def source_offsets(self, topic: str) -> SourceLog:
        """Return the log of the offsets that source connectors have stored in a topic."""
        return self._sources.setdefault(topic, source_log(self.cluster, self.topics, topic))

    def close(self) -> None:
        self.commits.close()
        for log in self._sources.values():
            log.close()

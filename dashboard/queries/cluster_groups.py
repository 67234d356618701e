"""All consumer groups of the clusters, as their page and `/api/v1` show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lagloss_server.groups.cluster_groups import GroupReading, read_cluster_groups, read_clusters
from lagloss_server.store.store import Store


@dataclass(frozen=True, slots=True)
class GroupFilters:
    """Which groups are asked for. `cluster`: None for any; `text`: a glob, or part of a name in any case."""

    cluster: str | None = None
    text: str = ""

    def matches(self, reading: GroupReading) -> bool:
        if any(sign in self.text for sign in "*?["):
            return reading.matches(self.cluster, self.text)
        return reading.matches(self.cluster, "*") and self.text.lower() in reading.group.group.lower()


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """Groups that match, worst first, and of all groups that can be seen the clusters and the number."""

    matching: Sequence[GroupReading]
    clusters: Sequence[str]
    total: int

    @property
    def waiting(self) -> int:
        """Number of the matching groups with something unread."""
        return sum(reading.group.waits for reading in self.matching)


def read_groups(store: Store, filters: GroupFilters) -> ClusterGroups:
    """Read the groups that the reader may see: of a team, those that its pipelines name, without other pipelines that
    name them, too."""
    with store.engine.connect() as connection:
        readings = read_cluster_groups(connection)
    shown = set(store.names())
    readings = [GroupReading(reading.asked_ms, reading.group.shown_to(shown)) for reading in readings]
    clusters = sorted({reading.group.cluster for reading in readings})
    return ClusterGroups([reading for reading in readings if filters.matches(reading)], clusters, len(readings))


def clusters_of(store: Store) -> list[str]:
    """Read the names of the clusters whose groups the reader may see."""
    with store.engine.connect() as connection:
        return read_clusters(connection)

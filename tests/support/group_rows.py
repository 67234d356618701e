"""Consumer groups of a cluster as the aggregator stores them."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.consumer_lag.summary import summarize
from aggregator.node_groups import NodeGroup, PartitionLag
from lagloss_server.groups.cluster_groups import ClusterGroup, NamedBy
from lagloss_server.groups.consumer_groups import GroupDescription


def group(name: str, named_by: Sequence[NamedBy]) -> ClusterGroup:
    """A consumer group with something unread."""
    lags = [PartitionLag(NodeGroup("", "", name), f"{name}-topic", 0, 3, 1_500, basis="timestamp")]
    return summarize("", name, "consumer", GroupDescription("Stable", 1), lags, named_by)


def labels_of(group: NodeGroup) -> dict[str, str]:
    """Return the labels of a group in metrics."""
    return dict(zip(("pipeline", "node", "group", "cluster"), group[:4], strict=True))

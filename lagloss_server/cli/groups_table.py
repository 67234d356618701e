"""The table of `lagloss groups` for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Column, Table

from lagloss_server.base import format as fmt
from lagloss_server.groups.cluster_groups import ClusterGroup, GroupReading, behind_text, pipelines_text


def groups_table(readings: Iterable[GroupReading], now_s: float) -> Table:
    """Lay out consumer groups, one per row, worst first."""
    names = ("cluster", "group", "state", "members", "status", "lag", "behind", "time to loss", "topics", "pipelines")
    table = Table(*(Column(name, no_wrap=name not in ("topics", "pipelines")) for name in names), box=None)
    for reading in readings:
        group = reading.group
        table.add_row(
            group.cluster,
            group.group,
            _state(group),
            fmt.NOTHING if group.kind == "connect" else fmt.count(group.members),
            group.status or fmt.NOTHING,
            fmt.count(group.lag),
            behind_text(group),
            fmt.duration_s(group.time_to_loss_s(now_s)),
            ", ".join(topic.topic for topic in group.topics),
            pipelines_text(group.named_by),
        )
    return table


def _state(group: ClusterGroup) -> str:
    if group.kind == "connect":
        return "(connector)"
    return group.state if group.kind == "consumer" else f"{group.state} (share)"

"""Consumer groups, worst first: those that definitions name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, TypedDict

from dashboard.queries.consumer_groups import ConsumerGroup, read_consumer_groups
from lagloss_server.groups.progress import NOW_S, PartitionNow
from lagloss_server.groups.velocity import STATUSES, Status
from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.store import Store

Basis = Literal["event-time", "timestamp"]


class GroupTopicDocument(TypedDict):
    """A topic that a group reads. `behind_s`: age of the first unread record, 0 if nothing waits; `basis`: the time
    that the age is of. Null: unknown."""

    topic: str
    partitions: int
    lag: int | None
    behind_s: float | None
    basis: Basis | None


class GroupDocument(TypedDict):
    """A consumer group now: `behind_s` and `basis` of its worst topic; `time_to_loss_s`: until retention deletes an
    unread record, at the present velocity. Null: unknown or none. `cluster`: empty for the cluster of lagloss's topics.
    """

    cluster: str
    group: str
    state: str | None
    members: int | None
    status: Status | None
    lag: int | None
    behind_s: float | None
    basis: Basis | None
    time_to_loss_s: float | None
    topics: list[GroupTopicDocument]


def groups(store: Store, pipelines: Sequence[str] | None = None) -> list[GroupDocument]:
    """Return the groups of these pipelines, or of all, worst first: waiting ones before idle ones, by `behind_s`."""
    now_s = time.time()
    recent = TimeRange(int(now_s) - NOW_S, int(now_s))
    documents = []
    for stored in store.pipelines(pipelines):
        clusters = {node.name: node.input_cluster for node in stored.definition.spec.nodes}
        for group in read_consumer_groups(store, stored, recent, now_s):
            documents.append(_document(group, clusters[group.node], now_s))
    return sorted(documents, key=_goodness)


def _document(group: ConsumerGroup, cluster: str, now_s: float) -> GroupDocument:
    by_topic = groupby(sorted(group.partitions, key=_topic), key=_topic)
    topics = [_topic_document(topic, list(partitions)) for topic, partitions in by_topic]
    worst = max((topic for topic in topics if topic["behind_s"] is not None), key=_behind_s, default=None)
    losses_s = [partition.loss_ms / 1_000 for partition in group.partitions if partition.loss_ms is not None]
    return {
        "cluster": cluster,
        "group": group.group,
        "state": None if group.described is None else group.described.state,
        "members": None if group.described is None else group.described.members,
        "status": group.status,
        "lag": group.lag,
        "behind_s": None if worst is None else worst["behind_s"],
        "basis": None if worst is None else worst["basis"],
        "time_to_loss_s": max(0.0, min(losses_s) - now_s) if losses_s else None,
        "topics": sorted(topics, key=lambda topic: -_behind_s(topic)),
    }


def _topic_document(topic: str, partitions: Sequence[PartitionNow]) -> GroupTopicDocument:
    lags = [partition.lag for partition in partitions if partition.lag is not None]
    behind_ms = [0 if partition.lag == 0 else partition.behind_ms for partition in partitions]
    known_ms = [value for value in behind_ms if value is not None]
    behind_s = max(known_ms) / 1_000 if known_ms else None
    return {
        "topic": topic,
        "partitions": len(partitions),
        "lag": sum(lags) if lags else None,
        "behind_s": behind_s,
        "basis": None if behind_s is None else "event-time",
    }


def _goodness(group: GroupDocument) -> tuple[bool, float, int, str]:
    status = group["status"]
    return (
        not group["lag"],
        -(group["behind_s"] or 0.0),
        -1 if status is None else -STATUSES.index(status),
        group["group"],
    )


def _topic(partition: PartitionNow) -> str:
    return partition.of.topic


def _behind_s(topic: GroupTopicDocument) -> float:
    return topic["behind_s"] or 0.0

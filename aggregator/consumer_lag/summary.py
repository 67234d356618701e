"""Summary of a consumer group: what its partitions come to, as one row for `lagloss groups`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from aggregator.node_groups import PartitionLag
from lagloss_server.groups.cluster_groups import ClusterGroup, HottestPartition, Kind, NamedBy, TopicLag
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.velocity import worst


def summarize(
    cluster: str,
    name: str,
    kind: Kind,
    description: GroupDescription,
    lags: Sequence[PartitionLag],
    named_by: Iterable[NamedBy],
) -> ClusterGroup:
    """Return the summary of a group by the lags of all its partitions."""
    lag, hottest = _total(lags), _hottest(lags)
    progress = [lag.progress for lag in lags if lag.progress is not None]
    commits_per_s = _sum(partition.velocity.commits_per_s for partition in progress)
    status = worst(partition.status for partition in progress)
    if lag and kind != "connect" and not description.members and status in (None, "ok"):
        status = "warning" if commits_per_s else "stopped"  # the commits of Flink, say, go on without members
    return ClusterGroup(
        cluster=cluster,
        group=name,
        kind=kind,
        state=description.state,
        members=description.members,
        status=status,
        lag=lag,
        behind_s=_behind_s(lag, hottest),
        basis=None if hottest is None else hottest.basis,
        commits_per_s=commits_per_s,
        appends_per_s=_sum(partition.velocity.appends_per_s for partition in progress),
        loss_ms=min((partition.loss_ms for partition in progress if partition.loss_ms is not None), default=None),
        hottest=None
        if hottest is None or not lag
        else HottestPartition(hottest.topic, hottest.partition, hottest.offsets, _seconds(hottest.behind_ms)),
        topics=tuple(_topic(topic, some) for topic, some in sorted(_by_topic(lags).items())),
        named_by=tuple(sorted(named_by, key=lambda named: (named.pipeline, named.node))),
    )


def _topic(topic: str, lags: Sequence[PartitionLag]) -> TopicLag:
    lag, hottest = _total(lags), _hottest(lags)
    behind_s = _behind_s(lag, hottest)
    problems = (partition.problem for partition in lags if partition.problem is not None)
    return TopicLag(
        topic=topic,
        partitions=len(lags),
        lag=lag,
        behind_s=behind_s,
        basis=None if hottest is None else hottest.basis,
        problem=next(problems, None) if behind_s is None else None,
    )


def _by_topic(lags: Iterable[PartitionLag]) -> dict[str, list[PartitionLag]]:
    by_topic: defaultdict[str, list[PartitionLag]] = defaultdict(list)
    for lag in lags:
        by_topic[lag.topic].append(lag)
    return by_topic


def _total(lags: Iterable[PartitionLag]) -> int | None:
    """Return the offsets of all partitions of which they are known; None if they are of none."""
    offsets = [lag.offsets for lag in lags if lag.offsets is not None]
    return sum(offsets) if offsets else None


def _hottest(lags: Iterable[PartitionLag]) -> PartitionLag | None:
    """Return the waiting partition that is furthest behind: by time, if that is known of any, else by offsets."""
    waiting = [lag for lag in lags if lag.offsets]
    return max(
        waiting,
        key=lambda lag: (lag.behind_ms is not None, lag.behind_ms or 0, lag.offsets or 0),
        default=None,
    )


def _behind_s(lag: int | None, hottest: PartitionLag | None) -> float | None:
    """Return 0 if nothing waits."""
    if hottest is None:
        return 0.0 if lag == 0 else None
    return _seconds(hottest.behind_ms)


def _seconds(behind_ms: int | None) -> float | None:
    return None if behind_ms is None else round(behind_ms / 1_000, 3)


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known else None

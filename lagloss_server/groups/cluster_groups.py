"""Every consumer group of the clusters, whether a definition names it or not, as it was read last.

One row for each in PostgreSQL, written by the aggregator every 10 s; `lagloss groups`, the page and the API print it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, TypedDict

import msgspec
from sqlalchemy import Connection, delete, select

from lagloss_server.base import format as fmt
from lagloss_server.groups.velocity import STATUSES, Status
from lagloss_server.model.window import rfc3339
from lagloss_server.store.bulk import as_json, stage
from lagloss_server.store.schema import core as tables

Basis = Literal["event-time", "timestamp"]
"""What says since when the first unread record is under way: its event time, by a header of lagloss or the expression
of a tap of its topic, or else the record's timestamp."""
Kind = Literal["consumer", "share", "connect"]
"""`share`: a share group (KIP-932), whose members share partitions. `connect`: a source connector of Kafka Connect that
a definition names, by the offsets that its workers store; its state and members are unknown."""
OWN_CLUSTER: Final = "lagloss's own"
CURRENT_S: Final = 60.0
"""An older reading is not current: the aggregator, or the cluster, is away."""


class NamedBy(msgspec.Struct, frozen=True):
    """A node whose definition names the group."""

    pipeline: str
    node: str


class TopicLag(msgspec.Struct, frozen=True):
    """How far a group is behind in a topic; None: unknown. `problem`: why `behind_s` is."""

    topic: str
    partitions: int
    lag: int | None
    behind_s: float | None
    basis: Basis | None
    problem: str | None = None


class HottestPartition(msgspec.Struct, frozen=True):
    """The partition that is furthest behind."""

    topic: str
    partition: int
    lag: int | None
    behind_s: float | None


class ClusterGroup(msgspec.Struct, frozen=True):
    """A consumer group. `behind_s`: age in seconds of its first unread record, the largest of all its partitions, 0 if
    nothing waits. `loss_ms`: when retention deletes an unread message at these rates (epoch ms). None: unknown."""

    cluster: str
    group: str
    kind: Kind
    state: str
    members: int
    status: Status | None
    lag: int | None
    behind_s: float | None
    basis: Basis | None
    commits_per_s: float | None
    appends_per_s: float | None
    loss_ms: int | None
    hottest: HottestPartition | None
    topics: tuple[TopicLag, ...]
    named_by: tuple[NamedBy, ...]

    def shown_to(self, pipelines: Collection[str]) -> ClusterGroup:
        """Return it as who may see these pipelines sees it: without nodes of others."""
        named_by = tuple(named for named in self.named_by if named.pipeline in pipelines)
        return msgspec.structs.replace(self, named_by=named_by)

    @property
    def waits(self) -> bool:
        """Whether something is unread."""
        return bool(self.lag)

    @property
    def urgency(self) -> tuple[bool, float, int, int]:
        """Key of the order: what waits before what does not, by seconds behind, then by status and offsets."""
        status = -1 if self.status is None else STATUSES.index(self.status)
        return self.waits, -1.0 if self.behind_s is None else self.behind_s, status, self.lag or 0

    def time_to_loss_s(self, now_s: float) -> float | None:
        """Return the seconds until retention deletes an unread message at these rates; None if it does not."""
        return None if self.loss_ms is None else max(0.0, round(self.loss_ms / 1_000 - now_s, 1))


class GroupDocument(TypedDict):
    """A consumer group as `lagloss groups --json` prints it: see `ClusterGroup`."""

    cluster: str
    group: str
    kind: Kind
    state: str
    members: int
    status: Status | None
    lag: int | None
    behind_s: float | None
    basis: Basis | None
    time_to_loss_s: float | None
    commits_per_s: float | None
    appends_per_s: float | None
    hottest: HottestPartition | None
    topics: tuple[TopicLag, ...]
    pipelines: tuple[NamedBy, ...]
    asked_at: str


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group, and when it was read (epoch ms)."""

    asked_ms: int
    group: ClusterGroup

    def is_current(self, now_s: float) -> bool:
        return now_s - self.asked_ms / 1_000 <= CURRENT_S

    def matches(self, cluster: str | None, pattern: str) -> bool:
        """Return whether the group is of this cluster (None: any), and its name matches a glob."""
        return cluster in (None, self.group.cluster) and fnmatchcase(self.group.group, pattern)

    def document(self, now_s: float) -> GroupDocument:
        group = self.group
        return {
            "cluster": group.cluster,
            "group": group.group,
            "kind": group.kind,
            "state": group.state,
            "members": group.members,
            "status": group.status,
            "lag": group.lag,
            "behind_s": group.behind_s,
            "basis": group.basis,
            "time_to_loss_s": group.time_to_loss_s(now_s),
            "commits_per_s": group.commits_per_s,
            "appends_per_s": group.appends_per_s,
            "hottest": group.hottest,
            "topics": group.topics,
            "pipelines": group.named_by,
            "asked_at": rfc3339(self.asked_ms // 1_000),
        }


def worst_first(readings: Iterable[GroupReading]) -> list[GroupReading]:
    """Sort the groups: those with something waiting first, by seconds behind."""
    by_name = sorted(readings, key=lambda reading: (reading.group.cluster, reading.group.group))
    return sorted(by_name, key=lambda reading: reading.group.urgency, reverse=True)


def keep_cluster_groups(connection: Connection, asked_ms: int, groups: Collection[ClusterGroup]) -> None:
    """Write these groups in place of what was known of them."""
    table = tables.table_of(tables.ClusterGroupRow)
    columns = ("cluster", "consumer_group", "asked_at", "pipelines", "document")
    rows = (
        (
            group.cluster,
            group.group,
            asked_ms,
            as_json(sorted({named.pipeline for named in group.named_by})),
            msgspec.json.encode(group),
        )
        for group in groups
    )
    upsert = stage(connection, table, columns, rows)
    newer = {name: upsert.excluded[name] for name in ("asked_at", "pipelines", "document")}
    connection.execute(upsert.on_conflict_do_update(index_elements=["cluster", "consumer_group"], set_=newer))


def forget_cluster_groups(connection: Connection, cluster: str, existing: Collection[str]) -> None:
    """Delete the groups of a cluster that do not exist any more."""
    row = tables.ClusterGroupRow
    gone = (row.cluster == cluster, ~tables.is_any(row.consumer_group, list(existing)))
    connection.execute(delete(row).where(*gone))


def forget_other_clusters(connection: Connection, clusters: Collection[str]) -> None:
    """Delete the groups of all other clusters."""
    row = tables.ClusterGroupRow
    connection.execute(delete(row).where(~tables.is_any(row.cluster, list(clusters))))


def read_cluster_groups(connection: Connection) -> list[GroupReading]:
    """Return all groups, worst first; without a row that a newer version wrote and this one cannot read."""
    row = tables.ClusterGroupRow
    readings = []
    for asked_ms, document in connection.execute(select(row.asked_at, row.document)):
        with suppress(msgspec.DecodeError):
            readings.append(GroupReading(asked_ms, msgspec.json.decode(document, type=ClusterGroup)))
    return worst_first(readings)


def read_clusters(connection: Connection) -> list[str]:
    """Return the names of the clusters of all groups, sorted; without reading the groups."""
    row = tables.ClusterGroupRow
    return list(connection.execute(select(row.cluster).distinct().order_by(row.cluster)).scalars())


def cluster_text(name: str) -> str:
    """Return the name of a cluster, or what stands for that of lagloss's own topics, which has none."""
    return name or OWN_CLUSTER


def behind_text(group: ClusterGroup) -> str:
    """Return the seconds behind for people; marked where they are those of the record's timestamp."""
    if group.behind_s is None:
        return fmt.NOTHING
    return fmt.duration_s(group.behind_s) if group.basis != "timestamp" else f"{fmt.duration_s(group.behind_s)} (ts)"


def pipelines_text(named_by: Sequence[NamedBy]) -> str:
    """Return the nodes that name a group."""
    return ", ".join(f"{named.pipeline}/{named.node}" for named in named_by)

"""Coverage: which topics and consumer groups of the clusters a definition names, and which none does.

The aggregator lists each cluster's topics once a minute, into one row of PostgreSQL per cluster; groups are those of
`cluster_groups`. Lagloss's own and internal ones (`__consumer_offsets`) are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypedDict, get_args

import msgspec
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert

from lagloss.broker.topics import BEACONS, REPORTS, SAMPLING
from lagloss_server.base import format as fmt
from lagloss_server.groups.cluster_groups import read_cluster_groups
from lagloss_server.model.canary import CANARY_TOPIC
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

BY_PREFIX: Final = "prefix"
BY_LABEL: Final = "label:"
CURRENT_S: Final = 180.0
"""An older list of topics is not current: the aggregator, or the cluster, is away."""
KEPT_MS: Final = 86_400_000
"""How long the topics of a cluster that is not asked any more are kept."""
_OWN: Final = frozenset({BEACONS, REPORTS, SAMPLING, CANARY_TOPIC})
_PREFIX: Final = re.compile(r"[^.\-_]+")
Kind = Literal["topics", "groups"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class KafkaName(NamedTuple):
    """A topic or a consumer group; `cluster` is empty for the one of lagloss's own topics."""

    cluster: str
    name: str


class MeasuredShare(TypedDict):
    """Of some topics or groups, how many a definition names."""

    total: int
    measured: int


class CoverageRow(TypedDict):
    """The topics and groups that have a prefix, or pipelines with a label's value; null: without that label, or, of
    topics and groups that no definition names, without any."""

    value: str | None
    topics: MeasuredShare
    groups: MeasuredShare


class UnmeasuredName(TypedDict):
    """A topic or group that no definition names."""

    cluster: str
    name: str


class ListedCluster(TypedDict):
    """A cluster, and when its topics were listed; null: they were not."""

    cluster: str
    asked_at: str | None


class CoverageDocument(TypedDict):
    """What `lagloss coverage --json` prints. `by`: prefix, or label:NAME. `not_measured`: by name."""

    by: str
    topics: MeasuredShare
    groups: MeasuredShare
    rows: list[CoverageRow]
    not_measured: dict[Kind, list[UnmeasuredName]]
    clusters: list[ListedCluster]


def is_own(topic: str) -> bool:
    """Return whether a topic is lagloss's own, or Kafka's."""
    return topic.startswith(("__", "lagloss.")) or topic in _OWN


def keep_cluster_topics(connection: Connection, cluster: str, asked_ms: int, topics: Collection[str]) -> None:
    """Write the topics of a cluster in place of those that it had, and forget clusters that are not asked any more."""
    table = tables.table_of(tables.ClusterTopicsRow)
    connection.execute(delete(table).where(table.c.asked_at < asked_ms - KEPT_MS))
    document = msgspec.json.encode(sorted(topic for topic in topics if not is_own(topic)))
    upsert = insert(table).values(cluster=cluster, asked_at=asked_ms, document=document)
    newer = {"asked_at": upsert.excluded.asked_at, "document": upsert.excluded.document}
    connection.execute(upsert.on_conflict_do_update(index_elements=["cluster"], set_=newer))


@dataclass(frozen=True, slots=True)
class ClusterCoverage:
    """Topics and groups, each with the pipelines that name it.

    Attributes:
        labels: by pipeline.
        asked_ms: when the topics of each cluster were listed (epoch ms); None: they were not.
    """

    topics: Mapping[KafkaName, Collection[str]]
    groups: Mapping[KafkaName, Collection[str]]
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    asked_ms: Mapping[str, int | None] = field(default_factory=dict)

    def not_current(self, now_s: float) -> list[str]:
        """Return the clusters whose topics were not listed of late."""
        return sorted(
            cluster
            for cluster, asked_ms in self.asked_ms.items()
            if asked_ms is None or now_s - asked_ms / 1_000 > CURRENT_S
        )

    @property
    def label_names(self) -> list[str]:
        return sorted({name for labels in self.labels.values() for name in labels})

    def not_measured(self, kind: Kind) -> list[KafkaName]:
        """Return the topics, or groups, that no definition names."""
        return sorted(place for place, named_by in self._of(kind).items() if not named_by)

    def rows(self, by: str) -> list[CoverageRow]:
        """Return the shares by prefix or label (`label:NAME`), what has most that is not measured first."""
        values: dict[str | None, dict[Kind, MeasuredShare]] = {}
        values_of = self._values_of(by)
        for kind in KINDS:
            for place, named_by in self._of(kind).items():
                for value in values_of(place, named_by):
                    shares = values.setdefault(value, {"topics": _none(), "groups": _none()})
                    shares[kind]["total"] += 1
                    shares[kind]["measured"] += bool(named_by)
        rows = [
            CoverageRow(value=value, topics=both["topics"], groups=both["groups"]) for value, both in values.items()
        ]
        return sorted(rows, key=lambda row: (-_missing(row["topics"]) - _missing(row["groups"]), row["value"] or ""))

    def share(self, kind: Kind) -> MeasuredShare:
        named = self._of(kind).values()
        return MeasuredShare(total=len(named), measured=sum(map(bool, named)))

    def document(self, by: str) -> CoverageDocument:
        """Return the coverage as JSON."""
        return {
            "by": by,
            "topics": self.share("topics"),
            "groups": self.share("groups"),
            "rows": self.rows(by),
            "not_measured": {
                kind: [UnmeasuredName(cluster=place.cluster, name=place.name) for place in self.not_measured(kind)]
                for kind in KINDS
            },
            "clusters": [
                ListedCluster(cluster=cluster, asked_at=None if asked_ms is None else rfc3339(asked_ms // 1_000))
                for cluster, asked_ms in sorted(self.asked_ms.items())
            ],
        }

    def _of(self, kind: Kind) -> Mapping[KafkaName, Collection[str]]:
        return self.topics if kind == "topics" else self.groups

    def _values_of(self, by: str) -> Callable[[KafkaName, Collection[str]], Iterable[str | None]]:
        if not by.startswith(BY_LABEL):
            return lambda place, _: [prefix_of(place.name)]
        label = by.removeprefix(BY_LABEL)
        return lambda _, named_by: {self.labels.get(pipeline, {}).get(label) for pipeline in named_by} or {None}


def is_grouping(by: str) -> bool:
    """Return whether coverage can be grouped by this: prefix, or label:NAME."""
    return by == BY_PREFIX or (by.startswith(BY_LABEL) and len(by) > len(BY_LABEL))


def prefix_of(name: str) -> str:
    """Return what a name begins with, up to the first point, hyphen or underscore."""
    prefix = _PREFIX.search(name)
    return prefix[0] if prefix else name


def share_text(share: MeasuredShare) -> str:
    """Return a share for people: `41 of 52 (79 %)`."""
    if not share["total"]:
        return fmt.NOTHING
    ratio = share["measured"] / share["total"]
    return f"{fmt.count(share['measured'])} of {fmt.count(share['total'])} ({fmt.percent(ratio)})"


def _none() -> MeasuredShare:
    return MeasuredShare(total=0, measured=0)


def _missing(share: MeasuredShare) -> int:
    return share["total"] - share["measured"]


def named_topics(definition: Definition) -> set[KafkaName]:
    """Return the topics that a definition names, in taps and spans."""
    tapped = {KafkaName(tap.cluster, tap.topic) for tap in definition.taps}
    return tapped | {KafkaName("", point.topic) for point in definition.span_points}


def named_groups(definition: Definition) -> set[KafkaName]:
    """Return the consumer groups that a definition names, in nodes and taps."""
    named = {
        KafkaName(node.input_cluster, node.input) for node in definition.spec.nodes if node.input and not node.queue
    }
    return named | {KafkaName(tap.cluster, tap.group) for tap in definition.taps if tap.group is not None}


def read_coverage(store: Store) -> ClusterCoverage:
    """Read the coverage by what the reader may see: of a team, the topics and groups that its pipelines name."""
    definitions = [stored.definition for stored in store.pipelines()]
    listed: dict[str, Sequence[str]] = {}
    asked: dict[str, int | None] = {}
    row = tables.ClusterTopicsRow
    with store.engine.connect() as connection:
        for cluster, asked_ms, document in connection.execute(select(row.cluster, row.asked_at, row.document)):
            with suppress(msgspec.DecodeError):  # a newer version wrote it
                listed[cluster], asked[cluster] = msgspec.json.decode(document, type=list[str]), asked_ms
        groups = {KafkaName(reading.group.cluster, reading.group.group) for reading in read_cluster_groups(connection)}
    topics = {KafkaName(cluster, name) for cluster, names in listed.items() for name in names}
    by_topic, by_group = defaultdict[KafkaName, set[str]](set), defaultdict[KafkaName, set[str]](set)
    for definition in definitions:
        for place in named_topics(definition):
            by_topic[place].add(definition.name)
        for place in named_groups(definition):
            by_group[place].add(definition.name)
    # what a definition names and its cluster does not have is not there; a cluster that was not listed may have it
    topics |= {place for place in by_topic if place.cluster not in listed}
    # who may not see every topic sees no list, and so no time of one
    clusters = {place.cluster for place in topics | groups} | asked.keys() if store.is_whole else set()
    return ClusterCoverage(
        {place: sorted(by_topic.get(place, ())) for place in topics},
        {place: sorted(by_group.get(place, ())) for place in groups},
        {definition.name: definition.metadata.labels for definition in definitions},
        {cluster: asked.get(cluster) for cluster in clusters},
    )

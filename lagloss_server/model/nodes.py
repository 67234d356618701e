"""Nodes of a pipeline as its owner declares them, and their validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import networkx as nx
from pydantic import Discriminator, Field, Tag

from lagloss_server.base.fields import Description, Name, Strict, like
from lagloss_server.model.spans import SpanPlace, SpanSpec
from lagloss_server.model.tables import TableSpec
from lagloss_server.model.taps import Elsewhere, GroupId, OffsetStorage, TapPlace, TapSpec

MAX_NODES: Final = 200
QueueUrl = Annotated[
    str, like(r"^https?://[^\s\x00-\x1f\x7f]{1,500}$", "an HTTP or HTTPS URL without spaces", is_shown=False)
]
"""As boto3 calls it."""


def _kind_of_tap(source: Any) -> str:
    """Return which kind of tap is meant, so that errors name what that kind expects."""
    keys = source if isinstance(source, Mapping) else ()
    is_table = isinstance(source, TableSpec) or "table" in keys or "database" in keys
    return "of a table" if is_table else "of Kafka"


TapSource = Annotated[
    Annotated[TapSpec | Elsewhere, Tag("of Kafka")] | Annotated[TableSpec, Tag("of a table")],
    Discriminator(_kind_of_tap),
]
"""Tags are no keys of a tap: errors would name them."""


class NodeSpec(Strict):
    """A step of the pipeline: its next nodes, whether each message goes to all of them, and its retrier. `group` is the
    Kafka consumer group of its processes, whose consumer lag is watched; `cluster` names the Kafka cluster of the
    group and its topics, if it is not the cluster of lagloss's topics. `queue`: instead, the SQS queue that its
    processes receive from. `taps`: by place, the source of beacons that no process of the node sends. `spans`: by
    place, the spans of Kafka clients that are its beacons. `ids: new`: it sends messages with other ids than it
    receives, so the graph is cut here (`lagloss_server.model.cuts`); `contract`: the relation between the two.
    `idempotent`: whether a message that it receives again has no second effect; None: not declared."""

    name: Name
    to: Annotated[tuple[Name, ...], Field(max_length=MAX_NODES)] = ()
    copy_: Literal["all"] | None = Field(default=None, alias="copy")
    retries: Name | None = None
    group: GroupId | None = None
    cluster: Name | None = None
    queue: QueueUrl | None = None
    ids: Literal["new"] | None = None
    contract: Literal["split", "aggregate"] | None = None
    idempotent: Annotated[bool, Field(strict=True)] | None = None
    taps: Mapping[TapPlace, TapSource] = Field(default_factory=dict)
    spans: Mapping[SpanPlace, SpanSpec] = Field(default_factory=dict)
    description: Description = ""

    @property
    def input(self) -> str | None:
        """The consumer group, source connector or queue of which the consumer lag is to be watched."""
        return self.group or self._tapped("reader") or self.queue

    @property
    def input_offsets(self) -> OffsetStorage | None:
        """Where the offsets of that connector are; None for a group or queue."""
        spec = self.taps.get("in")
        return spec.storage if self.group is None and isinstance(spec, TapSpec) else None

    @property
    def input_cluster(self) -> str:
        """The name of the Kafka cluster of that group and its topics, empty for the one of lagloss's own topics."""
        return self.cluster or self._tapped("cluster") or ""

    def _tapped(self, name: Literal["reader", "cluster"]) -> str | None:
        spec = self.taps.get("in")
        return getattr(spec, name) if isinstance(spec, TapSpec) else None

    @property
    def has_group(self) -> bool:
        """Whether the lag of a reader of Kafka is to be watched, and not a queue's."""
        return self.input is not None and self.queue is None


def retriers_of(nodes: Sequence[NodeSpec]) -> tuple[str, ...]:
    """Names of the nodes that others hand messages back to, in the order they are first named."""
    return tuple(dict.fromkeys(node.retries for node in nodes if node.retries))


def flow_graph(nodes: Sequence[NodeSpec]) -> nx.DiGraph[str]:
    """Nodes and links, without retriers."""
    retriers = retriers_of(nodes)
    steps = [node for node in nodes if node.name not in retriers]
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(node.name for node in steps)
    graph.add_edges_from((node.name, after) for node in steps for after in node.to)
    return graph


def problem_of(nodes: Sequence[NodeSpec]) -> str | None:
    """Return why these nodes are no pipeline; None if they are one."""
    names = [node.name for node in nodes]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        return f"expected each node only once, found {', '.join(sorted(twice))} twice"
    both = [node.name for node in nodes if node.group is not None and node.queue is not None]
    if both:
        return f"expected either a `group` or a `queue` for {both[0]}, found both"
    inputs = [(node.input_cluster, node.input) for node in nodes if node.input is not None]
    shared = {name for cluster, name in inputs if inputs.count((cluster, name)) > 1}
    if shared:  # its lag would be reported for each of them
        return f"expected each consumer group or queue at only one node, found {', '.join(sorted(shared))} at several"
    elsewhere = [node.name for node in nodes if node.cluster is not None and node.group is None]
    if elsewhere:
        return f"expected a `group` for {elsewhere[0]}, since it has a `cluster`"
    retriers = retriers_of(nodes)
    for node in nodes:
        if len(set(node.to)) < len(node.to):
            return f"expected each next node only once, found a repeated node in `to` of {node.name}"
        unknown = [name for name in node.to if name not in names or name in retriers]
        if unknown:
            return f"expected `to` of {node.name} to refer to nodes of this pipeline, found {', '.join(unknown)}"
        if node.name in retriers and (node.to or node.retries):
            return f"expected neither `to` nor `retries` for the retrier {node.name}"
        if node.contract and not node.ids:
            return f"expected `ids: new` for {node.name}, since it has a `contract`"
        if node.ids and node.name in retriers:
            return f"expected no `ids: new` for the retrier {node.name}"
        if node.ids and node.retries and not node.contract:
            return f"expected a `contract` for {node.name}, since it has `ids: new` and `retries`"
        if node.copy_ and len(node.to) < 2:
            return f"expected `copy: all` only for a node with several next nodes, found it for {node.name}"
    graph = flow_graph(nodes)
    if not nx.is_directed_acyclic_graph(graph):
        loop = " -> ".join([edge[0] for edge in nx.find_cycle(graph)])
        return f"expected no cycles, found {loop} -> back to its start"
    apart = [sorted(part) for part in nx.weakly_connected_components(graph)]
    if len(apart) != 1:
        return (
            f"expected all nodes to be connected, found no links between {' and '.join(map(', '.join, apart)) or 'any'}"
        )
    return None

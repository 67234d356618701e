"""The checkpoint graph of a definition: its checkpoints, their dominators, and where a message can go
missing.

Sets of checkpoints are bit masks (Python ints, one bit a checkpoint, in flow order), so that the rules of arithmetic
are a few bitwise operations on a pattern. The way back from a retrier to its node is left out: everything else is
acyclic.

An example, of which `mid` hands messages to the retrier `again` and gets them back:

    src ──► mid ──► a        a message seen at                     is missing at
             │ └──► b        src.in                                node src
             ▼               src.in, src.out                       link src->mid
           again             src.in, src.out, mid.in, mid.out:again    retrier again (it holds it)
                             src.in, src.out, a.in                 node a; that mid.in implies is excused

Its place `link src->mid` has the origin src.out, the target mid.in, and beyond it all of mid, a, b and again: what was
seen at any of those got through the link, though its beacon at mid.in is lost.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import networkx as nx

from lagloss_server.model.flow import Flow
from lagloss_server.model.place import Place, node_label

if TYPE_CHECKING:
    from lagloss_server.model.definition import Definition

_ROOT: Final = ""
"""Stands before all sources; no checkpoint has an empty name."""


@dataclass(frozen=True, slots=True)
class GraphPlace(Place):
    """A place at which a message can go missing: a link, a node, or a retrier that holds it (one label for all nodes
    that hand over to it).

    A message implied at `origin` but at none of `targets` is missing here, unless it is `excusable` and was seen again
    `beyond`, or in a retrier that it entered from beyond: `retriers` pairs the retrier's own checkpoints with those
    that name another node which handed the message over. `node` is whose beacon is missing; `progress` is the
    checkpoint whose lanes tell how far the place has come.
    """

    node: str
    origin: int
    targets: int
    beyond: int
    retriers: tuple[tuple[int, int], ...]
    excusable: bool
    progress: str
    exits: tuple[str, ...]

    def is_missing(self, mask: int, implied: int) -> bool:
        """Return whether messages at `mask`, and so implied at `implied`, are missing here (rules 3 and 5)."""
        if not implied & self.origin or implied & self.targets:
            return False
        seen_again = mask & self.beyond or any(mask & inside and not mask & others for inside, others in self.retriers)
        return not (self.excusable and seen_again)


@dataclass(frozen=True, slots=True)
class Destination:
    """A delivery checkpoint, and the part of the graph from which it is the only one that can be reached (rule 15).

    `part`, `dead` and `filtered` are masks; `at` that of the delivery checkpoint. `retriers`: for each node of the part
    with a retrier, the checkpoints of the retrier that say what became of a message, its dead-letter checkpoint, and
    those that name another node which handed the message over.
    """

    name: str
    at: int
    part: int
    dead: int
    filtered: int
    retriers: tuple[tuple[int, int, int], ...]

    def is_dead(self, mask: int) -> bool:
        """Return whether a node of the part, or the retrier it handed the message to, gave the message up."""
        return bool(mask & self.dead) or any(
            mask & dead and (mask & own or not mask & others) for dead, own, others in self.retriers
        )


@dataclass(frozen=True, slots=True)
class Side:
    """A part of the graph that is judged by itself (rule 18); `mask`: its checkpoints."""

    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    mask: int

    @property
    def name(self) -> str:
        return self.sources[0]


class Graph(Flow):
    """The facts of a definition for the rules, each computed when it is first needed: `Definition.graph` keeps it.

    Pickled, it is its definition, and a process unpickles equal ones once.
    """

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition.spec.nodes)
        self.definition = definition
        self.bit = {name: index for index, name in enumerate(self.checkpoints)}
        """Bit i of a mask is checkpoints[i]."""
        self.entrances: tuple[str, ...] = tuple(f"{name}.in" for name in self.sources)
        """The checkpoints at which messages enter, by source."""
        self.entrance_mask = self.mask(self.entrances)
        self.delivery: tuple[str, ...] = tuple(
            self.delivery_of(name) for name in self.steps if not self._specs[name].to
        )
        self.delivery_mask = self.mask(self.delivery)
        self.dead_mask = self.mask(name for name in self.checkpoints if name.endswith(".dead"))
        self.filtered_mask = self.mask(name for name in self.checkpoints if name.endswith(".filtered"))

    @cached_property
    def places(self) -> tuple[GraphPlace, ...]:
        """The nodes, links and retriers at which a message can go missing, in the order of the flow."""
        return tuple(self._list_places())

    @cached_property
    def destinations(self) -> tuple[Destination, ...]:
        """The delivery checkpoints with their parts, in the order of the flow."""
        return tuple(self._list_destinations())

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self.definition)

    def mask(self, names: Iterable[str]) -> int:
        """Return the set of these checkpoints as a mask; names the definition does not have are left out."""
        mask = 0
        for name in names:
            bit = self.bit.get(name)
            if bit is not None:
                mask |= 1 << bit
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        return tuple(name for index, name in enumerate(self.checkpoints) if mask >> index & 1)

    def held_by(self, mask: int) -> tuple[GraphPlace, ...]:
        """Return the retriers that have seen a message, one place each."""
        by_name = {place.name: place for place in self.places if place.kind == "retrier"}
        return tuple(place for name, place in by_name.items() if mask & self.mask([f"{name}.in", *self.outs(name)]))

    def handed(self, retrier: GraphPlace, mask: int) -> int:
        """Return the hand-over checkpoints by which messages at `mask` may have come to a retrier: those of the nodes
        that are known to have handed over, of all its nodes where none is known."""
        users = self.users(retrier.name)
        receivers = [user for user in users if mask & self._handing_over(retrier.name, [user])]
        return self.mask(f"{user}.out:{retrier.name}" for user in receivers or users)

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """The parts of the graph between which no link and no retrier leads, in the order of their first nodes."""
        together: nx.Graph[str] = nx.Graph(self._flow)
        together.add_edges_from((user, retrier) for retrier in self.retriers for user in self.users(retrier))
        parts = [tuple(node for node in self.nodes if node in part) for part in nx.connected_components(together)]
        return tuple(self._side(nodes) for nodes in sorted(parts, key=lambda nodes: self.nodes.index(nodes[0])))

    def _side(self, nodes: tuple[str, ...]) -> Side:
        return Side(
            nodes=nodes,
            sources=tuple(source for source in self.sources if source in nodes),
            mask=self.mask(name for node in nodes for name in (f"{node}.in", *self.exits(node))),
        )

    def side_of(self, node: str) -> Side:
        """Return the side that a node is of."""
        return next(side for side in self.sides if node in side.nodes)

    @cached_property
    def dominators(self) -> tuple[int, ...]:
        """For each checkpoint, the mask of those that every path from any source to it passes, itself included."""
        return self._dominators_from(self.entrances)

    @cached_property
    def dominators_by_source(self) -> tuple[tuple[int, ...], ...]:
        """The same by source, for the paths from that one only; 0 for a checkpoint that it does not lead to."""
        return tuple(self._dominators_from([name]) for name in self.entrances)

    def _dominators_from(self, entrances: Sequence[str]) -> tuple[int, ...]:
        graph = self._checkpoint_graph.copy()
        graph.add_edges_from((_ROOT, name) for name in entrances)
        parents = nx.immediate_dominators(graph, _ROOT)
        masks: list[int] = []
        for name in self.checkpoints:
            mask, name_ = 0, name
            while name_ != _ROOT and name_ in parents:
                mask |= 1 << self.bit[name_]
                name_ = parents[name_]
            masks.append(mask)
        return tuple(masks)

    @cached_property
    def allowed_copies(self) -> tuple[int, ...]:
        """For each checkpoint, how many live beacons of one message are no duplicates: below a `copy: all` whose
        branches meet again, one per incoming link; the most that any one source may bring."""
        by_source = [self._copies_from(source) for source in self.sources]
        return tuple(max(copies.get(node_of(name), 1) for copies in by_source) for name in self.checkpoints)

    def _copies_from(self, source: str) -> dict[str, int]:
        copies, reached = {source: 1}, {source, *nx.descendants(self._flow, source)}
        for node in self.steps:
            incoming = [copies[before] for before in self._flow.predecessors(node) if before in copies]
            if incoming:
                is_below = any(self._copies_to_all(before) for before in nx.ancestors(self._flow, node) & reached)
                copies[node] = sum(incoming) if is_below else max(incoming)
        return copies

    @cached_property
    def spans(self) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
        """Spans between checkpoints: a place's label, the checkpoints at which messages arrive there, and those at
        which they leave. A node's span is its process duration, a link's its queue time."""
        spans_ = [(node_label(node), (f"{node}.in",), outs) for node in self.nodes if (outs := self.outs(node))]
        return (
            *spans_,
            *((link.label, (link.out,), (f"{link.target}.in",)) for link in self.links),
        )

    def leads(self, checkpoints: Iterable[str], delivery: str) -> bool:
        """Return whether any of these checkpoints lies on a way to this delivery checkpoint, without a retrier."""
        return bool(self._reachable(checkpoints) >> self.bit[delivery] & 1)

    @cached_property
    def retry_loop_mask(self) -> int:
        """Checkpoints of the way to a retrier and back, whose beacons are no duplicates."""
        handed = [f"{user}.out:{retrier}" for retrier in self.retriers for user in self.users(retrier)]
        return self.mask([*handed, *(name for name in self.checkpoints if node_of(name) in self.retriers)])

    @cached_property
    def unprovable_mask(self) -> int:
        """Checkpoints where a message may rightly be more than once: the retry loop, and what lies behind a node that
        copies to all its next nodes."""
        copies = [
            name
            for node in self.steps
            if self._copies_to_all(node) and len(self.outs(node)) > 1
            for name in self.outs(node)
        ]
        return self.retry_loop_mask | self._reachable(copies)

    @cached_property
    def returns(self) -> dict[str, str]:
        """`N.in` of each node with a retrier -> `R.out:N`, where its messages come back from."""
        return {f"{user}.in": f"{retrier}.out:{user}" for retrier in self.retriers for user in self.users(retrier)}

    @cached_property
    def _checkpoint_graph(self) -> nx.DiGraph[str]:
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.checkpoints)
        for node in self.nodes:
            graph.add_edges_from((f"{node}.in", exit_) for exit_ in self.exits(node))
        graph.add_edges_from((link.out, f"{link.target}.in") for link in self.links)
        for retrier in self.retriers:
            graph.add_edges_from((f"{user}.out:{retrier}", f"{retrier}.in") for user in self.users(retrier))
        return graph

    @cached_property
    def _reach(self) -> dict[str, int]:
        """For each checkpoint, the mask of all that is reachable from it without a retrier, itself included."""
        reach: dict[str, int] = {}
        for name in reversed(list(nx.topological_sort(self._checkpoint_graph))):
            reach[name] = 1 << self.bit[name]
            for after in self._checkpoint_graph.successors(name):
                if node_of(after) not in self.retriers:
                    reach[name] |= reach[after]
        return reach

    def _beyond(self, checkpoints: Iterable[str]) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return `GraphPlace.beyond` and `GraphPlace.retriers`: all that is reachable from these, themselves included.
        Through a retrier only the node that handed the message over is reachable (rule 3)."""
        beyond, shared = self._reachable(checkpoints), []
        for retrier in self.retriers:
            users = [user for user in self.users(retrier) if beyond >> self.bit[f"{user}.out:{retrier}"] & 1]
            inside = self.mask([f"{retrier}.in", f"{retrier}.dead"])
            others = self._handing_over(retrier, set(self.users(retrier)).difference(users))
            beyond |= self.mask(f"{retrier}.out:{user}" for user in users)
            if users and others:
                shared.append((inside, others))
            elif users:
                beyond |= inside
        return beyond, tuple(shared)

    def _handing_over(self, retrier: str, users: Iterable[str]) -> int:
        """Return the checkpoints at which a message was handed to the retrier by one of these nodes, or back."""
        return self.mask(name for user in users for name in (f"{user}.out:{retrier}", f"{retrier}.out:{user}"))

    def _reachable(self, checkpoints: Iterable[str]) -> int:
        """Return the mask of all that is reachable from any of these, themselves included."""
        return functools.reduce(int.__or__, (self._reach[name] for name in checkpoints), 0)

    def _copies_to_all(self, node: str) -> bool:
        return self._specs[node].copy_ == "all"

    def _below_copies(self, node: str) -> bool:
        return any(self._copies_to_all(before) for before in nx.ancestors(self._flow, node))

    def _list_places(self) -> list[GraphPlace]:
        places = []
        for node in self.steps:
            exits = self.exits(node)
            if not exits:
                continue
            beyond, retriers = self._beyond(exits)
            places.append(
                GraphPlace(
                    kind="node",
                    name=node,
                    node=node,
                    origin=self.mask([f"{node}.in"]),
                    targets=self.mask(exits),
                    beyond=beyond,
                    retriers=retriers,
                    excusable=not self._below_copies(node),
                    progress=f"{node}.out",
                    exits=exits,
                )
            )
        for link in self.links:
            into = f"{link.target}.in"
            beyond, retriers = self._beyond([into])
            places.append(
                GraphPlace(
                    kind="link",
                    name=link.name,
                    node=link.target,
                    origin=self.mask([link.out]),
                    targets=self.mask([into]),
                    beyond=beyond,
                    retriers=retriers,
                    excusable=not (self._copies_to_all(link.source) or self._below_copies(link.source)),
                    progress=into,
                    exits=(into,),
                )
            )
        for retrier in self.retriers:
            for user in self.users(retrier):
                handed = f"{user}.out:{retrier}"
                others = [name for name in self.exits(user) if name != handed]
                beyond, retriers = self._beyond(others)
                places.append(
                    GraphPlace(
                        kind="retrier",
                        name=retrier,
                        node=retrier,
                        origin=self.mask([handed]),
                        targets=self.mask([*others, f"{retrier}.dead"]),
                        beyond=beyond,
                        retriers=retriers,
                        excusable=not self._below_copies(user),
                        progress=f"{retrier}.in",
                        exits=(),
                    )
                )
        return places

    def _list_destinations(self) -> list[Destination]:
        """List the destinations, in the order of the flow; of a side with one delivery, all is its part."""
        deliveries = {name: self._reach[name] & self.delivery_mask for name in self.checkpoints}
        for retrier in self.retriers:
            for user in self.users(retrier):
                back = deliveries[f"{user}.in"]
                deliveries[f"{user}.out:{retrier}"] = deliveries[f"{retrier}.out:{user}"] = back
                deliveries[f"{retrier}.in"] |= back
        return [self._destination(delivery, deliveries) for delivery in self.delivery]

    def _destination(self, delivery: str, deliveries: dict[str, int]) -> Destination:
        mask = self.mask([delivery])
        part = self.mask(name for name in self.checkpoints if deliveries[name] == mask)
        side = self.side_of(node_of(delivery))
        if side.mask & self.delivery_mask == mask:
            part = side.mask
        nodes = [node for node in self.steps if part >> self.bit[f"{node}.in"] & 1]
        retriers = [
            (
                self.mask([f"{retrier}.dead"]),
                self._handing_over(retrier, [user]),
                self._handing_over(retrier, set(self.users(retrier)) - {user}),
            )
            for retrier in self.retriers
            for user in self.users(retrier)
            if part >> self.bit[f"{user}.out:{retrier}"] & 1
        ]
        return Destination(
            name=node_of(delivery),
            at=mask,
            part=part,
            dead=self.mask(f"{node}.dead" for node in nodes),
            filtered=self.mask(f"{node}.filtered" for node in nodes),
            retriers=tuple(retriers),
        )


@functools.lru_cache(10_000)
def _unpickled(definition: bytes) -> Graph:
    """Return the graph of a pickled definition; those of small pipelines take 34 kB each, and 0.5 ms to build."""
    graph: Graph = pickle.loads(definition).graph
    return graph


def node_of(checkpoint: str) -> str:
    return checkpoint.split(".", 1)[0]

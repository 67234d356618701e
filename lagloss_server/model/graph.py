"""The checkpoint graph of a definition: its checkpoints, their dominators, and where a message can go
missing.

Sets of checkpoints are bit masks (Python ints, one bit a checkpoint, in flow order), so that the rules of arithmetic
are a few bitwise operations on a pattern. The way back from a retrier to its node is left out: everything else is
acyclic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import networkx as nx

from lagloss_server.model.definition import Definition
from lagloss_server.model.flow import Flow


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which a message can go missing: a link, a node, or a retrier that holds it.

    A message implied at `origin` but at none of `targets` is missing here, unless `beyond` (all that is reachable
    from the targets) has seen it and `excusable` holds. `node` is whose beacon is missing; `progress` is the checkpoint
    whose lanes say how far the place has come.
    """

    kind: Literal["link", "node", "retrier"]
    name: str
    node: str
    origin: int
    targets: int
    beyond: int
    excusable: bool
    progress: str
    exits: tuple[str, ...]

    @property
    def label(self) -> str:
        """The place as people read it: `link a->b`, `node b`, `retrier r` (one, for all nodes that hand over to it)."""
        return f"{self.kind} {self.name}"


class Graph(Flow):
    """The facts of a definition for the rules, computed once."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition.spec.nodes)
        self.definition = definition
        self.bit = {name: at for at, name in enumerate(self.checkpoints)}
        """Bit i of a mask is checkpoints[i]."""
        self._reach = self._reachability()
        self.first = f"{self.steps[0]}.in"
        self.first_node = self.steps[0]
        self.delivery: tuple[str, ...] = tuple(f"{name}.out" for name in self.steps if not self._specs[name].to)
        self.delivery_mask = self.mask(self.delivery)
        self.dead_mask = self.mask(name for name in self.checkpoints if name.endswith(".dead"))
        self.filtered_mask = self.mask(name for name in self.checkpoints if name.endswith(".filtered"))
        self.places: tuple[Place, ...] = tuple(self._list_places())

    def mask(self, names: Iterable[str]) -> int:
        """Return the set of these checkpoints as a mask; names the definition does not have are left out."""
        mask = 0
        for name in names:
            at = self.bit.get(name)
            if at is not None:
                mask |= 1 << at
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        return tuple(name for at, name in enumerate(self.checkpoints) if mask >> at & 1)

    def held_by(self, mask: int) -> tuple[Place, ...]:
        """Return the retriers that have seen a message, one place each."""
        by_name = {place.name: place for place in self.places if place.kind == "retrier"}
        return tuple(place for name, place in by_name.items() if mask & self.mask([f"{name}.in", *self.outs(name)]))

    @cached_property
    def dominators(self) -> tuple[int, ...]:
        """For each checkpoint, the mask of those that every path from the first checkpoint to it passes, itself
        included."""
        parents = nx.immediate_dominators(self._checkpoint_graph, self.first)
        masks: list[int] = []
        for name in self.checkpoints:
            mask, at = 1 << self.bit[name], name
            while (up := parents.get(at)) is not None and up != at:
                mask |= 1 << self.bit[up]
                at = up
            masks.append(mask)
        return tuple(masks)

    @cached_property
    def allowed_copies(self) -> tuple[int, ...]:
        """For each checkpoint, how many live beacons of one message are no duplicates: below a `copy: all` whose
        branches meet again, one per incoming link."""
        copies = {self.steps[0]: 1}
        for node in self.steps[1:]:
            incoming = [copies[before] for before in self._flow.predecessors(node)]
            copies[node] = sum(incoming) if self._below_copies(node) else max(incoming)
        return tuple(copies.get(node_of(name), 1) for name in self.checkpoints)

    @cached_property
    def spans(self) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
        """Spans between checkpoints: a place's label, the checkpoints at which messages arrive there, and those at
        which they leave. A node's span is its process duration, a link's its queue time."""
        kept = [(f"node {node}", (f"{node}.in",), self.outs(node)) for node in self.nodes]
        return (*kept, *((f"link {link.name}", (link.out,), (f"{link.target}.in",)) for link in self.links))

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

    def _reachability(self) -> dict[str, int]:
        """Return for each checkpoint the mask of all that is reachable from it, itself included."""
        reach: dict[str, int] = {}
        for name in reversed(list(nx.topological_sort(self._checkpoint_graph))):
            reach[name] = 1 << self.bit[name]
            for after in self._checkpoint_graph.successors(name):
                reach[name] |= reach[after]
        return reach

    def _reachable(self, checkpoints: Iterable[str]) -> int:
        """Return the mask of all that is reachable from any of these, themselves included."""
        return functools.reduce(int.__or__, (self._reach[name] for name in checkpoints), 0)

    def _copies_to_all(self, node: str) -> bool:
        return self._specs[node].copy_ == "all"

    def _below_copies(self, node: str) -> bool:
        return any(self._copies_to_all(before) for before in nx.ancestors(self._flow, node))

    def _list_places(self) -> list[Place]:
        places = []
        for node in self.steps:
            exits = self.exits(node)
            places.append(
                Place(
                    kind="node",
                    name=node,
                    node=node,
                    origin=self.mask([f"{node}.in"]),
                    targets=self.mask(exits),
                    beyond=self._reachable(exits),
                    excusable=not self._below_copies(node),
                    progress=f"{node}.out",
                    exits=exits,
                )
            )
        for link in self.links:
            into = f"{link.target}.in"
            places.append(
                Place(
                    kind="link",
                    name=link.name,
                    node=link.target,
                    origin=self.mask([link.out]),
                    targets=self.mask([into]),
                    beyond=self._reach[into],
                    excusable=not (self._copies_to_all(link.source) or self._below_copies(link.source)),
                    progress=into,
                    exits=(into,),
                )
            )
        for retrier in self.retriers:
            for user in self.users(retrier):
                handed = f"{user}.out:{retrier}"
                others = [name for name in self.exits(user) if name != handed]
                places.append(
                    Place(
                        kind="retrier",
                        name=retrier,
                        node=retrier,
                        origin=self.mask([handed]),
                        targets=self.mask([*others, f"{retrier}.dead"]),
                        beyond=self._reachable(others),
                        excusable=not self._below_copies(user),
                        progress=f"{retrier}.in",
                        exits=(),
                    )
                )
        return places


def node_of(checkpoint: str) -> str:
    return checkpoint.split(".", 1)[0]

"""The flow of a pipeline: its nodes in order, the links between them, and the names of their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from lagloss_server.model.cuts import AFTER, cut_nodes, takes_in_only
from lagloss_server.model.nodes import NodeSpec, flow_graph, retriers_of
from lagloss_server.model.place import link_label, link_name


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str
    out: str
    """The checkpoint where the source sends to the target: `N.out`, or `N.out:M` where N has several next nodes."""

    @property
    def name(self) -> str:
        return link_name(self.source, self.target)

    @property
    def label(self) -> str:
        return link_label(self.source, self.target)


class Flow:
    """Links and checkpoints of valid nodes, in which `lagloss_server.model.nodes.problem_of` finds no problem."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        nodes = cut_nodes(nodes)
        self.retriers: tuple[str, ...] = retriers_of(nodes)
        self._specs = {node.name: node for node in nodes if node.name not in self.retriers}
        self._flow = flow_graph(nodes)
        rank = {name: index for index, name in enumerate(self._specs)}
        self.steps: tuple[str, ...] = tuple(nx.lexicographical_topological_sort(self._flow, key=rank.__getitem__))
        """Nodes in the order of the flow, without retriers."""
        self.sources: tuple[str, ...] = tuple(name for name in self.steps if not self._flow.in_degree(name))
        """The nodes without incoming link: a message enters at one of them."""
        self.links: tuple[Link, ...] = tuple(
            Link(name, after, _out(self._specs[name], after)) for name in self.steps for after in self._specs[name].to
        )
        self.spanned: frozenset[str] = frozenset(name for name, node in self._specs.items() if node.spans)
        """The nodes that spans show. Spans are sampled and dropped, so what they do not show may have been."""
        self._outs = {node: self._list_outs(node) for node in self.nodes}
        self._exits = {node: self._list_exits(node) for node in self.nodes}
        self.checkpoints: tuple[str, ...] = tuple(
            name for node in self.nodes for name in (f"{node}.in", *self.exits(node))
        )
        """Checkpoint names in the order of the flow, retriers' last."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.steps + self.retriers

    def exits(self, node: str) -> tuple[str, ...]:
        """Return the exits of a node: its outs (to a retrier too), filtered and dead; none of one that only takes
        in."""
        return self._exits[node]

    def _list_exits(self, node: str) -> tuple[str, ...]:
        if self.takes_in_only(node):
            return ()
        if node in self.retriers:
            return (*self.outs(node), f"{node}.dead")
        return (*self.outs(node), f"{node}.filtered", f"{node}.dead")

    def takes_in_only(self, node: str) -> bool:
        """Return whether messages are delivered where this node takes them in."""
        return node in self._specs and takes_in_only(self._specs[node])

    def outs(self, node: str) -> tuple[str, ...]:
        return self._outs[node]

    def _list_outs(self, node: str) -> tuple[str, ...]:
        if self.takes_in_only(node):
            return ()
        if node in self.retriers:
            return tuple(f"{node}.out:{user}" for user in self.users(node))
        spec = self._specs[node]
        sent = tuple(_out(spec, after) for after in spec.to) or (f"{node}.out",)
        return (*sent, f"{node}.out:{spec.retries}") if spec.retries else sent

    def following(self, node: str) -> tuple[str, ...]:
        """Return the next nodes; none of a node that delivers, and of a retrier."""
        return () if node in self.retriers else self._specs[node].to

    def delivery_of(self, node: str) -> str:
        """Return the delivery checkpoint of a node without next nodes."""
        return f"{node}.in" if self.takes_in_only(node) else f"{node}.out"

    def splits(self, source: str) -> bool:
        """Return whether the ids that begin at a source carry those that they were split from."""
        spec = self._specs.get(source.removesuffix(AFTER))
        return source.endswith(AFTER) and spec is not None and spec.contract == "split"

    @property
    def cuts(self) -> tuple[tuple[str, str], ...]:
        """The nodes whose ids are new, each with the one at which the new ids begin, in the order of the flow."""
        return tuple((name, name + AFTER) for name in self.steps if self._specs[name].ids is not None)

    def users(self, retrier: str) -> tuple[str, ...]:
        """Return the nodes that hand messages to this retrier."""
        return tuple(name for name in self.steps if self._specs[name].retries == retrier)

    def leading_to(self, node: str) -> frozenset[str]:
        """Return a node and all those before it."""
        return frozenset({node, *nx.ancestors(self._flow, node)})

    def sources_of(self, node: str) -> frozenset[str]:
        """Return the sources whose messages may come to a node; of a retrier, to the nodes that use it."""
        users = self.users(node) if node in self.retriers else (node,)
        return frozenset(source for source in self.sources if any(source in self.leading_to(user) for user in users))

    def neighbours(self, node: str) -> frozenset[str]:
        """Direct predecessors and successors in the flow; a retrier stands outside it."""
        if node in self.retriers:
            return frozenset()
        return frozenset({*self._flow.predecessors(node), *self._flow.successors(node)})

    def same_node(self, other: Flow, node: str) -> bool:
        """Return whether both versions know this node with the same declaration and neighbours (a retrier: the same
        users)."""
        if node not in self.nodes or node not in other.nodes:
            return False
        if node in self.retriers or node in other.retriers:
            return set(self.users(node)) == set(other.users(node))
        alike = [
            flow._specs[node].model_copy(update={"description": "", "group": None, "queue": None, "idempotent": None})
            if node in flow._specs
            else None
            for flow in (self, other)
        ]
        return alike[0] == alike[1] and self.neighbours(node) == other.neighbours(node)


def _out(spec: NodeSpec, after: str) -> str:
    return f"{spec.name}.out:{after}" if len(spec.to) > 1 else f"{spec.name}.out"

"""Resolution of a definition's spans: which service's spans of which topic are beacons of which checkpoints.

The id and the event time of a message are those of the span that first produced it, which no other client says. So a
side of the graph has spans at both ends of all its links, or at none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lagloss_server.model.cuts import cut_nodes
from lagloss_server.model.graph import Graph
from lagloss_server.model.nodes import NodeSpec
from lagloss_server.model.spans import SpanId, SpanPoint, SpanSpec


class SpanProblem(ValueError):
    """A problem in a node's spans; `node` and `place` locate it."""

    def __init__(self, node: str, place: str, problem: str) -> None:
        super().__init__(problem)
        self.node, self.place = node, place


def span_points_of(nodes: Sequence[NodeSpec], graph: Graph) -> list[SpanPoint]:
    """Return the points of valid nodes, in the order of their flow.

    A source takes a message in where it produces it; a node without next nodes delivers at the end of its own span.

    Raises:
        SpanProblem: spans are missing at the other end of a link, or a key is not allowed at its place.
    """
    if not any(node.spans for node in nodes):
        return []
    resolver = _Resolver(nodes, graph)
    resolver.check()
    points = list(resolver.resolve())
    _demand_one_node_each(points)
    return points


def _demand_one_node_each(points: Sequence[SpanPoint]) -> None:
    """Raise a SpanProblem if spans could be of two nodes."""
    nodes: dict[tuple[str, str, bool], str] = {}
    for point in points:
        other = nodes.setdefault((point.service, point.topic, point.produces), point.node)
        if other != point.node:
            raise SpanProblem(
                point.node,
                "out" if point.produces else "in",
                f"expected another service or topic than those of {other}, found the same",
            )


class _Resolver:
    def __init__(self, nodes: Sequence[NodeSpec], graph: Graph) -> None:
        self._graph = graph
        self._specs = {node.name: node for node in cut_nodes(nodes)}
        self._outs = {node: dict(self._spread(node)) for node in graph.steps}
        """By node, the spans of its links, by the checkpoint of the link."""

    def check(self) -> None:
        for node in self._graph.nodes:
            for place, spec in self._spans(node).items():
                self._check_place(node, place)
                self._check_keys(node, place, spec)
        for node in self._graph.steps:
            self._check_ends(node)

    def resolve(self) -> Iterator[SpanPoint]:
        for node in self._graph.steps:
            yield from self._producing(node)
            yield from self._consuming(node)

    def _spans(self, node: str) -> Mapping[str, SpanSpec]:
        return self._specs[node].spans if node in self._specs else {}  # a retrier need not be declared

    def _spread(self, node: str) -> Iterator[tuple[str, SpanSpec]]:
        """Yield the spans of a node's links. One `out` of several links holds for those whose nodes consume its
        topic."""
        spans = self._spans(node)
        for link in self._graph.links:
            if link.source != node:
                continue
            place = link.out.partition(".")[2]
            spec = spans.get(place)
            if spec is None and "out" in spans:
                into = self._spans(link.target).get("in")
                spec = spans["out"] if into is not None and into.topic == spans["out"].topic else None
            if spec is not None:
                yield place, spec

    def _check_place(self, node: str, place: str) -> None:
        if node in self._graph.retriers:
            raise SpanProblem(node, place, "expected no `spans` for a retrier, whose messages come back")
        spec = self._specs[node]
        if spec.contract is not None:
            problem = f"expected no `contract` for {node}, since spans do not show what a message was made into"
            raise SpanProblem(node, place, problem)
        if place in spec.taps:
            raise SpanProblem(node, place, f"expected either a tap or `spans` for {place}, found both")
        if place == "in" and node in self._graph.sources:
            problem = f"expected only `out`, since no node leads to {node}: its messages begin where it produces them"
            raise SpanProblem(node, place, problem)
        if place != "in" and not spec.to:
            problem = "expected only `in` for a node without `to`: it delivers at the end of its span"
            raise SpanProblem(node, place, problem)
        links = [link.out.partition(".")[2] for link in self._graph.links if link.source == node]
        if place not in ("in", "out", *links):
            raise SpanProblem(node, place, f"expected one of {', '.join(dict.fromkeys(('in', 'out', *links)))}")

    def _check_keys(self, node: str, place: str, spec: SpanSpec) -> None:
        if place == "in" and spec.id is not None:
            raise SpanProblem(node, place, "expected `id` only for `out`: a consumer's message has the id given there")
        delivers = place == "in" and f"{node}.out" in self._graph.delivery
        if spec.delivered is not None and not delivers:
            raise SpanProblem(node, place, "expected `delivered` only for `in` of a node without `to`")
        if place == "in" or node in self._graph.sources:
            return
        if self._id_of(spec) == "record":
            problem = (
                f"expected `id: trace`, or `ids: new` for {node}: "
                "a record has another id than the record that it was made from"
            )
            raise SpanProblem(node, place, problem)

    def _check_ends(self, node: str) -> None:
        """Check that the links of a node have spans of one topic at both ends, or at none, and one kind of id."""
        spans, outs = self._spans(node), self._outs[node]
        for link in self._graph.links:
            if link.source != node:
                continue
            place = link.out.partition(".")[2]
            sent, into = outs.get(place), self._spans(link.target).get("in")
            if sent is not None and into is None:
                problem = f"expected `spans` for `in` of {link.target}, too: its beacons have other ids otherwise"
                raise SpanProblem(node, place if place in spans else "out", problem)
            if sent is None and (into is not None or spans):
                problem = f"expected `spans` for `{place}` of {node}, too, with the topic that {link.target} consumes"
                raise SpanProblem(*((link.target, "in") if into is not None else (node, next(iter(spans)))), problem)
            if sent is not None and into is not None and sent.topic != into.topic:
                problem = f"expected the topic {sent.topic}, which {node} produces, found {into.topic}"
                raise SpanProblem(link.target, "in", problem)
        side = self._graph.side_of(node)
        ids = {self._id_of(spec) for other in side.nodes for spec in self._outs.get(other, {}).values()}
        if len(ids) > 1 and outs:
            raise SpanProblem(node, next(iter(spans)), "expected one `id` for all connected nodes, found two")

    def _id_of(self, spec: SpanSpec) -> SpanId:
        return spec.id or "record"

    def _scope(self, node: str, spec: SpanSpec) -> str:
        return spec.topic if self._id_of(spec) == "record" else self._graph.side_of(node).name

    def _producing(self, node: str) -> Iterator[SpanPoint]:
        begins = node in self._graph.sources
        places: dict[tuple[str, str], list[str]] = {}
        specs: dict[tuple[str, str], SpanSpec] = {}
        for place, spec in self._outs[node].items():
            places.setdefault((spec.service, spec.topic), ["in"] if begins else []).append(place)
            specs[spec.service, spec.topic] = spec
        for key, spec in specs.items():
            scope, span_id = self._scope(node, spec), self._id_of(spec)
            yield SpanPoint(node, *key, tuple(places[key]), True, begins, span_id, scope)

    def _consuming(self, node: str) -> Iterator[SpanPoint]:
        spec = self._spans(node).get("in")
        if spec is None:
            return
        before = next(link for link in self._graph.links if link.target == node)
        sent = self._outs[before.source][before.out.partition(".")[2]]
        places = ("in", "out") if f"{node}.out" in self._graph.delivery else ("in",)
        scope, span_id = self._scope(node, sent), self._id_of(sent)
        delivered = spec.delivered or "process"
        yield SpanPoint(node, spec.service, spec.topic, places, False, False, span_id, scope, delivered)

"""The site of a repair: the place where messages were lost, the topics or the queue before it, the nodes behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import networkx as nx

from lagloss.errors import UsageError
from lagloss.identity import ID_HEADER, TIME_HEADER
from lagloss_server.model.cuts import AFTER
from lagloss_server.model.definition import Definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.graph import Graph
from lagloss_server.model.nodes import flow_graph
from lagloss_server.model.place import Place, ends_of
from lagloss_server.model.taps import Extraction, Tap

HEADERS: Final = Extraction(
    IdExpression.parse(f"header:{ID_HEADER}"), TimeExpression.parse(f"header:{TIME_HEADER} in ms")
)
"""Where records of nodes with the SDK have their ids and event times."""


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A topic in which records are looked for, how their ids are read, and the topic that they are sent into."""

    topic: str
    extraction: Extraction
    target: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Return the source in a `document`."""
        return cls(document["topic"], Extraction.of(document["extraction"]), document["target"])

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"topic": self.topic, "extraction": self.extraction.document(), "target": self.target}


@dataclass(frozen=True, slots=True)
class RepairSite:
    """A place, and where its messages come from.

    `sources`: the topics before the place, then dead-letter queues, in which records are looked for in this order.
    `cluster`: name of the topics' Kafka cluster, empty for the one of lagloss's own topics. `queue`: URL of the SQS
    queue of a files pipeline, which has no sources.
    """

    place: Place
    cluster: str
    sources: tuple[RecordSource, ...]
    queue: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The topics that are sent into."""
        return tuple(dict.fromkeys(source.target for source in self.sources))


def parse_place(text: str, graph: Graph) -> Place:
    """Return the place of a graph that `link:A->B` or `node:N` means; a retrier is a node.

    Raises:
        UsageError: it is none.
    """
    places = {place.label: Place(place.kind, place.name) for place in graph.places}
    kind, _, name = text.partition(":")
    labels = [f"{kind} {name}"] if kind in ("link", "node") else []
    labels += [f"retrier {name}"] if kind == "node" else []
    place = next((places[label] for label in labels if label in places), None)
    if place is None:
        known = ", ".join(sorted(_written(place) for place in places.values()))
        raise UsageError(
            detail=f"--at: expected a place of {graph.definition.name} where messages can be lost, found {text!r};"
            f" places: {known}"
        )
    return place


def _written(place: Place) -> str:
    return f"{'link' if place.kind == 'link' else 'node'}:{place.name}"


def receiver_of(place: Place) -> str:
    """Return the node that receives what is sent again for a place."""
    return ends_of(place.name)[1] if place.kind == "link" else place.name


def input_of(definition: Definition, node: str) -> tuple[str, str | None]:
    """Return the cluster and the consumer group that a node of the graph reads in, as far as it declares them."""
    specs = {spec.name: spec for spec in definition.spec.nodes}
    spec = specs.get(node) or specs.get(node.removesuffix(AFTER))
    return ("", None) if spec is None else (spec.input_cluster, spec.input)


def find_site(
    definition: Definition, place: Place, from_topic: str | None, read_topics: Sequence[str] = ()
) -> RepairSite:
    """Return the site of a place, by the definition's taps; `from_topic`: the topic that the records are in;
    `read_topics`: that the node's group was seen to read, for the error alone.

    Raises:
        UsageError: no topic is named, or it is not the only one.
    """
    graph = definition.graph
    node = receiver_of(place)
    taps = _taps_before(definition, graph, place, node)
    if len({tap.cluster for tap in taps}) > 1:
        raise UsageError(detail=f"the topics before {place} are on several clusters, which a repair cannot send into")
    named = list(dict.fromkeys((tap.topic, tap.extraction) for tap in taps))
    queue = None if named else _queue_before(definition, graph, node)
    if queue is not None:
        if from_topic is not None:
            raise UsageError(
                detail=f"--from-topic: {node} receives files from a queue ({queue}), not from a topic. Leave it out, or"
                f" declare the `group` by which {node} reads {from_topic}"
            )
        return RepairSite(place, "", (), queue)
    if from_topic is None and not named:
        seen = f"; its consumer group reads {', '.join(read_topics)}" if read_topics else ""
        raise UsageError(
            detail=f"the definition of {definition.name} does not name the topic that {node} reads; name it with"
            f" --from-topic{seen}"
        )
    cluster = taps[0].cluster if taps else input_of(definition, node)[0]
    return RepairSite(place, cluster, tuple(_sources(definition, place, node, named, cluster, from_topic)))


def _queue_before(definition: Definition, graph: Graph, node: str) -> str | None:
    """Return the queue that a node receives from, or that it stands for: then it reads nothing itself, and the only
    node behind it receives from the queue."""
    specs = {spec.name: spec for spec in definition.spec.nodes}
    spec = specs.get(node)
    if spec is None or spec.input is not None:
        return None if spec is None else spec.queue
    behind = [specs.get(link.target) for link in graph.links if link.source == node]
    is_behind_others = any(link.target == node for link in graph.links)
    return behind[0].queue if is_behind_others and len(behind) == 1 and behind[0] is not None else None


def _sources(
    definition: Definition,
    place: Place,
    node: str,
    named: Sequence[tuple[str, Extraction]],
    cluster: str,
    from_topic: str | None,
) -> Iterable[RecordSource]:
    """Yield the sources; `named`: the topics before the place, each with every way to read ids from its records."""
    topics = {topic for topic, _ in named}
    if from_topic is None or from_topic in topics:
        chosen = [(topic, extraction) for topic, extraction in named if from_topic in (None, topic)]
        yield from (RecordSource(topic, extraction, topic) for topic, extraction in chosen)
        queues = [
            tap for tap in definition.taps if tap.node == node and "dead" in tap.places and tap.cluster == cluster
        ]
        targets = {topic for topic, _ in chosen}
        if len(targets) == 1 and place.kind != "link":
            (target,) = targets
            yield from (RecordSource(tap.topic, tap.extraction, target) for tap in queues)
        return
    if len(topics) > 1:
        known = ", ".join(sorted(topics))
        raise UsageError(
            detail=f"--from-topic: expected one of the topics that {node} reads ({known}), found {from_topic}"
        )
    tapped = [tap.extraction for tap in definition.taps if tap.topic == from_topic and tap.cluster == cluster]
    extractions = tapped or [extraction for _, extraction in named] or [HEADERS]
    target = next(iter(topics), from_topic)
    yield from (RecordSource(from_topic, extraction, target) for extraction in dict.fromkeys(extractions))


def _taps_before(definition: Definition, graph: Graph, place: Place, node: str) -> list[Tap]:
    """Return the taps of the topics that a node reads; of a link, those of what its source writes there."""
    reading = [tap for tap in definition.taps if tap.node == node and tap.group is not None and "in" in tap.places]
    outs = {
        link.out
        for link in graph.links
        if link.target == node and place in (Place("link", link.name), Place("node", node))
    }
    if node in graph.retriers:
        outs = {f"{user}.out:{node}" for user in graph.users(node)}
    written = [
        tap
        for tap in definition.taps
        if tap.group is None and any(f"{tap.node}.{tap_place}" in outs for tap_place in tap.places)
    ]
    if not reading:
        return written
    topics = {(tap.cluster, tap.topic) for tap in written} & {(tap.cluster, tap.topic) for tap in reading}
    if not topics:
        return reading
    return [tap for tap in (reading if place.kind == "node" else written) if (tap.cluster, tap.topic) in topics]


def not_idempotent(definition: Definition, node: str) -> tuple[str, ...]:
    """Return the nodes that a message which this one receives can come to, itself among them, and that do not declare
    `idempotent: true`. Nodes with new ids are no end: what they make of the message is made again."""
    nodes = definition.spec.nodes
    specs = {spec.name: spec for spec in nodes}
    graph = flow_graph(nodes)
    start = node if node in specs else node.removesuffix(AFTER)
    users = [spec.name for spec in nodes if spec.retries == node]
    reached = {name for user in (users or [start]) for name in (user, *nx.descendants(graph, user))}
    retriers = {specs[name].retries for name in reached if specs[name].retries} | ({node} if users else set())
    names = [*(spec.name for spec in nodes if spec.name in reached | retriers)]
    names += sorted(name for name in retriers if name is not None and name not in specs)
    return tuple(name for name in names if name not in specs or specs[name].idempotent is not True)

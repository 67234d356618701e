"""Discovery: a definition guessed from topics' samples and the topics that consumer groups have committed. Pure.

Topics that share ids are hops of one flow; where ids come first is upstream. A consumer group of a topic is the node
that reads it; which group wrote a topic no broker knows, so that it is the one of an upstream topic whose name is most
alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import networkx as nx
import numpy as np

from lagloss_server.base.yaml_files import comment, write_flow, write_line
from lagloss_server.extraction import Extractor
from lagloss_server.extraction.formats import Schemas
from lagloss_server.extraction.guesses import Guesses, guess
from lagloss_server.model.expressions import POSITION, IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction
from taps.sample import Sample

CANDIDATES: Final = 4
"""Guesses of ids that are compared between topics."""
LEAST_DISTINCT: Final = 0.5
"""Share of different ids in a sample: an update or a repeated message has the id of an earlier one."""
MOST_DISTINCT: Final = 0.99
"""Share of different ids in a sample below which it is worth a doubt that they are ids of messages."""
LEAST_SHARED: Final = 0.3
"""Share of the ids of the topic with fewer that another has to have, to be a hop of the same flow."""
SAME_TIME_MS: Final = 1.0
SAME_TIMES: Final = 0.95
"""Share of the ids in two topics that have the same event time in both, where a tap can read it in both."""
NO_ID: Final = (
    "no field is an id: each record is a message; later topics need a header with its place here, "
    f"`{POSITION}(header:NAME)`, or use fields that are the same everywhere, `hash($.a, $.b)`"
)
MAX_STEM: Final = 80
"""Characters of a node's name that are of its group or topic, so that it stays a name with what makes it unique."""


class NodeLabel(NamedTuple):
    """A node before it has a name: the group of this name, or whatever writes the topic of this name; `source` of it,
    where no topic before it has its ids."""

    kind: Literal["group", "writer", "source"]
    text: str


@dataclass(frozen=True)
class TopicGuess:
    """A topic's sample, and what ids and event times of it could be."""

    sample: Sample
    guesses: Guesses
    registry: Schemas | None = None

    @classmethod
    def of(cls, sample: Sample, registry: Schemas | None = None) -> TopicGuess:
        """Guess ids and event times of a topic."""
        return cls(sample, guess(sample.records, registry=registry), registry)

    @property
    def topic(self) -> str:
        return self.sample.topic

    @property
    def candidates(self) -> list[str]:
        """Return the likeliest expressions of an id, which is another one in most records."""
        return [guess.expression for guess in self.guesses.ids if guess.distinct >= LEAST_DISTINCT][:CANDIDATES]

    def distinct(self, id_expression: str) -> float:
        """Return the share of records with an id of their own; 1 of an expression that is no guess."""
        return next((guess.distinct for guess in self.guesses.ids if guess.expression == id_expression), 1.0)

    def times(self, id_expression: str, time_expression: str = "timestamp") -> dict[bytes, float]:
        """Return by id the time (epoch ms) of its first record: by an expression, or the record's own."""
        key = id_expression, time_expression
        if key not in self._times:
            extraction = Extraction(IdExpression.parse(id_expression), TimeExpression.parse(time_expression))
            extracted = Extractor(extraction, self.registry).extract(self.sample.records)
            self._times[key] = dict(zip(reversed(extracted.ids), reversed(extracted.event_ms.tolist()), strict=True))
        return self._times[key]

    @cached_property
    def _times(self) -> dict[tuple[str, str], dict[bytes, float]]:
        return {}


@dataclass(frozen=True, slots=True)
class TopicHop:
    """Topic `after` has ids of topic `before`. `shared`: of the ids in the sample with fewer, the share that the other
    has; `later_ms`: by how much they come later, in the median."""

    before: str
    after: str
    before_id: str
    after_id: str
    shared: float
    later_ms: float


def find_hops(topics: Sequence[TopicGuess]) -> list[TopicHop]:
    """Return the pairs of topics that share ids, upstream first, without those that another topic lies between."""
    hops = [hop for first, other in itertools.combinations(topics, 2) if (hop := _compare(first, other)) is not None]
    return [hop for hop in hops if not _is_indirect(hop, hops)]


def _compare(guess: TopicGuess, other: TopicGuess) -> TopicHop | None:
    best: TopicHop | None = None
    best_score = 0.0
    for first, second in itertools.product(guess.candidates, other.candidates):
        first_times, right = guess.times(first), other.times(second)
        common = first_times.keys() & right.keys()
        shared = len(common) / max(1, min(len(first_times), len(right)))
        # ids of customers are in both topics without fail, where some of their orders are lost: but they come again
        score = shared * guess.distinct(first) * other.distinct(second)
        if shared < LEAST_SHARED or score <= best_score:
            continue
        best_score = score
        later_ms = float(np.median([right[key] - first_times[key] for key in common]))
        if later_ms >= 0:
            best = TopicHop(guess.topic, other.topic, first, second, shared, later_ms)
        else:
            best = TopicHop(other.topic, guess.topic, second, first, shared, -later_ms)
    return best


def _is_indirect(hop: TopicHop, hops: Sequence[TopicHop]) -> bool:
    """Return whether another topic lies between the two."""
    behind = {other.after for other in hops if other.before == hop.before}
    return any(other.before in behind and other.after == hop.after for other in hops)


@dataclass(frozen=True, slots=True)
class Output:
    """A topic that a node writes, how its records are read, and the nodes that read it."""

    topic: str
    id: str
    event_time: str
    readers: tuple[str, ...]


@dataclass(slots=True)
class NodeGuess:
    """A node of the definition: its group, the topics that it writes, and doubts about it."""

    name: str
    group: str | None = None
    outputs: list[Output] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def to(self) -> tuple[str, ...]:
        """Return the next nodes, each once."""
        return tuple(dict.fromkeys(reader for output in self.outputs for reader in output.readers))


def propose(topics: Sequence[TopicGuess], groups: Mapping[str, Sequence[str]]) -> list[NodeGuess]:
    """Return the nodes of a definition, in the order of the flow; of topics that share no ids, the largest flow.

    Args:
        groups: the topics that each consumer group has committed offsets of.
    """
    nodes = _Proposal(topics, groups).nodes()
    links: nx.Graph[str] = nx.Graph()
    links.add_nodes_from(node.name for node in nodes)
    links.add_edges_from((node.name, after) for node in nodes for after in node.to)
    flow = max(nx.connected_components(links), key=lambda path: (len(path), nodes[0].name in path))
    in_flow = [node for node in nodes if node.name in flow]
    others = sorted(output.topic for node in nodes if node.name not in flow for output in node.outputs)
    if others:
        in_flow[0].notes.insert(0, f"not part of this flow (no shared ids): {', '.join(others)}")
    return in_flow


class _Proposal:
    def __init__(self, topics: Sequence[TopicGuess], groups: Mapping[str, Sequence[str]]) -> None:
        self._topics = {topic.topic: topic for topic in topics}
        self._hops = find_hops(topics)
        self._readers: dict[str, list[str]] = {
            topic: sorted(group for group, read in groups.items() if topic in read) for topic in self._topics
        }
        self._writer: dict[str, NodeLabel] = {}
        self._names: dict[NodeLabel, str] = {}
        self._notes: dict[NodeLabel, list[str]] = {}
        for hop in self._hops:
            self._writer.setdefault(hop.after, self._choose_writer(hop))

    def nodes(self) -> list[NodeGuess]:
        node_guesses: dict[NodeLabel, NodeGuess] = {}
        for topic in self._ordered():
            writer = self._writer.get(topic) or NodeLabel("source", topic)
            node = node_guesses.setdefault(writer, self._node(writer))
            identity, event_time, doubts = self._identity(topic)
            node.notes += [*self._notes.pop(writer, ()), *doubts]
            readers = [NodeLabel("group", group) for group in self._readers[topic]]
            node.outputs.append(Output(topic, identity, event_time, tuple(map(self._name, readers))))
            for reader in readers:
                node_guesses.setdefault(reader, self._node(reader))
        return list(node_guesses.values())

    def _ordered(self) -> list[str]:
        """Return the topics, upstream first."""
        before = {topic: {hop.before for hop in self._hops if hop.after == topic} for topic in self._topics}
        ordered: list[str] = []
        while len(ordered) < len(before):
            ready = [topic for topic in before if topic not in ordered and before[topic] <= set(ordered)]
            ordered += ready or [topic for topic in before if topic not in ordered][:1]
        return ordered

    def _node(self, label: NodeLabel) -> NodeGuess:
        return NodeGuess(self._name(label), label.text if label.kind == "group" else None)

    def _choose_writer(self, hop: TopicHop) -> NodeLabel:
        """Return the group that writes the topic after a hop; just its writer if no group reads the one before."""
        readers = self._readers[hop.before]
        if not readers:
            return NodeLabel("writer", hop.after)
        best = max(readers, key=lambda group: (SequenceMatcher(None, group, hop.after).ratio(), group))
        if len(readers) > 1:
            others = ", ".join(group for group in readers if group != best)
            note = f"{hop.after} could also be written by {others}, which also reads {hop.before}"
            self._notes.setdefault(NodeLabel("group", best), []).append(note)
        return NodeLabel("group", best)

    def _identity(self, topic: str) -> tuple[str, str, list[str]]:
        """Return id and event time of a topic's tap, and doubts."""
        guessed = self._topics[topic]
        before = [hop for hop in self._hops if hop.after == topic]
        shared = [hop.before_id for hop in self._hops if hop.before == topic] + [hop.after_id for hop in before]
        identity = [*shared, *guessed.candidates, POSITION][0]
        if not before:
            time = guessed.guesses.times[0].expression
            doubts = [NO_ID] if identity == POSITION else []
            if (distinct := guessed.distinct(identity)) < MOST_DISTINCT:
                doubts.append(
                    f"{1 - distinct:.0%} of its records have the id of another record and count as duplicates"
                )
            if time == "timestamp":
                doubts.append(
                    "the event time is the record's timestamp, which later topics do not keep: choose another field"
                )
            return identity, time, doubts
        hop = before[0]
        _, source_time, _ = self._identity(hop.before)
        expected = self._topics[hop.before].times(hop.before_id, source_time)
        for time in dict.fromkeys([source_time, *(candidate.expression for candidate in guessed.guesses.times)]):
            if _agree(expected, guessed.times(hop.after_id, time)):
                return identity, time, [f"{hop.shared:.0%} of its ids also occur in {hop.before}"]
        return identity, source_time, [f"no field has the event times of {hop.before}, which taps need"]

    def _name(self, label: NodeLabel) -> str:
        """Return a node's name, of letters, digits, `-` and `_`, which no other node has."""
        if label not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", label.text).strip("-_")[:MAX_STEM] or "node"
            name = f"{stem}-source" if label.kind == "source" else stem
            names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
            self._names[label] = next(name for name in names if name not in self._names.values())
        return self._names[label]


def _agree(expected: Mapping[bytes, float], times: Mapping[bytes, float]) -> bool:
    """Return whether nearly all ids in both have the same event time."""
    common = expected.keys() & times.keys()
    same = sum(abs(expected[key] - times[key]) < SAME_TIME_MS for key in common)
    return bool(common) and same >= SAME_TIMES * len(common)


def as_yaml(pipeline: str, nodes: Sequence[NodeGuess], lookback: str, cluster: str = "") -> str:
    """Return the definition as YAML to edit, doubts as comments. `cluster`: the name of the topics' and groups', empty
    for the one of lagloss's own topics."""
    head = {"apiVersion": "lagloss/v1", "kind": "Pipeline"}
    lines = [
        *(write_line({name: value}) for name, value in head.items()),
        f"metadata: {write_flow({'name': pipeline})}",
        "spec:",
        f"  {write_line({'lookback': lookback})}  # start with existing records",
        "  nodes:",
    ]
    for node in nodes:
        lines += [f"    {comment(note)}" for note in node.notes]
        lines.append(f"    - {write_flow(_document(node, cluster))}")
    return "\n".join(lines) + "\n"


def _document(node: NodeGuess, cluster: str) -> dict[str, Any]:
    to = {"to": list(node.to)} if node.to else {}
    copy = {"copy": "all"} if len(node.to) > 1 and len(node.outputs) == 1 else {}
    return {"name": node.name, **to, **copy, "taps": dict(_taps(node, {"cluster": cluster} if cluster else {}))}


def _taps(node: NodeGuess, cluster: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    if node.group is not None:
        yield "in", {"group": node.group, **cluster}
    for output in node.outputs:
        source = {"topic": output.topic, **cluster, "id": output.id, "eventTime": output.event_time}
        places = ["out"] if len(node.outputs) == 1 else [f"out:{reader}" for reader in output.readers]
        yield from ((place, source) for place in places)

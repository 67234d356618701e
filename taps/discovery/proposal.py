"""Definitions guessed from topics' samples and the topics that consumer groups have committed. Pure.

Topics that share ids are hops of one flow; where ids come first is upstream. A consumer group of a topic is the node
that reads it; which group wrote a topic no broker knows, so that it is the one of an upstream topic whose name is most
alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Final, Literal, NamedTuple

import networkx as nx
import numpy as np

from lagloss_server.base.yaml_files import comment, write_flow, write_line
from lagloss_server.model.expressions import POSITION
from lagloss_server.model.tap_resolution import MAX_POSITION_TOPIC
from taps.discovery.guessing import IdTimes, TopicGuess, TopicHop, find_hops

MOST_DISTINCT: Final = 0.99
"""Share of different ids in a sample below which it is worth a doubt that they are ids of messages."""
SAME_TIME_MS: Final = 1.0
SAME_TIMES: Final = 0.95
"""Share of the ids in two topics that have the same event time in both, where a tap can read it in both."""
NO_ID: Final = (
    "no field is an id: each record is a message; later topics need a header with its place here, "
    f"`{POSITION}(header:NAME)`, or use fields that are the same everywhere, `hash($.a, $.b)`"
)
NO_GROUP: Final = "no group"
NO_TIME: Final = "no event time"
MAX_STEM: Final = 80
"""Characters of a node's name that are of its group or topic, so that it stays a name with what makes it unique."""


class NodeLabel(NamedTuple):
    """A node before it has a name: the group of this name, or whatever writes the topic of this name; `source` of it,
    where no topic before it has its ids."""

    kind: Literal["group", "writer", "source"]
    text: str


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


@dataclass(frozen=True, slots=True)
class Proposal:
    """Flows, the largest first, each with its nodes in the order of the flow; and by topic why it is in none, or can
    not be measured as it is."""

    flows: list[list[NodeGuess]]
    reasons: dict[str, str]


def propose(
    topics: Sequence[TopicGuess], groups: Mapping[str, Sequence[str]], chosen: Collection[str] = ()
) -> Proposal:
    """Return the flows of topics that share ids, or readers.

    Args:
        groups: the topics that each consumer group has committed offsets of.
        chosen: topics to propose though no group reads them, and no other topic has their ids.
    """
    proposal = _Proposal(topics, groups)
    nodes = proposal.nodes()
    links: nx.Graph[str] = nx.Graph()
    links.add_nodes_from(node.name for node in nodes)
    links.add_edges_from((node.name, after) for node in nodes for after in node.to)
    number = {name: index for index, flow in enumerate(nx.connected_components(links)) for name in flow}
    by_number: dict[int, list[NodeGuess]] = {}
    for node in nodes:
        by_number.setdefault(number[node.name], []).append(node)
    flows = sorted(by_number.values(), key=len, reverse=True)
    alone = [flow for flow in flows if len(flow) == 1 and flow[0].outputs[0].topic not in chosen]
    if len(alone) < len(flows):
        flows = [flow for flow in flows if flow not in alone]
    else:
        alone = []
    reasons = {flow[0].outputs[0].topic: NO_GROUP for flow in alone}
    return Proposal(flows, reasons | proposal.reasons)


class _Proposal:
    def __init__(self, topics: Sequence[TopicGuess], groups: Mapping[str, Sequence[str]]) -> None:
        self._topics = {topic.topic: topic for topic in topics}
        self._hops = find_hops(topics)
        self._into: dict[str, list[TopicHop]] = {}
        for hop in self._hops:
            self._into.setdefault(hop.after, []).append(hop)
        self._readers: dict[str, list[str]] = {topic: [] for topic in self._topics}
        for group in sorted(groups):
            for topic in groups[group]:
                if topic in self._readers:
                    self._readers[topic].append(group)
        self._writer: dict[str, NodeLabel] = {}
        self._names: dict[NodeLabel, str] = {}
        self._taken: set[str] = set()
        self._notes: dict[NodeLabel, list[str]] = {}
        self.reasons: dict[str, str] = {}
        for hop in self._hops:
            self._writer.setdefault(hop.after, self._choose_writer(hop))

    def nodes(self) -> list[NodeGuess]:
        node_guesses: dict[NodeLabel, NodeGuess] = {}
        writers = set(self._writer.values())
        for topic in self._ordered():
            if (problem := self._topics[topic].problem) is not None:
                # ids of this topic's messages could not be those of what its readers write
                goes_on = any(NodeLabel("group", group) in writers for group in self._readers[topic])
                if goes_on or len(topic) > MAX_POSITION_TOPIC or not self._readers[topic]:
                    self.reasons[topic] = problem
                    continue
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
        before = {topic: {hop.before for hop in self._into.get(topic, ())} for topic in self._topics}
        ordered: dict[str, None] = {}
        while before:
            ready = [topic for topic, others in before.items() if others <= ordered.keys()] or [next(iter(before))]
            ordered |= dict.fromkeys(ready)
            for topic in ready:
                del before[topic]
        return list(ordered)

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
        before = self._into.get(topic, [])
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
        self.reasons[topic] = NO_TIME
        return identity, source_time, [f"no field has the event times of {hop.before}, which taps need"]

    def _name(self, label: NodeLabel) -> str:
        """Return a node's name, of letters, digits, `-` and `_`, which no other node has."""
        if label not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", label.text).strip("-_")[:MAX_STEM] or "node"
            name = f"{stem}-source" if label.kind == "source" else stem
            names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
            self._names[label] = next(name for name in names if name not in self._taken)
            self._taken.add(self._names[label])
        return self._names[label]


def _agree(expected: IdTimes, times: IdTimes) -> bool:
    """Return whether nearly all ids in both have the same event time."""
    before_ms, after_ms = expected.common(times)
    same = np.count_nonzero(np.abs(before_ms - after_ms) < SAME_TIME_MS)
    return before_ms.size > 0 and bool(same >= SAME_TIMES * before_ms.size)


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

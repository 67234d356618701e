"""Definitions guessed from samples of topics and tables, and the topics that consumer groups have committed. Pure.

Topics that share ids are hops of one flow; where ids come first is upstream. A consumer group of a topic is the node
that reads it; which group wrote a topic no broker knows, so that it is the one of an upstream topic whose name is most
alike. A table with the ids of a topic is written by a group that reads the topic and writes none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Final, Literal, NamedTuple

import networkx as nx

from lagloss_server.base.yaml_files import comment, write_flow, write_line
from lagloss_server.model.expressions import POSITION
from lagloss_server.model.tap_resolution import MAX_POSITION_TOPIC
from taps.discovery.guessing import TopicGuess, TopicHop, find_hops
from taps.discovery.tables import NO_IDS, Misfit, TableGuess, TableMatch, TableOutput, find_matches

MOST_DISTINCT: Final = 0.99
"""Share of different ids in a sample below which it is worth a doubt that they are ids of messages."""
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
    where no topic before it has its ids; or whatever fills a table from the topic of this name."""

    kind: Literal["group", "writer", "source", "table"]
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
    """A node of the definition: its group, the topics that it writes or the table that it fills, and doubts about
    it."""

    name: str
    group: str | None = None
    outputs: list[Output] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    table: TableOutput | None = None

    @property
    def to(self) -> tuple[str, ...]:
        """Return the next nodes, each once."""
        return tuple(dict.fromkeys(reader for output in self.outputs for reader in output.readers))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Flows, the largest first, each with its nodes in the order of the flow; and by topic, or table, why it is in
    none, or can not be measured as it is."""

    flows: list[list[NodeGuess]]
    reasons: dict[str, str]
    table_reasons: dict[str, str]


def propose(
    topics: Sequence[TopicGuess],
    groups: Mapping[str, Sequence[str]],
    chosen: Collection[str] = (),
    tables: Sequence[TableGuess] = (),
) -> Proposal:
    """Return the flows of topics that share ids, or readers.

    Args:
        groups: the topics that each consumer group has committed offsets of.
        chosen: topics to propose though no group reads them, and no other topic has their ids.
        tables: those that can be at the end of a flow.
    """
    proposal = _Proposal(topics, groups, tables)
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
    return Proposal(flows, reasons | proposal.reasons, proposal.table_reasons)


class _Proposal:
    def __init__(
        self, topics: Sequence[TopicGuess], groups: Mapping[str, Sequence[str]], tables: Sequence[TableGuess]
    ) -> None:
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
        self.table_reasons = {table.source: NO_IDS for table in tables}
        for hop in self._hops:
            self._writer.setdefault(hop.after, self._choose_writer(hop))
        self._matches = sorted(find_matches(topics, self._hops, tables), key=lambda match: -match.shared)
        self._filled: dict[NodeLabel, TableOutput] = {}
        for match in self._matches:
            self._fill(match)

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
            node.notes += doubts
            readers = [NodeLabel("group", group) for group in self._readers[topic]]
            readers += [label for label in [NodeLabel("table", topic)] if label in self._filled]
            node.outputs.append(Output(topic, identity, event_time, tuple(map(self._name, readers))))
            for reader in readers:
                node_guesses.setdefault(reader, self._node(reader))
        for label, node in node_guesses.items():
            node.notes = [*self._notes.get(label, ()), *node.notes]
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
        return NodeGuess(
            self._name(label), label.text if label.kind == "group" else None, table=self._filled.get(label)
        )

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

    def _fill(self, match: TableMatch) -> None:
        """Have a node fill a table; note why if none can."""
        table, topic = match.table.source, match.topic
        identity, event_time, _ = self._identity(topic)
        try:
            label, others = self._filler(match)
            output = match.output(identity, self._topics[topic].times(identity, event_time))
        except Misfit as misfit:
            self.table_reasons[table] = misfit.reason
            writer = self._writer.get(topic) or NodeLabel("source", topic)
            self._notes.setdefault(writer, []).append(f"not tapped: {table} has ids of {topic}, {misfit}")
            return
        del self.table_reasons[table]
        self._filled[label] = output
        self._notes.setdefault(label, []).extend(match.doubts(output))
        if others:
            also = f"{table} could also be filled by {', '.join(others)}, which also reads {topic}"
            self._notes[label].append(also)

    def _filler(self, match: TableMatch) -> tuple[NodeLabel, list[str]]:
        """Return the group that fills a table, and others that could; a node of its own if each group of the topic
        writes other topics. Raises Misfit: it has a table already."""
        writers = set(self._writer.values())
        labels = [NodeLabel("group", group) for group in self._readers[match.topic]]
        sinks = [label for label in labels if label not in writers] or [NodeLabel("table", match.topic)]
        free = [label for label in sinks if label not in self._filled]
        if not free:
            raise Misfit("another table", f"but so has {self._filled[sinks[0]].table}")
        name = match.table.table.partition(".")[2]
        best = max(free, key=lambda label: (SequenceMatcher(None, label.text, name).ratio(), label.text))
        return best, [label.text for label in free if label != best]

    def _identity(self, topic: str) -> tuple[str, str, list[str]]:
        """Return id and event time of a topic's tap, and doubts."""
        guessed = self._topics[topic]
        before = self._into.get(topic, [])
        shared = [hop.before_id for hop in self._hops if hop.before == topic] + [hop.after_id for hop in before]
        shared += [match.topic_id for match in self._matches if match.topic == topic]
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
            if expected.agrees(guessed.times(hop.after_id, time)):
                return identity, time, [f"{hop.shared:.0%} of its ids also occur in {hop.before}"]
        self.reasons[topic] = NO_TIME
        return identity, source_time, [f"no field has the event times of {hop.before}, which taps need"]

    def _name(self, label: NodeLabel) -> str:
        """Return a node's name, of letters, digits, `-` and `_`, which no other node has."""
        if label not in self._names:
            text = self._filled[label].table.partition(".")[2] if label.kind == "table" else label.text
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:MAX_STEM] or "node"
            name = f"{stem}-source" if label.kind == "source" else stem
            names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
            self._names[label] = next(name for name in names if name not in self._taken)
            self._taken.add(self._names[label])
        return self._names[label]


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
    if node.table is not None:
        yield "in" if node.group is None else "out", node.table.document()

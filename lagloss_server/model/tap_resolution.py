"""Resolution of a definition's taps: which topics, groups and tables are read, for which checkpoints, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lagloss_server.model.cuts import cut_nodes
from lagloss_server.model.expressions import POSITION, IdExpression, TimeExpression
from lagloss_server.model.flow import Flow
from lagloss_server.model.nodes import NodeSpec
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.model.taps import COMMIT, Extraction, Order, Tap, TapSpec

MAX_POSITION_TOPIC: Final = 223
"""Characters of a topic whose positions are ids: with `/`, a partition and an offset of any size, at most 255."""
_NO_POSITION: Final = (
    f"expected `{POSITION}` at the first topic alone, and at later ones `{POSITION}(…)` with the header that holds the "
    "record's place there"
)


class TapProblem(ValueError):
    """A problem in a node's taps; `node` and `place` locate it."""

    def __init__(self, node: str, place: str, problem: str) -> None:
        super().__init__(problem)
        self.node, self.place = node, place


class _Topic(NamedTuple):
    """A topic, and how its records are read."""

    cluster: str
    name: str
    extraction: Extraction


@dataclass(frozen=True, slots=True)
class _Identity:
    """Expressions that the next nodes inherit."""

    id: IdExpression | None = None
    event_time: TimeExpression | None = None


def taps_of(pipeline: str, nodes: Sequence[NodeSpec], flow: Flow, order: Order | None) -> list[Tap]:
    """Return the taps of valid nodes, in the order of their flow.

    A source with an `out` tap alone takes messages in where it sends them out; a sink with an `in` tap alone delivers
    by its group's commits. `order` is judged where a topic is tapped: the order of a group's messages is its topic's.

    Raises:
        TapProblem: an expression or topic is missing, or a place is none of the node's.
    """
    if not any(node.taps for node in nodes):
        return []
    return list(_Resolver(pipeline, nodes, flow, order).resolve())


def table_taps_of(pipeline: str, nodes: Sequence[NodeSpec], flow: Flow, recheck_ms: int = 0) -> list[TableTap]:
    """Return the taps of tables of valid nodes, in the order of their flow. `recheck_ms`: of those without their own.
    Raises TapProblem, as `taps_of` does."""
    if not any(isinstance(spec, TableSpec) for node in nodes for spec in node.taps.values()):
        return []
    return list(_Resolver(pipeline, nodes, flow, None).resolve_tables(recheck_ms))


class _Resolver:
    def __init__(self, pipeline: str, nodes: Sequence[NodeSpec], flow: Flow, order: Order | None) -> None:
        self._pipeline = pipeline
        self._order = order
        self._flow = flow
        self._specs = {node.name: node for node in cut_nodes(nodes)}
        self._topics: dict[str, _Topic] = {}
        """By the checkpoint whose records they are."""
        self._identities: dict[str, _Identity] = {}

    def resolve(self) -> Iterator[Tap]:
        self._origins = self._read_origins()
        for node in self._flow.nodes:
            self._read_topics(node)
        for node in self._flow.nodes:
            yield from self._topic_taps(node)
            yield from self._group_taps(node)

    def resolve_tables(self, recheck_ms: int) -> Iterator[TableTap]:
        for node in self._flow.nodes:
            taps = self._taps(node)
            places: dict[TableSpec, list[str]] = {}
            for place, spec in taps.items():
                if isinstance(spec, TableSpec):
                    places.setdefault(spec, []).append(place)
            is_first = self._is_first(node)
            if is_first and "in" not in taps:
                sent = [spec for spec, own in places.items() if any(place.startswith("out") for place in own)]
                for spec in sent[:1] if self._specs[node].copy_ else sent:
                    places[spec].insert(0, "in")
            for spec, own in places.items():
                if spec.recheck is None and recheck_ms:
                    spec = spec.model_copy(update={"recheck": recheck_ms})
                yield TableTap(self._pipeline, node, spec, tuple(own), is_first)

    def _read_origins(self) -> tuple[str, ...]:
        """Return the topics whose records' own positions are ids: what a source sends, or the first group reads.

        Their records' positions in other topics say nothing, and two topics of the same name would share ids.
        """
        topics: dict[tuple[str, str], None] = {}
        for node in self._flow.nodes:
            exits: dict[tuple[str, str], None] = {}
            for place, spec in self._taps(node).items():
                if not isinstance(spec, TapSpec) or spec.id is None or not spec.id.is_own_position:
                    continue
                if place != "in" and (self._before(node) or not place.startswith("out") or self._has_group(node)):
                    expected = "only for `out` of a source, or for `in` with the topic that its group reads"
                    raise TapProblem(node, place, f"expected `{POSITION}` {expected}, found it for {place}")
                if spec.topic is None:
                    raise TapProblem(node, place, f"expected a `topic`, whose records' `{POSITION}` is the id")
                if len(spec.topic) > MAX_POSITION_TOPIC:
                    problem = f"expected a topic of up to {MAX_POSITION_TOPIC} characters with the id `{POSITION}`"
                    raise TapProblem(node, place, f"{problem}, found {len(spec.topic)}")
                topic = spec.cluster or "", spec.topic
                if any(other[1] == topic[1] and other != topic for other in topics):
                    problem = f"expected topics of different names with the id `{POSITION}`, found two clusters'"
                    raise TapProblem(node, place, f"{problem} {spec.topic}, whose records would share ids")
                topics[topic] = None
                if place != "in":
                    exits[topic] = None
                if len(exits) > 1 and self._specs[node].copy_:
                    problem = f"expected one topic with the id `{POSITION}` for `copy`"
                    raise TapProblem(node, place, f"{problem}: a message has another position in each topic")
        return tuple(name for _, name in topics)

    def _has_group(self, node: str) -> bool:
        return isinstance(self._taps(node).get("in"), TapSpec)

    def _taps(self, node: str) -> Mapping[str, TapSpec | TableSpec | str]:
        """Return the taps of a node by place: `out` spread over its outs, the default of sinks added."""
        taps = dict(self._specs[node].taps) if node in self._specs else {}  # a retrier need not be declared
        exits = [name.partition(".")[2] for name in self._flow.exits(node)]
        everywhere = taps.pop("out", None) if "out" not in exits else None
        if everywhere is not None:
            taps = {**{place: everywhere for place in exits if place.startswith("out:")}, **taps}
        reader = taps.get("in")
        if self._is_sink(node) and "out" in exits and isinstance(reader, TapSpec):
            if reader.connector is not None and taps.get("out", COMMIT) == COMMIT:
                problem = "expected the topic that the connector writes: its offsets also pass records that it skips"
                raise TapProblem(node, "out", problem)
            taps.setdefault("out", COMMIT)
        if self._is_sink(node) and "out" in exits and isinstance(reader, TableSpec):
            taps.setdefault("out", reader)
        for place, spec in taps.items():
            self._check(node, place, spec, exits)
        return taps

    def _check(self, node: str, place: str, spec: TapSpec | TableSpec | str, exits: Sequence[str]) -> None:
        if place != "in" and place not in exits:
            raise TapProblem(node, place, f"expected one of in, {', '.join(exits)}, found {place}")
        if spec == COMMIT and not (place == "out" and self._is_sink(node)):
            raise TapProblem(
                node, place, f"expected `commit` only for `out` of a node without `to`, found it for {place}"
            )
        if spec == COMMIT and not isinstance(self._specs[node].taps.get("in"), TapSpec):
            raise TapProblem(node, place, "expected an `in` tap, since `out` is `commit`")
        if isinstance(spec, TapSpec) and (spec.reader is None) == (place == "in"):
            wanted = "`group` or `connector`" if place == "in" else "`topic`"
            what = "only a topic" if spec.reader is None else f"a {'group' if spec.group else 'connector'}"
            raise TapProblem(node, place, f"expected a {wanted}, found {what}")

    def _is_first(self, node: str) -> bool:
        return node not in self._flow.retriers and not self._before(node)

    def _is_sink(self, node: str) -> bool:
        return not self._flow.following(node) and node not in self._flow.retriers

    def _read_topics(self, node: str) -> None:
        """Learn the topics of a node's exits, and what the next nodes inherit."""
        inherited = next(filter(None, map(self._identities.get, self._before(node))), _Identity())
        for place, spec in self._taps(node).items():
            if isinstance(spec, TapSpec) and spec.topic is not None and place != "in":
                extraction = self._extraction(node, place, spec, inherited)
                self._topics[f"{node}.{place}"] = _Topic(spec.cluster or "", spec.topic, extraction)
                self._identities.setdefault(node, _Identity(extraction.id, extraction.event_time))
        self._identities.setdefault(node, inherited)

    def _before(self, node: str) -> list[str]:
        if node in self._flow.retriers:
            return list(self._flow.users(node))
        return [link.source for link in self._flow.links if link.target == node]

    def _extraction(self, node: str, place: str, spec: TapSpec, inherited: _Identity) -> Extraction:
        message_id, event_time = spec.id or inherited.id, spec.event_time or inherited.event_time
        if message_id is None:
            raise TapProblem(node, place, "expected an `id`, since no preceding tap has one")
        if event_time is None:
            raise TapProblem(node, place, "expected an `eventTime`, since no preceding tap has one")
        if spec.event_time is None and event_time.part.source == "timestamp":
            problem = (
                "expected an `eventTime`: the preceding tap uses the record timestamp, which other topics can lack"
            )
            raise TapProblem(node, place, problem)
        origins = self._origins_of(node, place, spec, message_id, inherited)
        form = spec.format or "auto"
        try:
            return Extraction(message_id, event_time, spec.where, form, spec.schema_, spec.message, origins)
        except ValueError as error:
            raise TapProblem(node, place, str(error)) from error

    def _origins_of(
        self, node: str, place: str, spec: TapSpec, message_id: IdExpression, inherited: _Identity
    ) -> tuple[str, ...]:
        """Return the topics that an id's positions may be of; none of an id of another form."""
        preceding = [inherited, *(self._identities.get(name, _Identity()) for name in self._before(node))]
        ids = [identity.id for identity in preceding if identity.id is not None]
        if message_id.is_own_position:
            if spec.topic not in self._origins or not all(known.is_own_position for known in ids):
                raise TapProblem(node, place, _NO_POSITION)
            return (spec.topic,)
        if message_id.form != "position":
            if any(known.form == "position" for known in ids):
                raise TapProblem(node, place, _NO_POSITION)
            return ()
        if not self._origins:
            problem = f"expected a preceding tap with the id `{POSITION}`, of whose topic these positions are"
            raise TapProblem(node, place, problem)
        return self._origins

    def _topic_taps(self, node: str) -> Iterator[Tap]:
        taps = self._taps(node)
        places: dict[_Topic, list[str]] = {}
        for place in taps:
            if place != "in" and (topic := self._topics.get(f"{node}.{place}")):
                places.setdefault(topic, []).append(place)
        is_first = self._is_first(node)
        if is_first and "in" not in taps:
            sent = [topic for topic, taps in places.items() if any(place.startswith("out") for place in taps)]
            for topic in sent[:1] if self._specs[node].copy_ else sent:
                places[topic].insert(0, "in")
        for topic, resolved in places.items():
            yield self._tap(node, topic, None, tuple(resolved), first=is_first)

    def _group_taps(self, node: str) -> Iterator[Tap]:
        taps = self._taps(node)
        spec = taps.get("in")
        if not isinstance(spec, TapSpec):
            return
        places = ("in", "out") if taps.get("out") == COMMIT else ("in",)
        is_first = self._is_first(node)
        for topic in self._inputs(node, spec):
            yield replace(self._tap(node, topic, spec.reader, places, first=is_first), offsets=spec.storage)

    def _inputs(self, node: str, spec: TapSpec) -> list[_Topic]:
        """Return the topics that a node's reader reads: the one that its tap names, or those of the nodes before it."""
        inherited = next(filter(None, map(self._identities.get, self._before(node))), _Identity())
        if spec.topic is not None:
            named = [topic for topic in self._topics.values() if topic[:2] == (spec.cluster or "", spec.topic)]
            extraction = named[0].extraction if named else None
            start = _Identity(extraction.id, extraction.event_time) if extraction else inherited
            own = self._extraction(node, "in", spec, start)
            if extraction is not None and not (spec.where or spec.format or spec.schema_ or spec.message):
                own = replace(extraction, id=own.id, event_time=own.event_time)
            return [_Topic(spec.cluster or "", spec.topic, own)]
        into = [link.out for link in self._flow.links if link.target == node]
        into += [f"{retrier}.out:{node}" for retrier in self._flow.retriers if node in self._flow.users(retrier)]
        into += [f"{user}.out:{node}" for user in self._flow.users(node)] if node in self._flow.retriers else []
        topics = dict.fromkeys(self._topics[name] for name in into if name in self._topics)
        if not topics:
            if spec.connector is not None:
                problem = (
                    "expected a `topic` that the connector reads, since no preceding tap has one; a connector that"
                    " reads a database, such as Debezium, is a source: tap its `out` alone"
                )
                raise TapProblem(node, "in", problem)
            raise TapProblem(node, "in", "expected a `topic` for the group, since no preceding tap has one")
        return list(topics)

    def _tap(self, node: str, topic: _Topic, group: str | None, places: tuple[str, ...], *, first: bool) -> Tap:
        order = self._order if group is None else None
        return Tap(self._pipeline, node, topic.cluster, topic.name, group, places, topic.extraction, first, order)

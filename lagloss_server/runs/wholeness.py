"""Wholeness: whether all messages of a span of event time have come through a pipeline, or as far as one of its nodes.

A job that reads what a node wrote asks this instead of sleeping: the span is whole once each of its windows is closed
with complete evidence and no message of it is on its way there, be it pending, perhaps lost or overdue. Messages that
are lost for certain are not waited for; more of them than the SLA allows make the span lossy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select

from lagloss_server.base import format as fmt
from lagloss_server.base.errors import UnknownNode
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.definition import in_force
from lagloss_server.model.graph import Graph, GraphPlace
from lagloss_server.model.time_range import FromTo, TimeRange
from lagloss_server.model.window import Window
from lagloss_server.store.results import unpack_facts, unpack_window
from lagloss_server.store.schema.core import WindowRow, table_of
from lagloss_server.store.store import Store

WholenessState = Literal["whole", "waiting", "lossy"]


class WholenessDocument(FromTo):
    """Whether a range is whole, as the collector answers."""

    pipeline: str
    node: str | None
    state: WholenessState
    why: str
    minutes: int
    closed: int
    messages: int
    missing: int
    lost: int


@dataclass(frozen=True, slots=True)
class WindowState:
    """A closed window: its result, and its facts."""

    result: Window
    facts: WindowFacts


@dataclass(frozen=True, slots=True)
class Wholeness(TimeRange):
    """Whether the messages of a time range are there, up to `node` or in the whole pipeline. `missing`: messages that
    are not there, the `lost` ones among them; `incomplete`: nodes whose evidence is."""

    pipeline: str
    node: str | None
    closed: int
    messages: int
    missing: int
    lost: int
    incomplete: tuple[str, ...]
    max_loss: float

    @property
    def state(self) -> WholenessState:
        if self.closed < self.minutes or self.incomplete or self.missing > self.lost:
            return "waiting"
        return "lossy" if self.lost > self.max_loss * self.messages else "whole"

    @property
    def why(self) -> str:
        """Return what is waited for, or was found."""
        if self.closed < self.minutes:
            return f"{self.minutes - self.closed} of {self.minutes} minutes are not closed"
        if self.incomplete:
            return f"evidence is incomplete at {', '.join(self.incomplete)}"
        if self.missing > self.lost:
            return f"{fmt.counted(self.missing - self.lost, 'message')} in flight"
        return f"{fmt.count(self.lost)} of {fmt.counted(self.messages, 'message')} lost"

    def document(self) -> WholenessDocument:
        return {
            "pipeline": self.pipeline,
            **self.bounds(),
            "node": self.node,
            "state": self.state,
            "why": self.why,
            "minutes": self.minutes,
            "closed": self.closed,
            "messages": self.messages,
            "missing": self.missing,
            "lost": self.lost,
        }


def read_wholeness(store: Store, pipeline: str, from_s: int, to_s: int, node: str | None = None) -> Wholeness:
    """Return whether the windows with from <= start < to are whole, up to a node or altogether.

    Raises:
        UnknownPipeline, UnknownNode: there is none of this name.
    """
    versions = store.versions_of(pipeline)
    newest = versions[-1].definition
    steps = newest.graph.steps
    if node is not None and node not in steps:
        raise UnknownNode(pipeline=pipeline, node=node, known=", ".join(steps))

    def windows() -> Iterator[tuple[Graph, WindowState]]:
        window = table_of(WindowRow)
        statement = select(window).where(
            window.c.pipeline == pipeline, window.c.window_start >= from_s, window.c.window_start < to_s
        )
        with store.engine.connect() as connection:
            for row in connection.execute(statement.order_by(window.c.window_start)):
                graph = versions[in_force(versions, row.window_start)].definition.graph
                if node is None or node in graph.steps:
                    result = unpack_window(pipeline, row.window_start, row.document)
                    facts = unpack_facts(pipeline, row.window_start, row.facts)
                    if result is not None and facts is not None:
                        yield graph, WindowState(result, facts)

    return wholeness(pipeline, from_s, to_s, node, windows(), newest.spec.sla.loss.max)


def wholeness(
    pipeline: str,
    from_s: int,
    to_s: int,
    node: str | None,
    windows: Iterable[tuple[Graph, WindowState]],
    max_loss: float,
) -> Wholeness:
    """Judge the closed windows of a span, each with the graph in force at its start."""
    closed = messages = missing = lost = 0
    incomplete: dict[str, None] = {}
    for graph, window in windows:
        upto = frozenset(graph.nodes) if node is None else _upto(graph, node)
        places = [place for place in graph.places if _leads(graph, place, upto)]
        closed += 1
        messages += sum(messages for messages, nodes in _sides(window.result) if upto.intersection(nodes))
        missing += _missing(graph, window.facts, {place.label for place in places})
        losses = dict(window.result.losses)
        lost += sum(losses[label].min for label in {place.label for place in places} if label in losses)
        incomplete |= dict.fromkeys(name for name in _incomplete(graph, window.result) if name in upto)
        if "failed" in window.result.reasons:
            closed -= 1  # closing it failed: nothing is known
    return Wholeness(
        from_s, to_s, pipeline, node, closed, messages, missing, min(lost, missing), (*incomplete,), max_loss
    )


def _upto(graph: Graph, node: str) -> frozenset[str]:
    """Return a node and all those before it, across cuts: what it makes is whole if what it is made of is."""
    nodes = {*graph.leading_to(node)}
    for before, after in reversed(graph.cuts):
        if after in nodes:
            nodes |= graph.leading_to(before)
    return frozenset(nodes)


def _sides(window: Window) -> list[tuple[int, Collection[str]]]:
    """Return the messages and the nodes of each side."""
    everything = (window.messages, [node.name for node in window.nodes])
    return [(side.messages, side.nodes) for side in window.sides] or [everything]


def _missing(graph: Graph, facts: WindowFacts, labels: set[str]) -> int:
    return sum(
        pattern.count
        for pattern in facts.patterns
        if any(place.label in labels for place in missing_places(graph, pattern.mask))
    )


def _incomplete(graph: Graph, window: Window) -> Iterator[str]:
    """Yield the nodes whose evidence is waited for.

    Where a process died it stays incomplete for good (rule 16), and what is missing there says what is waited for; only
    at a source it leaves unsure what there is.
    """
    for node in window.nodes:
        has_crash = f"crash:{node.name}" in window.reasons and node.name not in graph.sources
        if not node.complete and not has_crash and window.verdict != "idle":
            yield node.name


def _leads(graph: Graph, place: GraphPlace, upto: frozenset[str]) -> bool:
    if place.kind == "retrier":
        return any(user in upto for user in graph.users(place.name))
    return place.node in upto

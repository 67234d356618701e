"""The hops of a pipeline in the order of the flow, and what each of them adds to the lag: along one path, or of one
message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import F32
from lagloss_server.base import format as fmt
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.window import Window

HopKind = Literal["arrival", "queue", "process"]
BEFORE_FIRST: Final = "source"
"""Label of a message's hop before the first checkpoint: from its event time until it comes in there."""


class Hop(NamedTuple):
    """One segment of the lag stack: time at a node, on a link, or before the first node, which is not a `Place`. `node`
    owns it: the link's target, or the node itself. (A tuple: there are tens of thousands of look-ups by hop in a day of
    minutes.)"""

    kind: HopKind
    node: str
    source: str | None = None

    @property
    def label(self) -> str:
        match self.kind:
            case "arrival":
                return f"arrival at {self.node}"
            case "queue":
                return f"queue {self.source} → {self.node}"
            case _:
                return f"process {self.node}"

    @property
    def uid(self) -> str:
        """Return what tells it from all others of a pipeline, in charts."""
        return f"{self.kind}-{self.source}-{self.node}"

    def document(self) -> dict[str, Any]:
        return {"kind": self.kind, "from": self.source, "node": self.node}


@dataclass(frozen=True, slots=True)
class HopLags:
    """p95s in ms, signed: what each hop adds, and the lags in and out of each node; what is not known is left out."""

    hops: Mapping[Hop, float] = field(default_factory=dict)
    lag_in: Mapping[str, float] = field(default_factory=dict)
    lag_out: Mapping[str, float] = field(default_factory=dict)


def hops(graph: Graph) -> list[Hop]:
    """Arrival at the sources, then for each node its incoming links and itself."""
    hops_ = [Hop("arrival", source) for source in graph.sources]
    for node in graph.steps:
        hops_ += [Hop("queue", node, link.source) for link in graph.links if link.target == node]
        hops_.append(Hop("process", node))
    return hops_


def deliveries(graph: Graph) -> list[str]:
    """Return the nodes without next nodes, in the order of the flow."""
    return [node_of(checkpoint) for checkpoint in graph.delivery]


def of_window(window: Window, graph: Graph) -> HopLags:
    """Return the hops of a window."""
    values: dict[Hop, float] = {}
    lag_in = {node.name: node.lag_in_p95_ms for node in window.nodes}
    lag_out = {node.name: node.lag_out_p95_ms for node in window.nodes}
    for source in graph.sources:
        if (lag_ms := lag_in.get(source)) is not None:
            values[Hop("arrival", source)] = lag_ms
    for node in window.nodes:
        if node.process_duration_p95_ms is not None:
            values[Hop("process", node.name)] = node.process_duration_p95_ms
    for link in window.links:
        if link.queue_time_p95_ms is not None:
            values[Hop("queue", link.target, link.source)] = link.queue_time_p95_ms
    return HopLags(values, _known(lag_in), _known(lag_out))


def of_checkpoints(p95_ms: Callable[[tuple[str, ...]], float | None], graph: Graph) -> HopLags:
    """Return the hops by Process_Duration(N) = Lag_out(N) - Lag_in(N) and Queue_Time(N -> M) = Lag_in(M) - Lag_out(N).

    `p95_ms` reads the p95 of the live lags at some checkpoints together from their merged sketches.
    """
    lag_in = {node: p95_ms((f"{node}.in",)) for node in graph.steps}
    lag_out = {node: p95_ms(graph.outs(node)) for node in graph.steps}
    values: dict[Hop, float] = {}
    for source in graph.sources:
        _add(values, Hop("arrival", source), lag_in[source], 0.0)
    for node in graph.steps:
        _add(values, Hop("process", node), lag_out[node], lag_in[node])
    for link in graph.links:
        _add(values, Hop("queue", link.target, link.source), lag_in[link.target], p95_ms((link.out,)))
    return HopLags(values, _known(lag_in), _known(lag_out))


def _known(lags: Mapping[str, float | None]) -> dict[str, float]:
    return {node: lag for node, lag in lags.items() if lag is not None}


def _add(values: dict[Hop, float], hop: Hop, later_ms: float | None, earlier_ms: float | None) -> None:
    if later_ms is not None and earlier_ms is not None:
        values[hop] = later_ms - earlier_ms


def path_ms(lags: HopLags, graph: Graph, delivery: str | None = None) -> dict[Hop, float]:
    """Return the hops of the slowest path to `delivery`, or to the delivery with the highest p95, with their p95.

    Where routes meet, the slowest is the one whose hops add up to the most. Empty where no path is known whole.
    """
    values = lags.hops
    paths: dict[str, tuple[float, list[Hop]]] = {}
    for node in graph.steps:
        arrival = Hop("arrival", node)
        before = [(values[arrival], [arrival])] if node in graph.sources and arrival in values else []
        for link in graph.links:
            queue = Hop("queue", node, link.source)
            if link.target == node and link.source in paths and queue in values:
                total, path = paths[link.source]
                before.append((total + values[queue], [*path, queue]))
        if before:
            total, path = max(before, key=itemgetter(0))
            process = Hop("process", node)
            paths[node] = (total + values[process], [*path, process]) if process in values else (total, path)
    last = {node: (lags.lag_in if graph.takes_in_only(node) else lags.lag_out).get(node) for node in deliveries(graph)}
    ends = {node: lag for node, lag in last.items() if node in paths and lag is not None}
    if delivery is None and ends:
        delivery = max(ends, key=lambda node: ends[node])
    return {hop: values[hop] for hop in paths[delivery][1]} if delivery in ends else {}


def hop_labels(graph: Graph) -> tuple[str, ...]:
    """Return the labels of the hops that may hold a message: `BEFORE_FIRST`, then those of `Graph.spans`."""
    return BEFORE_FIRST, *(label for label, _, _ in graph.spans)


def longest_hops(graph: Graph, lags: F32, first: F32) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float64]]:
    """Return for each of some messages the number of the hop (in `hop_labels`) that held it longest on its way to where
    it arrived latest, and for how long (ms, -1 where it is not known).

    `lags` (messages x checkpoints): the smallest lag (ms) at each; `first` (destinations x messages): the lag of its
    first arrival; both infinite where the message was not seen.
    """
    bits = np.array([graph.bit[name] for name in graph.delivery])
    latest = np.argmax(np.where(np.isfinite(first), first, -np.inf), axis=0)
    longest = lags[:, [graph.bit[name] for name in graph.entrances]].min(axis=1).astype(np.float64)
    longest[~np.isfinite(longest)] = -np.inf
    which = np.zeros(len(lags), np.int16)
    for number, (_, arrivals, departures) in enumerate(graph.spans, start=1):
        into, out = (
            lags[:, [graph.bit[name] for name in names]].min(axis=1).astype(np.float64)
            for names in (arrivals, departures)
        )
        is_on_way = np.isin(bits[latest], [graph.bit[name] for name in graph.delivery if graph.leads(arrivals, name)])
        both = np.isfinite(into) & np.isfinite(out) & is_on_way
        kept_ms = np.full(len(lags), -np.inf)
        kept_ms[both] = out[both] - into[both]
        which[kept_ms > longest] = number
        longest = np.maximum(longest, kept_ms)
    return which, np.where(np.isfinite(longest), longest, -1.0)


def late_words(lag_ms: float, hop: str | None, hop_ms: float | None) -> str:
    """Return for people how late a message is, and what held it: `12.3 s, 11 s of it at link src->mid`."""
    lag = fmt.duration(lag_ms)
    if hop is None or hop_ms is None:
        return lag
    return f"{lag}, {fmt.duration(hop_ms)} of it {'before the first node' if hop == BEFORE_FIRST else f'at {hop}'}"

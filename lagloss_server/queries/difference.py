"""The set difference between two checkpoints of a window, read from the log: ids(from) without ids(to), by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NotRequired

import numpy as np

from lagloss.wire.format import share_of
from lagloss.wire.traces import TraceContext
from lagloss_server.base.errors import UnknownCheckpoint
from lagloss_server.base.trace_links import NO_LINKS, TraceDocument, TraceLinks
from lagloss_server.model.graph import Graph
from lagloss_server.model.message_ids import unescape_id
from lagloss_server.model.time_range import FromTo
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.window_blocks import WindowBlocks, read_window
from lagloss_server.store.store import Store

MAX_NAMES = 1_000


class DifferenceDocument(FromTo):
    """Ids at the checkpoint `from` and not at `to`. `truncated`: if there are more than are named; `sample`: the share
    of the ids that was looked at, if it was not all of them; `traces`: by name, those that are known."""

    window_start: str
    count: int
    message_ids: list[str]
    traces: NotRequired[dict[str, TraceDocument]]
    truncated: NotRequired[bool]
    sample: NotRequired[float]


@dataclass(frozen=True)
class Difference:
    """Ids at `source` and not at `target` in one window. `message_ids` holds at most 1,000 names, in order; a hash in
    hex where the name is not known. `sample`: the share of the window's ids that was looked at; nothing is scaled.
    `traces`: of those messages whose trace is known, by name."""

    source: str
    target: str
    window_start_s: int
    count: int
    message_ids: tuple[str, ...]
    sample: float = 1.0
    traces: Mapping[str, TraceContext] = field(default_factory=dict)

    def document(self, links: TraceLinks = NO_LINKS) -> DifferenceDocument:
        document_: DifferenceDocument = {
            "from": self.source,
            "to": self.target,
            "window_start": rfc3339(self.window_start_s),
            "count": self.count,
            "message_ids": list(map(unescape_id, self.message_ids)),
        }
        traces = {unescape_id(name): links.document(trace, self.window_start_s) for name, trace in self.traces.items()}
        if traces:
            document_["traces"] = traces
        if self.count > len(self.message_ids):
            document_["truncated"] = True
        if self.sample < 1:
            document_["sample"] = self.sample
        return document_


def difference(
    store: Store, log: BeaconLog, pipeline: str, window_start_s: int, source: str, target: str
) -> Difference:
    """Read one window's blocks and compare two of its checkpoints.

    Raises:
        UnknownCheckpoint: the pipeline has no such checkpoint.
        NotEnoughData, KafkaException: as `read_window`.
    """
    check_points(store.graph_at(pipeline, window_start_s), source, target)
    return difference_in(read_window(store, log, pipeline, window_start_s), source, target)


def check_points(graph: Graph, *checkpoints: str) -> None:
    """Raise UnknownCheckpoint for one that the graph does not have."""
    for name in checkpoints:
        if name not in graph.bit:
            names = ", ".join(graph.checkpoints)
            raise UnknownCheckpoint(pipeline=graph.definition.name, checkpoint=name, known=names)


def difference_in(blocks: WindowBlocks, source: str, target: str, limit: int | None = MAX_NAMES) -> Difference:
    """Return the difference within blocks that were read, with so many names at most (None: all)."""
    ids = np.setdiff1d(blocks.ids(source), blocks.ids(target), assume_unique=True)
    shown, known_traces = ids[:limit], blocks.traces(ids[:limit])
    named = sorted(zip(blocks.names(shown), shown.tolist(), strict=True))
    traces = {name: known_traces[id_hash] for name, id_hash in named if id_hash in known_traces}
    names = tuple(name for name, _ in named)
    return Difference(source, target, blocks.window_start_s, int(ids.size), names, share_of(blocks.sample), traces)

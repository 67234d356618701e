"""The set difference between two checkpoints of a window, read from the log: ids(from) without ids(to), by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lagloss.beacon_log import BeaconLog
from lagloss.errors import UnknownCheckpoint
from lagloss.result import rfc3339
from lagloss.store import Store
from lagloss.window_blocks import read_window
from lagloss.wire import share_of

MAX_NAMES = 1_000


@dataclass(frozen=True)
class Difference:
    """Ids at `source` and not at `target` in one window. `message_ids` holds at most 1,000 names, in order; a hash in
    hex where the name is not known. `sample`: the share of the window's ids that was looked at; nothing is scaled."""

    source: str
    target: str
    window_start_s: int
    count: int
    message_ids: tuple[str, ...]
    sample: float = 1.0

    def document(self) -> dict[str, Any]:
        found = {
            "from": self.source,
            "to": self.target,
            "window_start": rfc3339(self.window_start_s),
            "count": self.count,
            "message_ids": list(self.message_ids),
        }
        return {
            **found,
            **({"truncated": True} if self.count > len(self.message_ids) else {}),
            **({"sample": self.sample} if self.sample < 1 else {}),
        }


def difference(
    store: Store, log: BeaconLog, pipeline: str, window_start_s: int, source: str, target: str
) -> Difference:
    """Read one window's blocks and compare two of its checkpoints.

    Raises:
        UnknownCheckpoint: the pipeline has no such checkpoint.
        NotEnoughData, KafkaException: as `read_window`.
    """
    graph = store.graph_at(pipeline, window_start_s)
    for name in (source, target):
        if name not in graph.bit:
            raise UnknownCheckpoint(pipeline=pipeline, checkpoint=name, known=", ".join(graph.checkpoints))
    found = read_window(store, log, pipeline, window_start_s)
    ids = np.setdiff1d(found.ids(source), found.ids(target), assume_unique=True)
    names = found.names(ids[:MAX_NAMES])
    return Difference(source, target, window_start_s, int(ids.size), tuple(sorted(names)), share_of(found.sample))

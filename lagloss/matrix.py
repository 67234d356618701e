"""The id x checkpoint matrix of a window, read from the log: which message was seen where, and how late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Column, Table

from lagloss.arithmetic import missing_places
from lagloss.graph import Graph
from lagloss.presenting import duration
from lagloss.result import rfc3339
from lagloss.window_blocks import WindowBlocks
from lagloss.wire import F32, U64, share_of

MAX_ROWS = 1_000
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Message:
    """One row: a message's name (its hash in hex where that is not known), its event time (epoch ms; None where the
    first checkpoint does not tell), its lag (ms) at each checkpoint it is at, and the places it is missing at."""

    message_id: str
    event_time_ms: int | None
    lags_ms: dict[str, float]
    missing_at: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        event_time = {} if self.event_time_ms is None else {"event_time": rfc3339(self.event_time_ms / 1000)}
        return {
            "message_id": self.message_id,
            **event_time,
            "checkpoints": self.lags_ms,
            "missing_at": list(self.missing_at),
        }


@dataclass(frozen=True)
class Matrix:
    """The messages of one window in the order of their event times, at most so many as were asked for; `count` is how
    many there are, `sample` the share of the window's ids that was looked at (nothing is scaled). `checkpoints` are
    those with a beacon, in the order of the flow."""

    pipeline: str
    window_start_s: int
    checkpoints: tuple[str, ...]
    messages: tuple[Message, ...]
    count: int
    sample: float = 1.0

    @property
    def is_truncated(self) -> bool:
        return self.count > len(self.messages)

    def document(self) -> dict[str, Any]:
        found = {
            "pipeline": self.pipeline,
            "window_start": rfc3339(self.window_start_s),
            "checkpoints": list(self.checkpoints),
            "messages": [message.document() for message in self.messages],
            "count": self.count,
        }
        return {
            **found,
            **({"truncated": True} if self.is_truncated else {}),
            **({"sample": self.sample} if self.sample < 1 else {}),
        }

    def table(self) -> Table:
        """For a terminal: ids down, checkpoints across, a mark and the lag where a beacon is."""
        names = (Column(name, no_wrap=True, justify="right") for name in self.checkpoints)
        table = Table(Column("message", no_wrap=True), *names, Column("missing at", no_wrap=True), box=None)
        for message in self.messages:
            lags = (message.lags_ms.get(name) for name in self.checkpoints)
            cells = ("·" if lag is None else f"● {duration(lag)}" for lag in lags)
            table.add_row(message.message_id, *cells, ", ".join(message.missing_at))
        return table


def matrix(found: WindowBlocks, *, only_missing: bool = False, limit: int = MAX_ROWS) -> Matrix:
    """The matrix of a window's blocks; `only_missing` keeps messages that something is missing of (rules 1 and 3),
    pending ones included.

    Of several beacons of a message at a checkpoint the earliest live one counts, a replayed one only where there is no
    live one.
    """
    graph = found.graph
    at = {name: found.ids(name) for name in graph.checkpoints if name in found.blocks}
    ids = np.unique(np.concatenate([np.empty(0, np.uint64), *at.values()]))
    present = np.zeros((ids.size, len(graph.checkpoints)), bool)
    for name, there in at.items():
        present[np.searchsorted(ids, there), graph.bit[name]] = True
    missing = _missing_at(graph, present)
    kept = np.array([bool(places) or not only_missing for places in missing], bool)
    event_ms = _event_times(found, ids)
    rows = np.flatnonzero(kept)
    rows = rows[np.lexsort((ids[rows], event_ms[rows]))]
    shown = rows[:limit]
    lags = {name: _lags(found, name, ids[shown]) for name in at}
    names = found.names(ids[shown])
    messages = tuple(
        Message(
            names[place],
            int(event_ms[row]) if np.isfinite(event_ms[row]) else None,
            {name: round(float(lags[name][place]), 3) for name in at if present[row, graph.bit[name]]},
            missing[row],
        )
        for place, row in enumerate(shown.tolist())
    )
    share = share_of(found.sample)
    return Matrix(graph.definition.name, found.window_start_s, tuple(at), messages, int(rows.size), share)


def _missing_at(graph: Graph, present: Bools) -> Sequence[tuple[str, ...]]:
    """For each row of `present` (ids x checkpoints) the labels of the places that its message is missing at; the rules
    are asked once a pattern."""
    packed = np.packbits(present, axis=1, bitorder="little")
    patterns, which = np.unique(packed, axis=0, return_inverse=True)
    masks = (int.from_bytes(pattern.tobytes(), "little") for pattern in patterns)
    places = [tuple(place.label for place in missing_places(graph, mask)) for mask in masks]
    return [places[pattern] for pattern in which.reshape(-1).tolist()]


def _event_times(found: WindowBlocks, ids: U64) -> npt.NDArray[np.float64]:
    """Epoch ms by id, from the first checkpoint; infinity where it does not tell."""
    event_ms = np.full(ids.size, np.inf)
    for block, rows in found.beacons(found.graph.first):
        if block.event_offset_ms is not None:
            stamps = block.event_offset_ms[rows].astype(np.float64) + found.window_start_s * 1000
            event_ms[np.searchsorted(ids, block.id_hash[rows])] = stamps
    return event_ms


def _lags(found: WindowBlocks, checkpoint: str, ids: U64) -> F32:
    """The smallest lag of each id's live beacons, or of its replayed ones where it has no live one."""
    order = np.argsort(ids)
    least = {True: np.full(ids.size, np.inf, np.float32), False: np.full(ids.size, np.inf, np.float32)}
    for block, rows in found.beacons(checkpoint):
        hits = rows[np.isin(block.id_hash[rows], ids)]
        where = order[np.searchsorted(ids, block.id_hash[hits], sorter=order)]
        np.minimum.at(least[block.replay is None], where, block.lag_ms[hits])
    return np.where(np.isfinite(least[True]), least[True], least[False])

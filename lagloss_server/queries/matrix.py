"""The id x checkpoint matrix of a window, read from the log: which message was seen where, and how late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
from rich.table import Column, Table

from lagloss.wire.format import F32, U64, share_of
from lagloss.wire.positions import read_positions
from lagloss.wire.traces import TraceContext
from lagloss_server.base import format as fmt
from lagloss_server.base.trace_links import NO_LINKS, TraceDocument, TraceLinks
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.model.graph import Graph, GraphPlace
from lagloss_server.model.hops import hop_labels, late_words, longest_hops
from lagloss_server.model.message_ids import hashes_of, unescape_id
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.window_blocks import WindowBlocks

MAX_ROWS = 1_000
Only = Literal["missing", "late", "duplicate", "out-of-order"]
"""Messages that something is missing of (rules 1 and 3; pending ones, too), that arrived at a destination after its lag
target, that are at a checkpoint twice (rule 9), or that were out of order at one (rule 20)."""
OUT_OF_ORDER: Final = "⇄"
"""Marks a message where it was out of order."""
_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Lateness:
    """Lag (ms) of a late message where it arrived latest, and the hop (`rules.hops.hop_labels`) that held it longest on
    its way there, for how long (ms); None where that is not known."""

    lag_ms: float
    hop: str | None
    hop_ms: float | None

    def __str__(self) -> str:
        """Return it for people: `12.3 s, 11 s of it at link src->mid`."""
        return late_words(self.lag_ms, self.hop, self.hop_ms)


class MessageRow(TraceDocument):
    """A message of a matrix. `checkpoints`: its lag (ms) at each that it is at. `lag_ms`, `hop` and `hop_ms`: of a late
    one, where it arrived latest, and the hop that held it longest, for how long."""

    message_id: str
    event_time: NotRequired[str]
    checkpoints: dict[str, float]
    missing_at: list[str]
    duplicates: NotRequired[dict[str, int]]
    out_of_order: NotRequired[list[str]]
    lag_ms: NotRequired[float]
    hop: NotRequired[str | None]
    hop_ms: NotRequired[float | None]


class MatrixDocument(TypedDict):
    """`truncated`: if there are more messages than are listed; `sample`: the share of the ids that was looked at, if it
    was not all of them."""

    pipeline: str
    window_start: str
    checkpoints: list[str]
    messages: list[MessageRow]
    count: int
    truncated: NotRequired[bool]
    sample: NotRequired[float]


@dataclass(frozen=True)
class MatrixMessage:
    """One row: a message's name (its hash in hex where that is not known), its event time (epoch ms; None where no
    source's `in` has it), its lag (ms) at each checkpoint it is at, the places it is missing at, how many
    beacons too many it has at a checkpoint, how late it is, its trace, where that is known, and the
    checkpoints at which it was out of order."""

    message_id: str
    event_time_ms: int | None
    lags_ms: dict[str, float]
    missing: tuple[GraphPlace, ...]
    id_hash: int
    duplicates: dict[str, int] = field(default_factory=dict)
    trace: TraceContext | None = None
    late: Lateness | None = None
    out_of_order: tuple[str, ...] = ()

    @property
    def missing_at(self) -> tuple[str, ...]:
        return tuple(place.label for place in self.missing)

    def document(self, window_start_s: int, links: TraceLinks) -> MessageRow:
        row: MessageRow = {
            "message_id": unescape_id(self.message_id),
            "checkpoints": self.lags_ms,
            "missing_at": list(self.missing_at),
        }
        if self.event_time_ms is not None:
            row["event_time"] = rfc3339(self.event_time_ms / 1000)
        if self.duplicates:
            row["duplicates"] = self.duplicates
        if self.out_of_order:
            row["out_of_order"] = list(self.out_of_order)
        if self.late is not None:
            row["lag_ms"], row["hop"], row["hop_ms"] = self.late.lag_ms, self.late.hop, self.late.hop_ms
        return {**row, **links.document(self.trace, window_start_s)}


@dataclass(frozen=True)
class Matrix:
    """The messages of one window in the order of their event times, of late ones alone the worst first; at most so many
    as were asked for. `count` is how many there are, `sample` the share of the window's ids that was looked at (nothing
    is scaled). `checkpoints` are those with a beacon, in the order of the flow."""

    pipeline: str
    window_start_s: int
    checkpoints: tuple[str, ...]
    messages: tuple[MatrixMessage, ...]
    count: int
    sample: float = 1.0

    @property
    def is_truncated(self) -> bool:
        return self.count > len(self.messages)

    def document(self, links: TraceLinks = NO_LINKS) -> MatrixDocument:
        document_: MatrixDocument = {
            "pipeline": self.pipeline,
            "window_start": rfc3339(self.window_start_s),
            "checkpoints": list(self.checkpoints),
            "messages": [message.document(self.window_start_s, links) for message in self.messages],
            "count": self.count,
        }
        if self.is_truncated:
            document_["truncated"] = True
        if self.sample < 1:
            document_["sample"] = self.sample
        return document_

    def table(self) -> Table:
        """Format the matrix for a terminal: ids down, checkpoints across, a mark and the lag where a beacon is."""
        names = (Column(name, no_wrap=True, justify="right") for name in self.checkpoints)
        late = [Column("late", no_wrap=True)] if any(message.late for message in self.messages) else []
        traces = [Column("trace", no_wrap=True)] if any(message.trace for message in self.messages) else []
        more = (Column("missing at", no_wrap=True), *late, *traces)
        table = Table(Column("message", no_wrap=True), *names, *more, box=None)
        for message in self.messages:
            cells = (_cell(message, name) for name in self.checkpoints)
            lateness = [str(message.late or "")][: len(late)]
            trace = [message.trace.trace_id if message.trace else ""][: len(traces)]
            table.add_row(message.message_id, *cells, ", ".join(message.missing_at), *lateness, *trace)
        return table


def _cell(message: MatrixMessage, checkpoint: str) -> str:
    if checkpoint not in message.lags_ms:
        return "·"
    more = message.duplicates.get(checkpoint)
    order = f" {OUT_OF_ORDER}" if checkpoint in message.out_of_order else ""
    return f"● {fmt.duration(message.lags_ms[checkpoint])}" + (f" +{more}" if more else "") + order


def matrix(blocks: WindowBlocks, *, only: Only | None = None, limit: int = MAX_ROWS) -> Matrix:
    """Return the matrix of a window's blocks."""
    presence = Presence(blocks)
    return presence.matrix(presence.select(only=only), limit)


@dataclass(frozen=True)
class Presence:
    """Messages and checkpoints of a window's blocks, from which selections are made. A row is a position in `ids`.

    Of several beacons of a message at a checkpoint the earliest live one gives its lag, a replayed one only where there
    is no live one.
    """

    blocks: WindowBlocks

    @property
    def graph(self) -> Graph:
        return self.blocks.graph

    @cached_property
    def at(self) -> dict[str, U64]:
        """The distinct ids (ascending) at each checkpoint with blocks, in the order of the flow."""
        return {name: self.blocks.ids(name) for name in self.graph.checkpoints if name in self.blocks.blocks}

    @cached_property
    def ids(self) -> U64:
        """Ids of all messages, ascending."""
        return np.unique(np.concatenate([np.empty(0, np.uint64), *self.at.values()]))

    @cached_property
    def event_ms(self) -> npt.NDArray[np.float64]:
        """Epoch ms by row, from the sources' `in`; infinity if none has it."""
        event_ms = np.full(self.ids.size, np.inf)
        for block, rows in (beacon for name in self.graph.entrances for beacon in self.blocks.beacons(name)):
            if block.event_offset_ms is not None:
                stamps = block.event_offset_ms[rows].astype(np.float64) + self.blocks.window_start_s * 1000
                event_ms[np.searchsorted(self.ids, block.id_hash[rows])] = stamps
        return event_ms

    @cached_property
    def lags_ms(self) -> dict[str, F32]:
        """By checkpoint and row; infinity if the row is not there."""
        return {name: self._least_lags(name) for name in self.at}

    @cached_property
    def first_arrivals(self) -> F32:
        """By destination and row the smallest lag (ms) of a live beacon there; infinity where there is none."""
        return np.stack([self._live_lags(name) for name in self.graph.delivery])

    @cached_property
    def lateness_ms(self) -> F32:
        """By row the largest lag of those above a destination's target, else 0."""
        sla = self.graph.definition.spec.sla
        targets_ms = np.array([[sla.lag_at(destination.name).target] for destination in self.graph.destinations])
        first = self.first_arrivals
        late: F32 = np.where((first > targets_ms) & np.isfinite(first), first, np.float32(0)).max(axis=0)
        return late

    @cached_property
    def patterns(self) -> tuple[_Ints, list[int]]:
        """For each row the number of its presence pattern, and the patterns, as masks."""
        present = np.zeros((self.ids.size, len(self.graph.checkpoints)), bool)
        for name, column in self.at.items():
            present[np.searchsorted(self.ids, column), self.graph.bit[name]] = True
        packed = np.packbits(present, axis=1, bitorder="little")
        patterns, which = np.unique(packed, axis=0, return_inverse=True)
        return which.reshape(-1), [int.from_bytes(pattern.tobytes(), "little") for pattern in patterns]

    @cached_property
    def missing_of(self) -> tuple[_Ints, list[tuple[GraphPlace, ...]]]:
        """For each row the number of its pattern, and for each pattern the places that its messages are missing at; the
        rules are asked once a pattern."""
        which, masks = self.patterns
        return which, [missing_places(self.graph, mask) for mask in masks]

    @cached_property
    def duplicates(self) -> dict[str, npt.NDArray[np.int64]]:
        """By checkpoint, how many live beacons each row has beyond those it may have there (rule 9)."""
        live = {name: self._live(name) for name in self.at}
        return {
            name: np.maximum(counts - self._allowed(name, live), 0)
            for name, counts in live.items()
            if not self.graph.retry_loop_mask >> self.graph.bit[name] & 1
        }

    @cached_property
    def out_of_order(self) -> dict[str, _Bools]:
        """By checkpoint with any, which rows were out of order there (rule 20)."""
        flags = {name: self._out_of_order(name) for name in self.at}
        return {name: rows for name, rows in flags.items() if rows.any()}

    def select(self, *, only: Only | None = None, where: str | None = None, text: str = "") -> _Ints:
        """Return the rows that are asked for, in the order of their event times, of late ones alone the worst first.
        `where`: missing at this place; `text`: part of the message's name, or its hash in hex."""
        which, missing = self.missing_of
        is_selected = np.ones(self.ids.size, bool)
        if only == "missing":
            is_selected &= np.array([bool(places) for places in missing], bool)[which]
        if only == "late":
            is_selected &= self.lateness_ms > 0
        if only == "duplicate":
            is_selected &= self._is_duplicate
        if only == "out-of-order":
            is_selected &= np.logical_or.reduce([np.zeros(self.ids.size, bool), *self.out_of_order.values()])
        if where is not None:
            is_selected &= np.array([where in {place.label for place in places} for places in missing], bool)[which]
        rows = np.flatnonzero(is_selected)
        if text:
            rows = rows[self._matches(rows, text)]
        return rows[np.lexsort((self.ids[rows], -self.lateness_ms[rows] if only == "late" else self.event_ms[rows]))]

    def missing_first(self, rows: _Ints) -> _Ints:
        """Return the same rows, those with something missing first."""
        which, missing = self.missing_of
        is_whole = np.array([not places for places in missing], bool)[which[rows]]
        return rows[np.argsort(is_whole, kind="stable")]

    def matrix(self, rows: _Ints, limit: int | None = MAX_ROWS) -> Matrix:
        """Return the first of these rows as messages."""
        shown = rows[:limit]
        share = share_of(self.blocks.sample)
        name, start_s = self.graph.definition.name, self.blocks.window_start_s
        return Matrix(name, start_s, tuple(self.at), self.messages(shown), int(rows.size), share)

    def messages(self, rows: _Ints) -> tuple[MatrixMessage, ...]:
        """Return these rows as messages. The window is gone through once, so the cost grows with the rows alone."""
        ids = self.ids[rows]
        lags = {name: least[rows].tolist() for name, least in self.lags_ms.items()}
        more = {name: counts[rows].tolist() for name, counts in self.duplicates.items()}
        order = {name: flags[rows].tolist() for name, flags in self.out_of_order.items()}
        which, missing = self.missing_of
        patterns, events_ms = which[rows].tolist(), self.event_ms[rows].tolist()
        traces, late = self.blocks.traces(ids), self._lateness(rows)
        return tuple(
            MatrixMessage(
                name,
                int(events_ms[place]) if events_ms[place] < np.inf else None,
                {point: round(least[place], 3) for point, least in lags.items() if least[place] < np.inf},
                missing[patterns[place]],
                id_hash,
                {point: counts[place] for point, counts in more.items() if counts[place]},
                traces.get(id_hash),
                late.get(place),
                tuple(point for point, checkpoint in order.items() if checkpoint[place]),
            )
            for place, (id_hash, name) in enumerate(zip(ids.tolist(), self.blocks.names(ids), strict=True))
        )

    @cached_property
    def _is_duplicate(self) -> _Bools:
        flags = np.zeros(self.ids.size, bool)
        for counts in self.duplicates.values():
            flags |= counts > 0
        return flags

    def _lateness(self, rows: _Ints) -> dict[int, Lateness]:
        """Return how late the late ones of these rows are, by their places among them."""
        late = np.flatnonzero(self.lateness_ms[rows] > 0)
        hops, hops_ms = self.longest_hops(rows[late])
        labels, lags = hop_labels(self.graph), self.lateness_ms[rows[late]]
        rows_ = zip(late.tolist(), lags.tolist(), hops.tolist(), hops_ms.tolist(), strict=True)
        return {
            place: Lateness(round(lag, 3), *((labels[hop], round(hop_ms, 3)) if hop_ms >= 0 else (None, None)))
            for place, lag, hop, hop_ms in rows_
        }

    def longest_hops(self, rows: _Ints) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float64]]:
        """Return the hops that held these rows longest, as `rules.hops.longest_hops`."""
        lags = np.full((rows.size, len(self.graph.checkpoints)), np.inf, np.float32)
        for name, least in self.lags_ms.items():
            lags[:, self.graph.bit[name]] = least[rows]
        return longest_hops(self.graph, lags, self.first_arrivals[:, rows])

    def _least_lags(self, checkpoint: str) -> F32:
        live = self._live_lags(checkpoint)
        return np.where(np.isfinite(live), live, self._lags(checkpoint, is_live=False))

    def _live_lags(self, checkpoint: str) -> F32:
        return self._lags(checkpoint, is_live=True)

    def _lags(self, checkpoint: str, *, is_live: bool) -> F32:
        least = np.full(self.ids.size, np.inf, np.float32)
        for block, rows in self.blocks.beacons(checkpoint):
            if (block.replay is None) == is_live:
                np.minimum.at(least, np.searchsorted(self.ids, block.id_hash[rows]), block.lag_ms[rows])
        return least

    def _live(self, checkpoint: str) -> npt.NDArray[np.int64]:
        blocks = (block.id_hash[rows] for block, rows in self.blocks.beacons(checkpoint) if block.replay is None)
        ids = np.concatenate([np.empty(0, np.uint64), *blocks])
        return np.bincount(np.searchsorted(self.ids, ids), minlength=self.ids.size)

    def _out_of_order(self, checkpoint: str) -> _Bools:
        flags = np.zeros(self.ids.size, bool)
        for block, rows in self.blocks.beacons(checkpoint):
            if block.replay is None and block.out_of_order is not None:
                late = rows[np.isin(rows, read_positions(block.out_of_order))]
                flags[np.searchsorted(self.ids, block.id_hash[late])] = True
        return flags

    def _allowed(self, checkpoint: str, live: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64] | int:
        allowed = self.graph.allowed_copies[self.graph.bit[checkpoint]]
        back = live.get(self.graph.returns.get(checkpoint, ""))
        return allowed if back is None else allowed + back

    def _matches(self, rows: _Ints, text: str) -> _Bools:
        """Names are made for these rows only while they are looked at."""
        needle, ids = text.casefold(), self.ids[rows]
        named = np.array([needle in name.casefold() for name in self.blocks.names(ids)], bool)
        exact = np.isin(ids, np.array(hashes_of(text), np.uint64))
        return named | exact

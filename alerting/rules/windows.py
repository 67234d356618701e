"""The closed windows of a pipeline as rules read them: one row each, in columns, with sums over any span of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from alerting.rules.measures import Measure
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.staleness import DueMessages
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.window import Window, on_time_counts

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Row = tuple[Any, ...]

VERDICTS: Final[Mapping[str, int]] = {"ok": 0, "loss": 1, "unknown": 2, "idle": 3}
OK, LOSS, UNKNOWN, IDLE = VERDICTS.values()
SEEING, BLIND, UNSURE = 0, 1, 2
"""State of a window's evidence: enough for a verdict; not enough; a new version of the definition leaves it open."""


COUNTED: Final = ("messages", "lost_min", "on_time", "on_time_of")
"""Columns that are summed over spans longer than the time of which windows have rows."""


@dataclass(frozen=True, slots=True)
class EarlierCounts:
    """Counts of the windows before those that have rows, oldest first; `counts`: a row for each of `COUNTED`.

    They are complete from `from_s` (epoch s) on; `read_all` reads those before, too.
    """

    starts: Ints
    counts: npt.NDArray[Any]
    from_s: float
    read_all: Callable[[], EarlierCounts]


class Windows:
    """Rows of closed windows, oldest first. Columns hold counts of messages where their names do not say otherwise.

    `measured`: names of the measures that are no column of their own, the columns of `measures`; `watched`: the
    checkpoints of `live` and `due`. `earlier`: counts of windows before, if there are any; `live_before`: the newest of
    these with live beacons, by watched checkpoint.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.void],
        measured: tuple[str, ...],
        watched: tuple[str, ...] = (),
        earlier: EarlierCounts | None = None,
        live_before: Mapping[str, int] | None = None,
    ) -> None:
        self.rows = rows
        self.measured = measured
        self.watched = watched
        self._earlier = earlier
        self._live_before = live_before or {}
        self._counted: dict[str, tuple[Ints, Ints]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def starts(self) -> Ints:
        """Epoch s."""
        return np.ascontiguousarray(self.rows["start"])

    def since(self, first: int) -> Windows:
        """Return the windows from position `first` on."""
        return Windows(self.rows[first:], self.measured, self.watched)

    def column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self.rows[name]
        return column

    def read(self, measure: Measure) -> Floats:
        """Return a measure by window, nan where a window has none."""
        if measure.name in _NAMES:
            return self.rows[measure.name].astype(np.float64)
        measures: Floats = self.rows["measures"][:, self.measured.index(measure.name)]
        return measures

    def live(self, checkpoint: str) -> Flags:
        """Return the windows in which a watched checkpoint has live beacons."""
        flags: Flags = self.rows["live"][:, self.watched.index(checkpoint)]
        return flags

    def due(self, checkpoint: str) -> Flags:
        """Return the windows with messages that a watched checkpoint should see."""
        flags: Flags = self.rows["due"][:, self.watched.index(checkpoint)]
        return flags

    def first_at(self, moment_s: float) -> int:
        """Position of the first window that starts at that moment or later."""
        return int(self.starts.searchsorted(moment_s))

    def newest_live(self, checkpoint: str) -> int | None:
        """Return the start (epoch s) of the newest window in which a watched checkpoint has live beacons."""
        starts = self.starts[self.live(checkpoint)]
        return int(starts[-1]) if len(starts) else self._live_before.get(checkpoint)

    def sums_over(self, name: str, span_s: int, first: int) -> Ints:
        """Return, for each window from position `first` on, the sum of a column of `COUNTED` over the span that ends
        with it."""
        begins_s = self.starts[first:] + WINDOW_S - span_s
        starts, sums = self._sums_since(name, begins_s[0] if len(begins_s) else math.inf)
        return sums[len(starts) - len(begins_s) + 1 :] - sums[starts.searchsorted(begins_s)]

    def sum_between(self, name: str, from_s: int, to_s: int) -> tuple[int, int]:
        """Return how many windows start in from <= start < to, and the sum of a column of `COUNTED` over them."""
        starts, sums = self._sums_since(name, from_s)
        first, last = starts.searchsorted([from_s, to_s])
        return int(last - first), int(sums[last] - sums[first])

    def first_s(self) -> int:
        """Return the start (epoch s) of the first window there is, however early."""
        return int(self._sums_since(COUNTED[0], -math.inf)[0][0])

    def _sums_since(self, name: str, from_s: float) -> tuple[Ints, Ints]:
        """Return the starts of all windows from then on, and of some before; and sums of a column up to each of these,
        which is not in it; one more than there are windows."""
        if self._earlier is not None and from_s < self._earlier.from_s:
            self._earlier = self._earlier.read_all()
            self._counted.clear()
        if name not in self._counted:
            starts, counts = self.starts, self.rows[name]
            if self._earlier is not None:
                starts = np.concatenate([self._earlier.starts, starts])
                counts = np.concatenate([self._earlier.counts[COUNTED.index(name)], counts])
            sums = np.zeros(len(counts) + 1, np.int64)
            counts.cumsum(dtype=np.int64, out=sums[1:])
            self._counted[name] = starts, sums
        return self._counted[name]


_COLUMNS: Final = [
    ("start", "i8"),
    ("verdict", "i1"),
    ("evidence", "i1"),
    *((name, "i8") for name in ("messages", "lost_min", "on_time", "on_time_of", "pending")),
    *((name, "i8") for name in ("lost_max", "dead", "filtered", "duplicates")),
    *((name, "f8") for name in ("corrupted", "lowest_p50")),
]
"""`duplicates`: at the checkpoint with most. `corrupted`: nan if no beacon was read. `lowest_p50`: lowest median lag of
a checkpoint, ms. Behind them: `live` and `due`, whether a watched checkpoint has live beacons, and messages are due
there; and `measures`."""
_NAMES: Final = frozenset(name for name, _ in _COLUMNS)


@dataclass(frozen=True, slots=True)
class WindowReader:
    """What is read of the windows of one definition: `measures` besides the columns, by name; `watched` checkpoints.

    `due_at`: of each of these, the name of the destination whose messages are due there; None: all messages are.
    `fed_by`: of each, the sources whose messages may come there, where that is not all of them.
    """

    measures: Mapping[str, Measure]
    watched: tuple[str, ...]
    due_at: tuple[str | None, ...]
    fed_by: tuple[frozenset[str] | None, ...]

    @classmethod
    def of(cls, graph: Graph, measures: Iterable[Measure], watched: Iterable[str]) -> WindowReader:
        more = {measure.name: measure for measure in measures if measure.name not in _NAMES}
        watched = tuple(dict.fromkeys(watched))
        due_at = tuple(_due_at(graph, name) for name in watched)
        return cls(more, watched, due_at, tuple(_fed_by(graph, name) for name in watched))

    def windows(self, rows: Iterable[Row]) -> Windows:
        """Return the windows with these rows, oldest first."""
        return self.of_rows(self.rows(rows))

    def of_rows(
        self,
        rows: npt.NDArray[np.void],
        earlier: EarlierCounts | None = None,
        live_before: Mapping[str, int] | None = None,
    ) -> Windows:
        """Return the windows of an array of such rows."""
        return Windows(rows, tuple(self.measures), self.watched, earlier, live_before)

    def rows(self, rows: Iterable[Row]) -> npt.NDArray[np.void]:
        """Return an array of these rows."""
        return np.array(list(rows), self._columns)

    @property
    def _columns(self) -> np.dtype[np.void]:
        watched = len(self.watched)
        more = [("live", "?", (watched,)), ("due", "?", (watched,)), ("measures", "f8", (len(self.measures),))]
        return np.dtype([*_COLUMNS, *more])

    def row(self, start_s: int, window: Window) -> Row:
        """Return the row of a closed window."""
        on_time, on_time_of = on_time_counts(window)
        due = DueMessages.of(window)
        active = {source.name for source in window.sources if source.messages}
        live = {checkpoint.name for checkpoint in window.checkpoints if checkpoint.beacons}
        return (
            start_s,
            VERDICTS[window.verdict or "unknown"],
            _evidence(window),
            window.messages,
            window.lost_min,
            on_time,
            on_time_of,
            window.pending or 0,
            window.lost_max,
            window.dead,
            window.filtered,
            Measure("duplicates").of(window),
            _or_nan(Measure("corrupted").of(window)),
            _or_nan(Measure("lowest_p50").of(window)),
            tuple(name in live for name in self.watched),
            tuple(
                due.at(name) and (sources is None or not active.isdisjoint(sources))
                for name, sources in zip(self.due_at, self.fed_by, strict=True)
            ),
            tuple(_or_nan(measure.of(window)) for measure in self.measures.values()),
        )

    def counts(self, window: Any) -> Row:
        """Return the row of a window (a row of the table) that is context for spans only: values that no sum needs are
        unknown."""
        numbers = (window.messages, window.lost_min, window.on_time, window.on_time_of, window.pending)
        nowhere = (False,) * len(self.watched)
        unknown = (np.nan,) * len(self.measures)
        head = (window.window_start, VERDICTS[window.verdict], SEEING, *numbers)
        return (*head, 0, 0, 0, 0, np.nan, np.nan, nowhere, nowhere, unknown)


def _due_at(graph: Graph, checkpoint: str) -> str | None:
    """Return the one of several destinations that messages at a checkpoint can only go to."""
    bit = graph.mask([checkpoint])
    if len(graph.destinations) == 1:
        return None
    return next((destination.name for destination in graph.destinations if bit & destination.part), None)


def _fed_by(graph: Graph, checkpoint: str) -> frozenset[str] | None:
    """Return the sources whose messages may come to a checkpoint; None if those of all may."""
    sources = graph.sources_of(node_of(checkpoint))
    return None if len(sources) == len(graph.sources) else sources


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _evidence(window: Window) -> int:
    blinding = [reason for reason in window.reasons if reason == "failed" or reason.startswith("evidence:")]
    if window.verdict != "unknown" or not blinding:
        return SEEING
    return UNSURE if "version" in window.reasons else BLIND

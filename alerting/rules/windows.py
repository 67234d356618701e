"""The closed windows of a pipeline as rules read them: one row each, in columns, with sums over any span of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph
from lagloss_server.rules.rollup import on_time_counts

Document = dict[str, Any]
Measure = Callable[[Document], float | None]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Row = tuple[Any, ...]

VERDICTS: Final[Mapping[str, int]] = {"ok": 0, "loss": 1, "unknown": 2, "idle": 3}
OK, LOSS, UNKNOWN, IDLE = VERDICTS.values()
SEEING, BLIND, UNSURE = 0, 1, 2
"""State of a window's evidence: enough for a verdict; not enough; a new version of the definition leaves it open."""


class Windows:
    """Rows of closed windows, oldest first. Columns hold counts of messages where their names do not say otherwise.

    `measured`: names of the measures that its definition asks for, columns of `measures`.
    """

    def __init__(self, rows: npt.NDArray[np.void], measured: tuple[str, ...]) -> None:
        self.rows = rows
        self.measured = measured
        self._sums: dict[str, Ints] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def starts(self) -> Ints:
        """Epoch s."""
        return np.ascontiguousarray(self.rows["start"])

    def since(self, first: int) -> Windows:
        """Return the windows from position `first` on."""
        return Windows(self.rows[first:], self.measured)

    def column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self.rows[name]
        return column

    def measure(self, name: str) -> Floats:
        """Return a measure by window, nan where it has none."""
        measures: Floats = self.rows["measures"][:, self.measured.index(name)]
        return measures

    def first_at(self, moment_s: float) -> int:
        """Position of the first window that starts at that moment or later."""
        return int(np.searchsorted(self.starts, moment_s))

    def sums_over(self, name: str, span_s: int, first: int) -> Ints:
        """Return, for each window from position `first` on, the sum of a column over the span that ends with it."""
        sums = self._prefix_sums(name)
        begins = np.searchsorted(self.starts, self.starts[first:] + WINDOW_S - span_s)
        return sums[first + 1 :] - sums[begins]

    def _prefix_sums(self, name: str) -> Ints:
        """Return sums of a column up to each window, which is not in it; one more than there are windows."""
        if name not in self._sums:
            sums = np.zeros(len(self.rows) + 1, np.int64)
            np.cumsum(self.rows[name], out=sums[1:])
            self._sums[name] = sums
        return self._sums[name]


_COLUMNS: Final = [
    ("start", "i8"),
    ("verdict", "i1"),
    ("evidence", "i1"),
    *((name, "i8") for name in ("messages", "lost_min", "on_time", "on_time_of", "pending")),
    *((name, "i8") for name in ("dead", "duplicates", "delivered")),
]
"""`duplicates`: at the checkpoint with most. `delivered`: of delivery checkpoints in the order of the flow, those with
live beacons, a bit each. `p50`, after them: the lowest median lag of a checkpoint, ms."""


@dataclass(frozen=True, slots=True)
class WindowReader:
    """Measures read of the windows of one definition, and its delivery checkpoints in flow order."""

    measures: Mapping[str, Measure]
    delivery: tuple[str, ...]

    @classmethod
    def of(cls, definition: Definition) -> WindowReader:
        return cls(measures_of(definition), Graph(definition).delivery)

    def windows(self, rows: Iterable[Row]) -> Windows:
        """Return the windows with these rows, oldest first."""
        return Windows(np.array(list(rows), self._columns), tuple(self.measures))

    def joined(self, parts: Sequence[Windows]) -> Windows:
        """Join the windows of all parts, oldest first."""
        return Windows(np.concatenate([part.rows for part in (self.windows(()), *parts)]), tuple(self.measures))

    @property
    def _columns(self) -> np.dtype[np.void]:
        return np.dtype([*_COLUMNS, ("p50", "f8"), ("measures", "f8", (len(self.measures),))])

    def row(self, start_s: int, document: Document) -> Row:
        """Return the row of a closed window with this document."""
        on_time, on_time_of = on_time_counts(document)
        checkpoints = document["checkpoints"]
        live = {there["name"] for there in checkpoints if there["beacons"]}
        medians = [there["lag_ms"]["p50"] for there in checkpoints if there["lag_ms"]["p50"] is not None]
        return (
            start_s,
            VERDICTS[document["verdict"]],
            _evidence(document),
            document["messages"],
            document["lost"]["min"],
            on_time,
            on_time_of,
            document["pending"],
            document["dead"],
            max((there["duplicates"] or 0 for there in checkpoints), default=0),
            sum(1 << at for at, name in enumerate(self.delivery) if name in live),
            min(medians, default=np.nan),
            tuple(np.nan if (value := measure(document)) is None else value for measure in self.measures.values()),
        )

    def counts(self, window: Any) -> Row:
        """Return the row of a window (a row of the table) that is context for spans only: values that no sum needs are
        unknown."""
        numbers = (window.messages, window.lost_min, window.on_time, window.on_time_of, window.pending)
        unknown = (np.nan,) * len(self.measures)
        return (window.window_start, VERDICTS[window.verdict], SEEING, *numbers, 0, 0, 0, np.nan, unknown)


def _evidence(document: Document) -> int:
    blinding = [reason for reason in document["reasons"] if reason == "failed" or reason.startswith("evidence:")]
    if document["verdict"] != "unknown" or not blinding:
        return SEEING
    return UNSURE if "version" in document["reasons"] else BLIND


def measures_of(definition: Definition) -> dict[str, Measure]:
    """Return the measures that the lag rules of this definition read of a window's document, in ms by the rule's name.
    An end-to-end percentile that documents do not hold is judged by the on-time counts."""
    measures: dict[str, Measure] = {}
    for lag in definition.spec.alerts.lag:
        if lag.checkpoint is not None:
            measures[lag.name] = _of("checkpoints", {"name": lag.checkpoint}, "lag_ms", "p95")
        elif lag.node is not None:
            measures[lag.name] = _of("nodes", {"name": lag.node}, "process_duration_p95_ms")
        elif lag.link is not None:
            measures[lag.name] = _of("links", {"from": lag.link.from_, "to": lag.link.to}, "queue_time_p95_ms")
        elif (percentile := percentile_name(definition.spec.sla.lag.percentile)) is not None:
            measures[lag.name] = _end_to_end(percentile)
    return measures


def _of(part: str, wanted: Mapping[str, str], *steps: str) -> Measure:
    """Return the reader of a number of one checkpoint, node or link of a document."""

    def measure(document: Document) -> float | None:
        for there in document[part]:
            if wanted.items() <= there.items():
                for step in steps:
                    there = there[step]
                return None if there is None else float(there)
        return None

    return measure


def _end_to_end(percentile: str) -> Measure:
    def measure(document: Document) -> float | None:
        value = document["e2e_lag_ms"][percentile]
        return None if value is None else float(value)

    return measure


def percentile_name(percentile: float) -> str | None:
    """Return the documents' name of this percentile of the end-to-end lag; None where they do not hold it."""
    name = f"p{percentile:g}"
    return name if name in ("p50", "p95", "p99") else None

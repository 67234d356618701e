"""Records of a planned span, as an engine reads them, and counts of those that made no beacons."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lagloss_server.extraction import Records


@dataclass(frozen=True, slots=True)
class SpanRecords:
    """The records of a span in their order; arrays are of shape (records,).

    Attributes:
        is_append_time: whether a record's timestamp is the broker's, as it appended it; a producer's may be anything.
        gone: number of offsets of the span that retention deleted meanwhile.
    """

    offsets: npt.NDArray[np.int64]
    records: Records
    is_append_time: npt.NDArray[np.bool_]
    gone: int = 0

    def cut(self, start: int, end: int) -> SpanRecords:
        """Return the rows from `start` to before `end`."""
        return SpanRecords(
            self.offsets[start:end], self.records.cut(start, end), self.is_append_time[start:end], self.gone
        )


@dataclass(frozen=True, slots=True)
class UnreadableRecords:
    """Records that could not be read for one reason, and the newest example; `at_ms`: its timestamp (epoch ms)."""

    count: int
    partition: int
    offset: int
    at_ms: int


@dataclass(slots=True)
class TapCounts:
    """Records of a tap: read, left out by its filter, too early, deleted unread, and not readable by reason."""

    seen: int = 0
    left_out: int = 0
    early: int = 0
    gone: int = 0
    unreadable: dict[str, UnreadableRecords] = field(default_factory=dict)

    def add(self, more: TapCounts) -> None:
        """Add later counts."""
        self.seen += more.seen
        self.left_out += more.left_out
        self.early += more.early
        self.gone += more.gone
        for reason, records in more.unreadable.items():
            self.add_unreadable(reason, records)

    def add_unreadable(self, reason: str, more: UnreadableRecords) -> None:
        """Add later records that could not be read."""
        before = self.unreadable.get(reason)
        count = more.count + (before.count if before else 0)
        self.unreadable[reason] = UnreadableRecords(count, more.partition, more.offset, more.at_ms)

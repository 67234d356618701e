"""Records of a planned span, as an engine reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taps.extraction import Records


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
        records = self.records
        cut = Records(
            records.timestamp_ms[start:end],
            records.keys[start:end],
            records.values[start:end],
            records.headers[start:end],
        )
        return SpanRecords(self.offsets[start:end], cut, self.is_append_time[start:end], self.gone)

"""Headers of records: the last of a name, as Kafka's own clients take it where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taps.extraction.columns import I8, ByteColumn
from taps.extraction.reasons import CODES
from taps.extraction.spec import BROKEN_HEADERS, Headers


def header_column(headers: Sequence[Headers | None], name: str) -> ByteColumn:
    """Return the header of this name of each record; where there is none, or it has no value, a null.

    An Arrow array of lists of structs (key, value), as Spark's Kafka source has it, is read without an object a header.
    """
    if hasattr(headers, "flatten"):
        return _of_arrow(headers, name)
    values: list[bytes | None] = []
    for row in headers:
        value = None
        for key, each in row or ():
            if key == name:
                value = each
        values.append(value)
    return ByteColumn.of(values)


def broken_headers(headers: Sequence[Headers | None]) -> I8:
    """Return why the headers of each record cannot be read: a code of `CODES`, or 0."""
    broken = np.zeros(len(headers), np.int8)
    if not hasattr(headers, "flatten"):
        broken[[index for index, row in enumerate(headers) if row is BROKEN_HEADERS]] = CODES["bad_headers"]
    return broken


def _of_arrow(headers: Any, name: str) -> ByteColumn:
    import pyarrow.compute as pc

    flat = headers.flatten()
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    of_row = np.repeat(np.arange(len(headers)), sizes)
    is_named = pc.fill_null(pc.equal(flat.field("key"), name), False).to_numpy(zero_copy_only=False)
    values = ByteColumn.of(flat.field("value"))
    starts, ends = np.full(len(headers), -1, np.int64), np.zeros(len(headers), np.int64)
    named = np.flatnonzero(is_named)
    starts[of_row[named]], ends[of_row[named]] = values.starts[named], values.ends[named]  # the last one stays
    return ByteColumn(values.data, starts, ends)

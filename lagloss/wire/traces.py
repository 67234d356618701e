"""Traces of messages: W3C `traceparent` texts, and the column of them that a block of the first checkpoint carries.

Most messages of most services have none, so the column is sparse: 26 bytes for each beacon whose trace is known.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
TraceRows = npt.NDArray[np.void]
"""Entries of TRACE_ROW."""

TRACEPARENT_HEADER: Final = "traceparent"
_TRACEPARENT_CHARS: Final = 55
"""Length of a traceparent of version 00. A later version may go on behind a dash."""
CONTEXT_BYTES: Final = 24
"""Of a trace id (16) and a span id (8)."""
TRACE_ROW: Final = np.dtype([("position", "<u2"), ("context", "u1", (CONTEXT_BYTES,))])
"""One entry of a block's traces: the position of its beacon, and its context."""
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf](-.*)?", re.DOTALL)
"""Version, trace id, span id, and flags with the bit `sampled`; what a later version may add."""
_NO_TRACE, _NO_SPAN, _INVALID_VERSION = "0" * 32, "0" * 16, "ff"


class TraceContext(NamedTuple):
    """The trace that a message was seen in, and the span that it was handed over by; in hex."""

    trace_id: str
    span_id: str

    @classmethod
    def of(cls, context: bytes) -> Self:
        """Read a context of 24 bytes."""
        return cls(context[:16].hex(), context[16:].hex())


def cut_traceparent(text: object) -> str | None:
    """Return as much of a text as decides whether it is a traceparent, whatever its length: it may wait in memory."""
    return text[: _TRACEPARENT_CHARS + 1] if isinstance(text, str) else None


def write_traceparent(trace_id: bytes, span_id: bytes) -> str:
    """Return the traceparent of a span that is recorded."""
    return f"00-{trace_id.hex()}-{span_id.hex()}-01"


def parse_traceparent(text: object) -> bytes | None:
    """Return trace id and span id, 24 bytes.

    None for anything but a W3C traceparent, and for one without the flag `sampled`: its trace is recorded nowhere, and
    a link to it would lead to nothing.
    """
    match = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    version, trace_id, span_id, more = match.groups()
    is_valid = trace_id != _NO_TRACE and span_id != _NO_SPAN and version != _INVALID_VERSION
    return bytes.fromhex(trace_id + span_id) if is_valid and (more is None or version != "00") else None


def pack_traces(contexts: U8) -> bytes | None:
    """Return the column of these contexts, shape (beacons, 24), zeros where a beacon has none; None if all are so."""
    positions = np.flatnonzero(contexts.any(axis=1))
    if not positions.size:
        return None
    rows = np.empty(positions.size, TRACE_ROW)
    rows["position"], rows["context"] = positions, contexts[positions]
    return rows.tobytes()


def traces_fit(packed: bytes, count: int) -> bool:
    """Return whether these are the traces of some beacons of a block of `count`, each at most once."""
    if len(packed) % TRACE_ROW.itemsize:
        return False
    positions = np.frombuffer(packed, TRACE_ROW)["position"]
    return bool((positions < count).all() and (positions[1:] > positions[:-1]).all())


def read_traces(packed: bytes | None) -> TraceRows:
    """Return the entries of a block's traces, without those whose trace id is zeros: they are none."""
    rows = np.frombuffer(packed or b"", TRACE_ROW)
    return rows[rows["context"][:, :16].any(axis=1)]


def find_traces(packed: bytes, positions: npt.NDArray[np.intp]) -> dict[int, TraceContext]:
    """Return the contexts of the beacons at these positions (ascending), by position, as far as they have one."""
    if not positions.size or not packed:
        return {}
    rows = np.frombuffer(packed, TRACE_ROW)
    known_positions = rows["position"]
    indexes = np.minimum(known_positions.searchsorted(positions), rows.size - 1)
    raw, size = rows[indexes[known_positions[indexes] == positions]].tobytes(), TRACE_ROW.itemsize
    traces = (
        (int.from_bytes(raw[index : index + 2], "little"), raw[index + 2 : index + size])
        for index in range(0, len(raw), size)
    )
    return {position: TraceContext.of(context) for position, context in traces if any(context[:16])}


def pick_traces(packed: bytes, positions: npt.NDArray[np.intp]) -> bytes | None:
    """Return the traces of a block that is made of the beacons at these positions (ascending); None if none has any."""
    rows = np.frombuffer(packed, TRACE_ROW)
    picked = rows[np.isin(rows["position"], positions)]
    picked["position"] = np.searchsorted(positions, picked["position"])
    return picked.tobytes() or None

"""Conditions on parts of records, in Kleene's logic: false, unknown where a part could not be read, or true."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.model.expressions import Comparison, Exists, Junction, Negation, RecordPart, Scalar, Test
from lagloss_server.packing.compiled import U8, compiled_bare
from taps.extraction import kinds
from taps.extraction.columns import I8, I64, PartColumn

FALSE: Final = 0
UNKNOWN: Final = 1
TRUE: Final = 2
_INTEGERS: Final = (kinds.INT, kinds.MILLIS, kinds.MICROS, kinds.NANOS, kinds.DATE)

Truth = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]


def judge(test: Test, parts: Mapping[RecordPart, PartColumn], unread: Mapping[RecordPart, Mask]) -> Truth:
    """Return of each row FALSE, UNKNOWN or TRUE; `unread`: the rows in which a part could not be read."""
    match test:
        case Negation(test=inner):
            return TRUE - judge(inner, parts, unread)
        case Junction(kind=kind, tests=tests):
            sides = [judge(each, parts, unread) for each in tests]
            return reduce(np.minimum if kind == "and" else np.maximum, sides)
        case Exists(part=part):
            return _truth(~np.isin(parts[part].kinds, (kinds.ABSENT, kinds.NO_VALUE)), unread[part])
        case Comparison(part=part, values=values, negated=negated):
            column = parts[part]
            equal = reduce(np.logical_or, [_equal(column, value) for value in values])
            is_there = column.kinds != kinds.ABSENT
            return _truth(is_there & ~equal if negated else equal, unread[part])


def _truth(passes: Mask, unread: Mask) -> Truth:
    found = np.where(passes, TRUE, FALSE).astype(np.int8)
    found[unread] = UNKNOWN
    return found


def _equal(column: PartColumn, value: Scalar) -> Mask:
    match value:
        case None:
            return np.isin(column.kinds, (kinds.NULL, kinds.NO_VALUE))
        case bool():
            equal: Mask = (column.kinds == kinds.BOOL) & (column.numbers == value)
            return equal
        case str():
            return _is_text(column, value)
        case _:
            return _is_number(column, value)


def _is_number(column: PartColumn, value: float) -> Mask:
    reals = column.numbers.view(np.float64)
    try:
        wanted = float(value)
    except OverflowError:
        wanted = np.nan
    found: Mask = (column.kinds == kinds.FLOAT) & (reals == wanted)
    whole = value if isinstance(value, int) else int(value) if np.isfinite(value) and value == int(value) else None
    if whole is None:
        return found
    if -(2**63) <= whole < 2**63:
        found |= np.isin(column.kinds, _INTEGERS) & (column.numbers == whole)
        return found
    return found | _is_span(column, kinds.LARGE_INT, str(whole).encode())


def _is_text(column: PartColumn, value: str) -> Mask:
    encoded = value.encode()
    found = _is_span(column, kinds.TEXT, encoded) | _is_span(column, kinds.BYTES, encoded)
    try:
        named = uuid.UUID(value)
    except ValueError:
        return found
    return found | _is_span(column, kinds.UUID, named.bytes) if str(named) == value else found


def _is_span(column: PartColumn, kind: int, wanted: bytes) -> Mask:
    equal = np.zeros(column.kinds.size, np.bool_)
    _compare(column.data, column.kinds, column.starts, column.sizes, kind, np.frombuffer(wanted, np.uint8), equal)
    return equal


@compiled_bare
def _compare(data: U8, found: I8, starts: I64, sizes: I64, kind: int, wanted: U8, equal: Any) -> None:
    for row in range(found.size):
        if found[row] != kind or sizes[row] != wanted.size:
            continue
        same = True
        for step in range(wanted.size):
            if data[starts[row] + step] != wanted[step]:
                same = False
                break
        equal[row] = same

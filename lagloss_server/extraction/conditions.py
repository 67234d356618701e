"""Conditions on parts of records, in Kleene's logic: false, unknown where a part could not be read, or true."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.extraction import kinds
from lagloss_server.extraction.columns import I8, I64, PartColumn
from lagloss_server.model.expressions import Comparison, Exists, Junction, Negation, RecordPart, Scalar, Test
from lagloss_server.packing.compiled import U8, compiled_bare

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
            sides = [judge(test, parts, unread) for test in tests]
            return reduce(np.minimum if kind == "and" else np.maximum, sides)
        case Exists(part=part):
            return _truth(~np.isin(parts[part].kinds, (kinds.ABSENT, kinds.NO_VALUE)), unread[part])
        case Comparison(part=part, values=values, negated=negated):
            column = parts[part]
            equal = reduce(np.logical_or, [_equal(column, value) for value in values])
            is_there = column.kinds != kinds.ABSENT
            return _truth(is_there & ~equal if negated else equal, unread[part])


def _truth(passes: Mask, unread: Mask) -> Truth:
    truth = np.where(passes, TRUE, FALSE).astype(np.int8)
    truth[unread] = UNKNOWN
    return truth


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
        number = float(value)
    except OverflowError:
        number = np.nan
    is_equal: Mask = (column.kinds == kinds.FLOAT) & (reals == number)
    whole = value if isinstance(value, int) else int(value) if np.isfinite(value) and value == int(value) else None
    if whole is None:
        return is_equal
    if -(2**63) <= whole < 2**63:
        is_equal |= np.isin(column.kinds, _INTEGERS) & (column.numbers == whole)
        return is_equal
    return is_equal | _is_span(column, kinds.LARGE_INT, str(whole).encode())


def _is_text(column: PartColumn, value: str) -> Mask:
    encoded = value.encode()
    is_text = _is_span(column, kinds.TEXT, encoded) | _is_span(column, kinds.BYTES, encoded)
    try:
        named = uuid.UUID(value)
    except ValueError:
        return is_text
    return is_text | _is_span(column, kinds.UUID, named.bytes) if str(named) == value else is_text


def _is_span(column: PartColumn, kind: int, expected: bytes) -> Mask:
    equal = np.zeros(column.kinds.size, np.bool_)
    _compare(column.data, column.kinds, column.starts, column.sizes, kind, np.frombuffer(expected, np.uint8), equal)
    return equal


@compiled_bare
def _compare(data: U8, kinds_: I8, starts: I64, sizes: I64, kind: int, expected: U8, equal: Any) -> None:
    for row in range(kinds_.size):
        if kinds_[row] != kind or sizes[row] != expected.size:
            continue
        same = True
        for step in range(expected.size):
            if data[starts[row] + step] != expected[step]:
                same = False
                break
        equal[row] = same

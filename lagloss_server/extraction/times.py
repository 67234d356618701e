"""Event times of parts of records, in ms since the epoch, as `lagloss.wire.times` reads them.

Numbers count the unit of the expression, or else that of the schema's logical type, or else what their size says. The
usual forms of texts are read by a compiled loop, all others by `read_time`; a text without an offset is UTC.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.times import Unit, read_time
from lagloss_server.extraction import kinds
from lagloss_server.extraction.columns import I8, I64, PartColumn
from lagloss_server.extraction.reasons import CODES
from lagloss_server.packing.compiled import U8, Int, compiled_bare

_UNITS: Final[dict[Unit | None, int]] = {None: 0, "s": 1, "ms": 2, "us": 3, "ns": 4}
_AUTO, _S, _MS, _US, _NS = range(5)
_GOOD: Final = 0
_MISSING: Final = CODES["no_time"]
_BAD: Final = CODES["bad_time"]
_UNUSUAL: Final = -1
_MAX_DIGITS: Final = 18
_MAX_INTEGER: Final = float(1 << 63)
_KINDS: Final = (
    kinds.ABSENT, kinds.NULL, kinds.INT, kinds.MILLIS, kinds.MICROS, kinds.NANOS, kinds.FLOAT, kinds.TEXT, kinds.BYTES,
    kinds.MOMENT,
)  # fmt: skip
_ABSENT, _NULL, _INT, _MILLIS, _MICROS, _NANOS, _FLOAT, _TEXT, _BYTES, _MOMENT = _KINDS


def read_times(part: PartColumn, unit: Unit | None) -> tuple[npt.NDArray[np.float64], I8]:
    """Return each row's time in ms since the epoch, and why it has none: a code of `CODES`, or 0."""
    times = np.zeros(part.kinds.size, np.float64)
    codes = np.zeros(part.kinds.size, np.int8)
    reals = part.numbers.view(np.float64)
    _read(part.data, part.kinds, part.numbers, reals, part.starts, part.sizes, _UNITS[unit], times, codes)
    for row in np.flatnonzero(codes == _UNUSUAL).tolist():
        text = part.data[part.starts[row] : part.starts[row] + part.sizes[row]].tobytes()
        try:
            times[row], codes[row] = read_time(text.decode("ascii"), unit, UTC), _GOOD
        except ValueError:
            codes[row] = _BAD
    return times, codes


@compiled_bare
def _unit_of(size: float) -> Int:
    """Return what a number of this size counts."""
    return _S if size < 1e11 else _MS if size < 1e14 else _US if size < 1e17 else _NS


@compiled_bare
def _of_integer(value: Int, unit: Int) -> float:
    """Return an integer as ms; what a float64 cannot hold of it is below a µs."""
    if unit == _AUTO:
        unit = _unit_of(abs(float(value)))
    if unit == _S:
        return float(value) * 1e3
    if unit == _MS:
        return float(value)
    parts = 1_000 if unit == _US else 1_000_000
    return float(value // parts) + float(value % parts) / parts


@compiled_bare
def _of_real(value: float, unit: Int) -> float:
    if unit == _AUTO:
        unit = _unit_of(abs(value))
    return value * 1e3 if unit == _S else value if unit == _MS else value / 1e3 if unit == _US else value / 1e6


@compiled_bare
def _digits(data: U8, position: Int, count: Int) -> Int:
    """Return the number that so many digits are, -1 if there is anything else among them."""
    value: Int = 0
    for index in range(position, position + count):
        if data[index] < 0x30 or data[index] > 0x39:
            return -1
        value = value * 10 + np.int64(data[index] - 0x30)
    return value


@compiled_bare
def _of_digits(data: U8, position: Int, end: Int, unit: Int) -> tuple[bool, float]:
    """Return whether a text is a plain decimal number such as 1732178400.123, and its time."""
    dot = position
    while dot < end and data[dot] != 0x2E:
        dot += 1
    if dot == position or dot - position > _MAX_DIGITS:
        return False, 0.0
    value = _digits(data, position, dot - position)
    if value < 0:
        return False, 0.0
    if dot == end:
        return True, _of_integer(value, unit)
    places = end - dot - 1
    if places == 0 or places > _MAX_DIGITS:
        return False, 0.0
    fraction = _digits(data, dot + 1, places)
    if fraction < 0:
        return False, 0.0
    return True, _of_real(value + fraction / 10.0**places, unit)


@compiled_bare
def _days(year: Int, month: Int, day: Int) -> Int:
    """Return the days since 1970-01-01 of a date of the Gregorian calendar (H. Hinnant, days_from_civil); a day that
    does not exist is -1e9."""
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    longest = 29 if leap else 28
    if month != 2:
        longest = 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    if year < 1 or month < 1 or month > 12 or day < 1 or day > longest:
        return -1_000_000_000
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@compiled_bare
def _offset_s(data: U8, position: Int, end: Int) -> Int:
    """Return the offset from UTC that a time ends with, in s; -1e9 if it is none of `Z` and `±hh:mm`."""
    if position == end or (position + 1 == end and data[position] == 0x5A):
        return 0
    if (data[position] != 0x2B and data[position] != 0x2D) or end - position != 6 or data[position + 3] != 0x3A:
        return -1_000_000_000
    hours, minutes = _digits(data, position + 1, 2), _digits(data, position + 4, 2)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return -1_000_000_000
    ahead_s = hours * 3_600 + minutes * 60
    return ahead_s if data[position] == 0x2B else -ahead_s


@compiled_bare
def _of_iso(data: U8, position: Int, end: Int) -> tuple[bool, float]:
    """Return whether a text is a time of ISO 8601 in its usual form, to the second or its fraction, and that time."""
    if (
        end - position < 19
        or data[position + 4] != 0x2D
        or data[position + 7] != 0x2D
        or data[position + 13] != 0x3A
        or data[position + 16] != 0x3A
    ):
        return False, 0.0
    if data[position + 10] != 0x54 and data[position + 10] != 0x20:
        return False, 0.0
    days = _days(_digits(data, position, 4), _digits(data, position + 5, 2), _digits(data, position + 8, 2))
    hour, minute, second = (
        _digits(data, position + 11, 2),
        _digits(data, position + 14, 2),
        _digits(data, position + 17, 2),
    )
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59 or days == -1_000_000_000:
        return False, 0.0
    position, ms = position + 19, 0.0
    if position < end and data[position] == 0x2E:
        position += 1
        last = position
        while last < end and 0x30 <= data[last] <= 0x39:
            last += 1
        places = last - position
        if places == 0 or places > _MAX_DIGITS:
            return False, 0.0
        ms = _digits(data, position, places) / 10.0 ** (places - 3)
        position = last
    offset_s = _offset_s(data, position, end)
    if offset_s == -1_000_000_000:
        return False, 0.0
    return True, (days * 86_400 + hour * 3_600 + minute * 60 + second - offset_s) * 1e3 + ms


@compiled_bare
def _read(
    data: U8, reasons: I8, numbers: I64, reals: Any, starts: I64, spans: I64, unit: Int, times: Any, codes: I8
) -> None:
    for row in range(reasons.size):
        kind = reasons[row]
        if kind in (_TEXT, _BYTES):
            start, end = starts[row], starts[row] + spans[row]
            good, time = _of_iso(data, start, end)
            if not good:
                good, time = _of_digits(data, start, end, unit)
            if good:
                times[row] = time
            else:
                codes[row] = _UNUSUAL
        elif kind in (_INT, _MILLIS, _MICROS, _NANOS):
            own = _MS if kind == _MILLIS else _US if kind == _MICROS else _NS if kind == _NANOS else _AUTO
            times[row] = _of_integer(numbers[row], unit if unit != _AUTO else own)
        elif kind == _FLOAT:
            if -_MAX_INTEGER < reals[row] < _MAX_INTEGER:  # nor is NaN
                times[row] = _of_real(reals[row], unit)
            else:
                codes[row] = _BAD
        elif kind == _MOMENT:
            times[row] = _of_integer(numbers[row], _NS)
        else:
            codes[row] = _MISSING if kind in (_ABSENT, _NULL) else _BAD

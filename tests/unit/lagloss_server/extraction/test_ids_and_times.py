"""Ids and times of parts of any kind, against plain Python."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.times import Unit, read_time
from lagloss_server.extraction import kinds
from lagloss_server.extraction.columns import PartColumn
from lagloss_server.extraction.ids import measure_ids, write_ids
from lagloss_server.extraction.reasons import CODES, REASONS, Reason
from lagloss_server.extraction.times import read_times
from lagloss_server.extraction.values import ABSENT, Uuid
from tests.support.odd_times import TIMES, UNITS

UUID_ = uuid.UUID("8d88348a-7eed-8d14-f06d-3fef701966a0")


def parts_of(*columns: list[Any]) -> list[PartColumn]:
    """Parts of Python's values; ... is absent."""
    return [PartColumn.of_values([ABSENT if value is ... else value for value in column]) for column in columns]


def ids_of(*columns: list[Any]) -> list[bytes | Reason]:
    parts = parts_of(*columns)
    sizes, codes = measure_ids(parts)
    written = iter(write_ids(parts, sizes, np.flatnonzero(codes == 0)))
    return [REASONS[code - 1] if code else next(written) for code in codes.tolist()]


def id_of(value: Any) -> bytes | Reason:
    """The oracle."""
    match value:
        case None:
            return "no_id"
        case bool() | float():
            return "bad_id"
        case Uuid():
            text = str(uuid.UUID(bytes=bytes(value)))
        case int() | str():
            text = str(value)
        case bytes():
            try:
                text = value.decode()
            except UnicodeDecodeError:
                text = value.hex()
        case _:
            return "no_id" if value is ... else "bad_id"
    try:
        found = text.encode()
    except UnicodeEncodeError:
        return "bad_id"
    return found if 0 < len(found) <= 255 else "bad_id"


some_values = st.one_of(
    st.none(), st.just(...), st.booleans(), st.floats(), st.integers(-(2**70), 2**70), st.integers(-1000, 1000),
    st.text(max_size=20), st.binary(max_size=20), st.binary(min_size=16, max_size=16).map(Uuid), st.just([1]),
    st.sampled_from(["", "x" * 255, "x" * 256, "é" * 127, "é" * 128, b"\xff" * 127, b"\xff" * 128]),
    st.sampled_from(["\ud800", b"", "\0"]),
    st.sampled_from([0, -1, 9, 10, -9, -10, 10**18, -(10**18), 2**63 - 1, -(2**63), 2**63]),
)  # fmt: skip


@given(st.lists(some_values, min_size=1, max_size=12))
def test_an_id_is_text_a_decimal_or_hex(values: list[Any]) -> None:
    assert ids_of(values) == [id_of(value) for value in values]


def test_a_uuid_of_bytes_is_written_as_everywhere() -> None:
    assert ids_of([Uuid(UUID_.bytes)]) == [str(UUID_).encode()]


def test_a_composite_id_is_joined_by_slashes() -> None:
    assert ids_of(["shop", "b"], [17, Uuid(UUID_.bytes)], [b"\xff\x00", "z"]) == [
        b"shop/17/ff00", f"b/{UUID_}/z".encode(),
    ]  # fmt: skip


def test_a_composite_id_is_there_if_all_its_parts_are_and_fits_as_a_whole() -> None:
    long = "x" * 127
    assert ids_of([long, long, ..., "", True, None], [long, long + "yy", "a", "a", "a", 2.5]) == [
        f"{long}/{long}".encode(), "bad_id", "no_id", "bad_id", "bad_id", "no_id",
    ]  # fmt: skip


def times_of(values: list[Any], unit: Unit | None = None, kind: int | None = None) -> list[float | Reason]:
    (part,) = parts_of(values)
    if kind is not None:
        part.kinds[:] = kind
    times, codes = read_times(part, unit)
    return [REASONS[code - 1] if code else time for time, code in zip(times.tolist(), codes.tolist(), strict=True)]


MS = 1_764_061_200_123.0


def test_numbers_are_told_apart_by_their_size() -> None:
    numbers = [1764061200, 1764061200123, 1764061200123000, 1764061200123000000, 1764061200.123, 1764061200123.0]
    expected = [MS - 123, MS, MS, MS, MS, MS]
    assert times_of(numbers) == pytest.approx(expected, abs=1e-3)
    assert times_of([str(number) for number in numbers]) == pytest.approx(expected, abs=1e-3)
    assert times_of([str(number).encode() for number in numbers]) == pytest.approx(expected, abs=1e-3)
    assert times_of([10**11 - 1, 10**11, 10**14 - 1, 10**14, 10**17 - 1_000, 10**17]) == [
        (10**11 - 1) * 1e3, 1e11, 1e14 - 1, 1e11, pytest.approx(1e14), 1e11,
    ]  # fmt: skip
    assert times_of([0, -1, -(10**12)]) == [0, -1000, -(10**12)]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1e3), ("ms", 1), ("us", 1e-3), ("ns", 1e-6)])
def test_a_unit_holds_for_numbers_of_any_size(unit: Unit, factor: float) -> None:
    numbers = [17, 17.5, "17", "17.5", -17, 10**15]
    assert times_of(numbers, unit) == pytest.approx([float(each) * factor for each in numbers])
    assert times_of(["2026-11-25T09:00:00.123Z"], unit) == [1_795_597_200_123.0]


def test_a_schemas_unit_holds_unless_the_expression_has_one() -> None:
    assert times_of([1764061200123], kind=kinds.MILLIS) == [MS]
    assert times_of([17], kind=kinds.MICROS) == [0.017]
    assert times_of([1764061200123000001], kind=kinds.NANOS) == pytest.approx([MS], abs=1e-3)
    assert times_of([1764061200], "s", kinds.MILLIS) == [MS - 123]
    assert times_of([17], kind=kinds.DATE) == ["bad_time"]
    assert times_of([1764061200123000000], "s", kinds.MOMENT) == [MS]


@pytest.mark.parametrize("value", [True, [1], "", "yesterday", "2026-11-25", "20261125T090000Z", "2026-11-25T09",
    "2026-02-29T09:00:00Z", "2026-13-01T09:00:00Z", "2026-00-01T09:00", "2026-11-31T09:00", "0000-01-01T00:00",
    "2026-11-25T24:00:00Z", "2026-11-25T09:60:00Z", "2026-11-25T09:00:61Z", "2026-11-25T09:00:00.Z",
    "2026-11-25T09:00:00+1", "2026-11-25T09:00:00+24:00", "2026-11-25T09:00:00+01:60", "2026-11-25T09:00:00 UTC",
    "2026-11-25T09:00:00+01-00", "2026-11-25T09:00:", "1.", ".5", "-", "1e9", "9" * 19, "1" * 20, "1.2.3",
    " 1", math.nan, math.inf,
    2**64, b"\0\0\1\x9a\xb8\x97\x5c\x7b", "2026-11-25T09:00:00Z ", "٢٠٢٦-11-25T09:00:00Z"])  # fmt: skip
def test_what_is_no_time_has_a_bad_one(value: Any) -> None:
    assert times_of([value]) == ["bad_time"]


def test_what_is_not_there_has_no_time() -> None:
    assert times_of([None, ...]) == ["no_time", "no_time"]


zones = st.one_of(st.none(), st.integers(-(23 * 60 + 59), 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m))))
moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=zones)  # noqa: DTZ001 # hypothesis wants these


@given(
    st.lists(
        st.tuples(
            moments,
            st.sampled_from(["T", " ", "t"]),
            st.sampled_from(["minutes", "seconds", "milliseconds", "microseconds"]),
        ),
        max_size=8,
    )
)
def test_iso_times_are_those_that_python_reads(given_: list[tuple[datetime, str, str]]) -> None:
    texts = [at.isoformat("T", timespec).replace("T", sep) for at, sep, timespec in given_]
    texts += [text[:-3] + text[-2:] for text in texts if text[-6] in "+-" and text[-3] == ":" and text[-9:-8] == ":"]
    texts += [text[:-6] + "Z" for text in texts if text[-6:] == "+00:00"]
    parsed = [datetime.fromisoformat(text.upper()) for text in texts]
    expected = [(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e3 for at in parsed]
    assert times_of(texts) == pytest.approx(expected, abs=0.1)  # a float64 of the year 9999 has steps of 0.03 ms


@given(TIMES | st.text(alphabet="0123456789-:TZtz+., ", max_size=30) | st.floats() | st.integers(), UNITS)
def test_a_time_is_what_it_is_at_every_other_way_in(value: str | float, unit: Unit | None) -> None:
    """The compiled loop and the one function agree."""
    (found,) = times_of([value], unit)
    try:
        expected = read_time(value, unit, UTC)
    except ValueError:
        assert found == "bad_time" or not -62_135_596_800_000 <= float(found) < 253_402_300_800_000  # too old, or ahead
    else:
        assert found == pytest.approx(expected, rel=0, abs=0.1)


@given(st.lists(st.text(alphabet="0123456789-:TZtz+., ", max_size=30) | st.binary(max_size=30), max_size=8))
def test_any_text_is_a_time_or_a_bad_one(values: list[Any]) -> None:
    for value, found in zip(values, times_of(values), strict=True):
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        assert found == "bad_time" or (math.isfinite(float(found)) and (text[:1].isdigit() or text[:1] == "-"))


def test_every_reason_has_a_code_of_its_own_and_none_is_zero() -> None:
    assert sorted(CODES.values()) == list(range(1, len(REASONS) + 1))

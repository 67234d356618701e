"""What is a time, and which."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.identity import Carrier, Identities, from_json
from lagloss.wire.times import Unit, read_time
from tests.support.odd_times import TIMES, UNITS

MS = 1_795_250_400_123
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (MS, MS),
        (str(MS), MS),
        (MS // 1000, MS - 123),
        (str(MS // 1000), MS - 123),
        ("1795250400.123", MS),
        (1_795_250_400.123, MS),
        (1.7952504e12, MS - 123),
        (f"{MS}456", MS + 0.456),
        (MS * 10**6, MS),
        (f"{MS}000000", MS),
        (0, 0),
        ("-1", -1_000),
        ("2026-11-21T08:40:00.123Z", MS),
        ("2026-11-21t08:40:00.123z", MS),
        ("2026-11-21 08:40:00,123+00:00", MS),
        ("2026-11-21T08:40:00.123-00:00", MS),
        ("2026-11-21T08:40:00.123000000000-0000", MS),
        ("2026-11-21T09:40:00.123+01", MS),
        ("2026-11-21T04:10:00.123-0430", MS),
        ("2026-11-21T08:40Z", MS - 123),
        ("2026-11-21T08:39:60.123Z", MS),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("1970-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ((1 << 63) - 1, 9_223_372_036_854.775),
    ],
)
def test_a_time_is_read_in_each_of_its_forms(value: Any, ms: float) -> None:
    assert read_time(value) == pytest.approx(ms, rel=0, abs=1e-3)


@given(st.integers(0, 4_102_444_800_000), st.sampled_from([("us", 1_000), ("ns", 1_000_000)]))
def test_whole_ms_stay_whole_in_finer_units(ms: int, unit: tuple[Unit, int]) -> None:
    assert read_time(ms * unit[1], unit[0]) == read_time(f"{ms * unit[1]}", unit[0]) == ms


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, math.nan, math.inf, -math.inf, 1 << 63, -(1 << 64), 10**400, 1e300, b"1", [1], {"s": 1}),
        *("", "now", "-2h", "1e9", ".5", "1.", "+1", " 1", "1 ", "1_000", "9" * 19, "1" * 5_000, "٣", "NaN", "-"),
        *("2026-11-21", "2026-11-21T08", "20261121T084000Z", "2026-W47-6T08:40Z", "2026-11-21T08:40:00.Z"),
        *("2026-11-21T24:00:00Z", "2026-11-21T08:60:00Z", "2026-11-21T08:40:61Z", "2026-02-29T08:40:00Z"),
        *("2026-11-21T08:40:00+24:00", "2026-11-21T08:40:00+01:60", "2026-11-21T08:40:00+1", "2026-11-21T08:40:00 UTC"),
        *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "9999-12-31T23:59:60Z"),
        *("2026-11-21T08:40:00", "2026-11-21 08:40"),  # without an offset, any zone would be a guess
    ],
)
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        read_time(value)


def test_a_time_without_an_offset_is_of_the_zone_that_is_given() -> None:
    assert read_time("2026-11-21T08:40:00.123", zone=UTC) == MS
    assert read_time("2026-11-21 09:40:00.123", zone=BERLIN) == MS
    assert read_time("2026-11-21T08:40:00.123Z", zone=BERLIN) == MS


@pytest.mark.parametrize(("unit", "ms"), [("s", 17_000), ("ms", 17), ("us", 0.017), ("ns", 0.000_017)])
def test_a_unit_goes_before_the_size_of_numbers(unit: Unit, ms: float) -> None:
    for value in (17, 17.0, "17", "17.0"):
        assert read_time(value, unit) == pytest.approx(ms)
    assert read_time("2026-11-21T08:40:00.123Z", unit) == MS


@given(TIMES, UNITS)
def test_whatever_is_read_is_of_the_years_that_dates_have(value: Any, unit: Unit | None) -> None:
    try:
        found = read_time(value, unit, UTC)
    except ValueError:
        return
    assert 1 <= datetime.fromtimestamp(found / 1_000, UTC).year <= 9_999


@given(TIMES)
def test_the_time_of_an_identity_is_read_as_any_other_and_in_headers_as_ms(value: Any) -> None:
    body = Carrier({}, json.dumps({"id": "a", "at": value}).encode(), None)
    headers = Carrier({"lagloss-id": b"a", "lagloss-event-time": str(value).encode()}, b"", None)
    by_body, by_header = Identities(from_json("id", "at")).find(body), Identities().find(headers)
    for found, given_, unit in ((by_body, value, None), (by_header, str(value), "ms")):
        try:
            expected = int(read_time(given_, unit))
        except ValueError:
            assert found is None
        else:
            assert found is not None
            assert found.event_time_ms == expected

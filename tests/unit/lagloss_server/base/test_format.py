"""Numbers and times as people read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base import format as fmt
from lagloss_server.base.times import moment
from lagloss_server.model.window import rfc3339


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.42, "0.42 ms"),
        (12.34, "12.3 ms"),
        (340.2, "340 ms"),
        (-340.2, "-340 ms"),
        (1_234, "1.2 s"),
        (5_000, "5 s"),
        (210_000, "3.5 min"),
        (7_200_000, "2 h"),
        (259_200_000, "3 d"),
    ],
)
def test_lags_are_readable(ms: float | None, text: str) -> None:
    assert fmt.duration(ms) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "–"), (0, "0 %"), (0.0034, "0.34 %"), (0.3, "30 %"), (0.1234, "12.3 %"), (1e-7, "< 0.001 %"), (1, "100 %")],
)
def test_shares_are_readable(ratio: float | None, text: str) -> None:
    assert fmt.percent(ratio) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.9996, "99.96 %"), (0.99994, "99.99 %"), (0.999999, "> 99.99 %")])
def test_less_than_all_is_never_told_as_100_per_cent(ratio: float, text: str) -> None:
    assert fmt.percent(ratio) == text


@pytest.mark.parametrize(("ratio", "text"), [(-0.25, "-25 %"), (12.345, "1,234 %"), (-13, "-1,300 %")])
def test_what_is_left_of_a_budget_may_be_less_than_nothing(ratio: float, text: str) -> None:
    assert fmt.percent(ratio) == text


@pytest.mark.parametrize(
    ("say", "value", "target", "texts"),
    [
        (fmt.percent, 0.032, 0.01, ("3.2 %", "1 %")),
        (fmt.percent, 0.9497, 0.95, ("94.97 %", "95 %")),
        (fmt.percent, 2e-6, 1e-6, ("0.0002 %", "0.0001 %")),
        (fmt.duration, 5_020, 5_000, ("5.02 s", "5 s")),
        (fmt.duration_s, 5, 5, ("5 s", "5 s")),
    ],
)
def test_a_value_off_its_target_never_reads_as_the_target(
    say: Callable[[float, int], str], value: float, target: float, texts: tuple[str, str]
) -> None:
    assert fmt.against(say, value, target) == texts


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_never_reads_as_a_smaller_one(one: float, other: float) -> None:
    """Nor does less than all read as all, or more than nothing as nothing."""
    low, high = sorted((one, other))
    read = [float(fmt.percent(each).strip("<> %")) for each in (low, high)]
    assert read[0] <= read[1] or "<" in fmt.percent(low)
    assert (fmt.percent(low) == "100 %") == (low == 1)
    assert (fmt.percent(high) == "0 %") == (high == 0)


def test_bounds_that_read_the_same_are_one() -> None:
    assert fmt.count_interval({"min": 1, "max": 1_200}) == "1–1,200"
    assert fmt.percent_interval({"min": 0.032, "max": 0.05}) == "3.2 % – 5 %"
    assert fmt.percent_interval({"min": 0.50001, "max": 0.50002}) == "50 %"
    assert fmt.count_interval({"min": 3, "max": None}) == fmt.percent_interval(None) == fmt.NOTHING


def test_one_is_singular() -> None:
    assert [fmt.counted(number, "open incident") for number in (0, 1, 1_000)] == [
        "0 open incidents",
        "1 open incident",
        "1,000 open incidents",
    ]


def test_a_clock_is_that_of_its_zone() -> None:
    at_s = datetime.fromisoformat("2026-11-21T08:40:07Z").timestamp()
    assert fmt.clock(at_s, date=True) == "2026-11-21 08:40"
    assert fmt.clock(at_s, ZoneInfo("Europe/Berlin"), seconds=True) == "09:40:07"


INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats()
ZONES = st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns"), ZoneInfo("Pacific/Kiritimati")])


@given(INT64, st.sampled_from([1, 1_000, 1_000_000]), ZONES)
def test_every_formatter_of_a_time_takes_any_number(stamp: float, per_s: int, zone: tzinfo) -> None:
    """A record's own timestamp is whatever a producer wrote."""
    at_s = stamp / per_s
    assert len(fmt.clock(at_s, zone, seconds=True, date=True)) >= 15
    text = rfc3339(at_s)
    again_s = datetime.fromisoformat(text).timestamp()
    if -62_135_596_800 <= at_s <= 253_402_300_799:
        assert again_s == pytest.approx(at_s, abs=1e-4)
    else:
        assert text in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")
    assert str(moment(fmt.datetime_of(at_s)))[:19] == text[:19]

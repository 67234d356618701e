"""Times that people type: what is one, and what is none."""

from __future__ import annotations

import pytest

from lagloss_server.base.errors import BadTime
from lagloss_server.base.times import parse_time_s
from lagloss_server.model.window import rfc3339

NOW_S = 1_800_000_000.25


@pytest.mark.parametrize(
    ("text", "found_s"),
    [
        ("now", NOW_S),
        ("-2h", NOW_S - 7_200),
        ("-1.5m", NOW_S - 90),
        ("2026-11-21T08:40:00Z", 1_795_250_400),
        ("2026-11-21T08:40:00", 1_795_250_400),
        ("2026-11-21T08:40:00+01:00", 1_795_246_800),
        ("1970-01-01", 0),
    ],
)
def test_a_time_is_epoch_seconds(text: str, found_s: float) -> None:
    assert parse_time_s(text, NOW_S) == found_s
    rfc3339(found_s)


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "-", "-2", "-2y", "2026-13-01", "2026-11-21T25:00"),
        *(
            "-999999999999999d",
            "-9999999d",
            "-" + "9" * 400 + "s",
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-12:00",
        ),
    ],
)
def test_what_is_no_time_or_in_no_calendar_is_refused(text: str) -> None:
    with pytest.raises(BadTime):
        parse_time_s(text, NOW_S)

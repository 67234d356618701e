"""Times in every form that programs write, and in forms that are nearly one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from lagloss.wire.times import Unit

UNITS: st.SearchStrategy[Unit | None] = st.sampled_from([None, "s", "ms", "us", "ns"])
_FORMS = ("T", "t", " ", "_")
_SECONDS = ("", ":00", ":59", ":60", ":61", ":7", ":")
_FRACTIONS = ("", ".5", ",25", ".123456789012", ".123456789012345678901", ".")
_OFFSETS = ("", "Z", "z", "+00:00", "-00:00", "+01", "-0130", "+05:45", "-23:59", "+24:00", "+01:60", "+1", " UTC")


def written(at: datetime, form: str, second: str, fraction: str, offset: str) -> str:
    """Return a moment as text; not every choice makes a time."""
    return f"{at.year:04}-{at:%m-%d}{form}{at:%H:%M}{second}{fraction if second else ''}{offset}"


_iso: st.SearchStrategy[Any] = st.builds(
    written,
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    *(st.sampled_from(choices) for choices in (_FORMS, _SECONDS, _FRACTIONS, _OFFSETS)),
)
_numbers: st.SearchStrategy[Any] = st.integers(-(2**65), 2**65) | st.integers(10**8, 10**18)
_digits: st.SearchStrategy[Any] = st.builds(
    "{}{}".format, _numbers, st.sampled_from(["", ".", ".5", ".123456789", "e3"])
)
TIMES: st.SearchStrategy[Any] = _iso | _digits | _numbers

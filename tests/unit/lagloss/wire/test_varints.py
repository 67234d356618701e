"""Varints are those of Avro, whatever the numbers."""

from __future__ import annotations

import io

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagloss.wire import varints

LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200)


@given(st.lists(LONGS))
@example([-(1 << 63), (1 << 63) - 1, 0, -1, 63, 64, -64, -65])
def test_integers_are_packed_as_avro_writes_them(numbers: list[int]) -> None:
    out = io.BytesIO()
    for number in numbers:
        fastavro.schemaless_writer(out, "long", number)
    packed = varints.pack(numbers)
    assert packed == out.getvalue()
    assert varints.unpack(packed).tolist() == numbers


@pytest.mark.parametrize("data", [b"\x80", b"\x02\xff", b"\xff" * 10 + b"\x01"])
def test_what_is_cut_off_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        varints.unpack(data)

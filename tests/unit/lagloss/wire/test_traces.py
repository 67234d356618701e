"""Traceparents as W3C has them, and the column of a block that keeps what they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.traces import (
    TraceContext,
    cut_traceparent,
    find_traces,
    pack_traces,
    parse_traceparent,
    pick_traces,
    read_traces,
    traces_fit,
    write_traceparent,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
CONTEXTS = st.dictionaries(st.integers(0, 19), st.binary(min_size=24, max_size=24).filter(lambda raw: any(raw[:16])))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (GOOD, True),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-00", False),  # not sampled: recorded nowhere
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
        (f"cc-{TRACE}-{SPAN}-01.", False),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (GOOD.upper(), False),
        (f" {GOOD}", False),
        (f"{GOOD}\n", False),
        (GOOD[:-1], False),
        (GOOD.replace("-", "_"), False),
        ("", False),
        (None, False),
        (7, False),
        (GOOD.encode(), False),
        ("00-" + "\ud800" * 32 + f"-{SPAN}-01", False),
        ("00-" + "٣" * 32 + f"-{SPAN}-01", False),  # digits, but not of hex
    ],
)
def test_a_traceparent_is_taken_as_w3c_has_it(text: Any, is_one: bool) -> None:
    assert parse_traceparent(text) == (bytes.fromhex(TRACE + SPAN) if is_one else None)
    assert parse_traceparent(cut_traceparent(text)) == parse_traceparent(text)


@given(st.text() | st.text("0123456789abcdef-").map(lambda more: GOOD[:50] + more))
def test_a_text_cut_short_is_a_traceparent_where_the_whole_is(text: str) -> None:
    assert parse_traceparent(cut_traceparent(text)) == parse_traceparent(text)
    assert len(cut_traceparent(text) or "") <= 56


@given(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8).filter(any))
def test_a_traceparent_that_is_written_names_the_same_span(trace_id: bytes, span_id: bytes) -> None:
    assert parse_traceparent(write_traceparent(trace_id, span_id)) == trace_id + span_id


@given(CONTEXTS, st.sets(st.integers(0, 19)))
def test_traces_are_found_by_position_and_stay_with_their_beacons(known: dict[int, bytes], asked: set[int]) -> None:
    column = np.zeros((20, 24), np.uint8)
    for position, context in known.items():
        column[position] = np.frombuffer(context, np.uint8)
    packed, positions = pack_traces(column), np.array(sorted(asked), np.intp)
    if packed is None:
        assert not known
        return
    assert len(packed) == 26 * len(known)
    assert traces_fit(packed, 20)
    assert traces_fit(packed, max(known)) is False
    expected = {at: TraceContext.of(context) for at, context in known.items() if at in asked}
    assert find_traces(packed, positions) == expected
    picked = pick_traces(packed, positions)
    moved = {at: expected[place] for at, place in enumerate(sorted(asked)) if place in expected}
    assert (picked is not None) == bool(moved)
    assert find_traces(picked or b"", np.arange(len(asked))) == moved


def test_traces_of_other_lengths_and_positions_do_not_fit() -> None:
    def entry(position: int) -> bytes:
        return position.to_bytes(2, "little") + bytes(range(24))

    assert traces_fit(entry(0) + entry(4), 5)
    assert traces_fit(b"", 5)
    for packed in (entry(5), entry(4) + entry(3), entry(3) + entry(3), entry(0)[:-1], entry(0) + b"x"):
        assert not traces_fit(packed, 5)


def test_a_trace_id_of_zeros_is_none() -> None:
    packed = bytes(2) + bytes(16) + b"\1" * 8 + b"\1\0" + b"\1" * 24
    assert traces_fit(packed, 2)
    assert list(find_traces(packed, np.arange(2))) == [1]
    assert read_traces(packed)["position"].tolist() == [1]

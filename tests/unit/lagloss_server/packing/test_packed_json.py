"""JSON, packed, says what its text says."""

from __future__ import annotations

import json
import threading
from hashlib import sha256
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.sketch import KEY_OFFSET, MAX_KEY, bin_value_ms
from lagloss_server.packing.packed_json import pack_json, unpack_json

LAGS = st.integers(-MAX_KEY, MAX_KEY).filter(lambda key: abs(key) >= KEY_OFFSET - 500).map(bin_value_ms)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | LAGS | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)
FIRST = bytes.fromhex("01204a850000187b7d7d0300b5a46688bd0e4859e62b")
"""Packed by version 1.0.0."""


def as_text(value: Any) -> str:
    """Return a value's text, in which 1 and 1.0, and the order of fields, make a difference."""
    return json.dumps(value)


@given(VALUES)
def test_a_value_comes_back_as_from_its_text(value: Any) -> None:
    assert as_text(unpack_json(pack_json(value))) == as_text(json.loads(json.dumps(value)))


def test_what_was_packed_once_can_be_read_for_ever() -> None:
    dictionary = resources.files("lagloss_server.packing").joinpath("packed_json.dictionary").read_bytes()
    assert sha256(dictionary).hexdigest() == "d702d36f38f9192d04c458dbc388dc7c9539cdaaf2614bc2570bc9cacb21a8ba"
    assert unpack_json(FIRST) == {"window_start": "2026-01-01T00:00:00Z", "lag_ms": {"p50": bin_value_ms(10_200)}}


@pytest.mark.parametrize("broken", [b"", b"x", b"{}", b"\1", b"\1x", FIRST[:-1]])
def test_what_was_not_packed_is_refused(broken: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        unpack_json(broken)


def test_threads_do_not_disturb_each_other() -> None:
    wrong = []

    def work(number: int) -> None:
        for at in range(500):
            value = {"messages": number, "checkpoints": [{"name": f"node-{at}.in", "lag_ms": {"p50": at / 7}}]}
            if unpack_json(pack_json(value)) != value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

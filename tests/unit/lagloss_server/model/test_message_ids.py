"""Escaped message ids can be stored and shown, and lead back to the id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import hash_id
from lagloss_server.model.message_ids import escape_id, hashes_of, unescape_id


@pytest.mark.parametrize(
    ("message_id", "escaped"),
    [
        ("order-17", "order-17"),
        ("größe 😀", "größe 😀"),
        ("padded\0\0", r"padded\x00\x00"),
        ("two\nlines", r"two\x0alines"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("C:\\temp", "C:\\temp"),
        (r"C:\x86", r"C:\x5cx86"),
        ("\\\0", r"\\x00"),
    ],
)
def test_what_cannot_be_seen_is_escaped(message_id: str, escaped: str) -> None:
    assert escape_id(message_id) == escaped
    assert unescape_id(escaped) == message_id


@pytest.mark.parametrize("asked", [r"\ud800", r"\U00110000", r"\x4", "0123456789abcdef"])
def test_whatever_is_asked_for_has_a_hash(asked: str) -> None:
    assert hash_id(asked) in hashes_of(asked)


@given(st.text(st.characters() | st.sampled_from("\\xuU0a\0\x1f\u202e\U000e0001"), max_size=40))
def test_every_id_comes_back(message_id: str) -> None:
    escaped = escape_id(message_id)
    assert unescape_id(escaped) == message_id
    assert "\0" not in escaped
    assert escaped.isprintable() or " " in escaped or not message_id.isascii()

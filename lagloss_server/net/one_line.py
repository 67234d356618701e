"""Foreign text, made fit for one line of ours."""

from __future__ import annotations

import unicodedata
from typing import Final

_TURNING: Final = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the text direction, and so could disguise the following text."""


def one_line(value: object, limit: int) -> str:
    """Return at most `limit` characters, without line breaks and other control characters."""
    text = str(value)[: 2 * limit + 100]  # enough: only white space gets shorter, and this need not be exact
    kept = "".join(" " if _controls(character) else character for character in text)
    kept = " ".join(kept.split())
    return kept if len(kept) <= limit else kept[: limit - 1].rstrip() + "…"


def _controls(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _TURNING

"""JSON records: their parts by msgspec, or else by Python's json, which decides what is JSON.

That is RFC 8259 in UTF-8, and what widespread writers add to it: a byte order mark in front, and NaN, Infinity and
-Infinity as numbers. msgspec is a few times as fast, but refuses these, half of a surrogate pair, and numbers that
float64 does not hold; what it takes, it reads as Python's json does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, TypedDict

import msgspec

from lagloss_server.extraction.values import value_at
from lagloss_server.model.expressions import MAX_LENGTH, Path


class JsonReader:
    """Reads the parts at some paths of JSON texts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._decode = msgspec.json.Decoder(_document_type(paths)).decode

    def read(self, text: bytes) -> list[object] | None:
        """Return the part at each path, None if the text is not JSON."""
        try:
            document = self._decode(text.decode())  # msgspec does not look whether what it skips is UTF-8
        except (msgspec.MsgspecError, ValueError, RecursionError):
            try:
                document = load_json(text)
            except (ValueError, RecursionError):
                return None
        return [value_at(document, path) for path in self._paths]


def _document_type(paths: Sequence[Path]) -> Any:
    """Return what msgspec is to decode: the members of an object that all paths begin with, or else everything."""
    names = [path[0] if path else None for path in paths]
    if all(isinstance(name, str) and name and name.isascii() for name in names):  # msgspec matches no others
        return TypedDict("Members", dict.fromkeys(names, Any), total=False)  # type: ignore[operator]  # at run time
    return Any


def load_json(text: bytes) -> Any:
    """Return the document that Python's json reads.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested deeper than Python's stack.
    """
    return _DECODER.decode(text.decode("utf-8-sig"))


def _integer(digits: str) -> object:
    """Return an integer, or what has no form as id or time if it is longer than any literal: Python's own limit is
    4,300 digits, beyond which it refuses the text."""
    return int(digits) if len(digits) <= MAX_LENGTH else ()


_DECODER: Final = json.JSONDecoder(parse_int=_integer)

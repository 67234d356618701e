"""JSON records: their parts by the compiled walk, or else by Python's json, which judges what is JSON.

That is RFC 8259 in UTF-8, and what widespread writers add to it: a byte order mark in front, and NaN, Infinity and
-Infinity as numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lagloss_server.model.expressions import MAX_LENGTH, Path
from taps.extraction import kinds
from taps.extraction.columns import I64, ByteColumn, PartTable
from taps.extraction.json_walk import find_in_json
from taps.extraction.trie import FlatTrie, PathNode

_NOWHERE: Final = object()


class JsonFinder:
    """Finds the parts at some paths in JSON texts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._trie = FlatTrie.of(PathNode.of(paths))

    def find(self, column: ByteColumn, rows: I64, table: PartTable) -> I64:
        """Put the parts of these rows into the table, and return the rows that are no JSON."""
        wanted = column if rows.size == len(column) else column.only(rows)
        sure = find_in_json(wanted, self._trie, table)
        for part, row in np.argwhere((table.kinds == kinds.RAW) & sure).tolist():
            start = table.starts[part, row]
            table.put(part, row, load_json(column.data[start : start + table.sizes[part, row]].tobytes()))
        unsure = rows[~sure[rows]]
        broken = [row for row in unsure.tolist() if not self.find_slowly(column.at(row), row, table)]
        return np.array(broken, np.int64)

    def find_slowly(self, text: bytes, row: int, table: PartTable) -> bool:
        """Put the parts of one text into the table by Python's json; return whether it is JSON."""
        table.clear(row)
        try:
            document = load_json(text)
        except (ValueError, RecursionError):  # RecursionError: nested deeper than Python's stack
            return False
        for part, path in enumerate(self._paths):
            value = value_at(document, path)
            if value is not _NOWHERE:
                table.put(part, row, value)
        return True


def value_at(document: Any, path: Path) -> Any:
    """Return the value at a path in what Python's json makes of a text, a marker of its own if there is none."""
    for step in path:
        if isinstance(step, str):
            if not isinstance(document, dict) or step not in document:
                return _NOWHERE
        elif not isinstance(document, list) or step >= len(document):
            return _NOWHERE
        document = document[step]
    return document


def load_json(text: bytes) -> Any:
    """Return what Python's json makes of a text.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deep.
    """
    return _DECODER.decode(text.decode("utf-8-sig"))


def _integer(digits: str) -> object:
    """Return an integer, or what has no form as id or time if it is longer than any literal: Python's own limit is
    4,300 digits, beyond which it refuses the text."""
    return int(digits) if len(digits) <= MAX_LENGTH else ()


_DECODER: Final = json.JSONDecoder(parse_int=_integer)

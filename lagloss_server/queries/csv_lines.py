"""CSV as RFC 4180 has it, line by line, and safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in a spreadsheet."""


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield one line per row, ended by CR LF. Texts that a spreadsheet would compute get an apostrophe before them;
    None is an empty field."""
    yield _line(header)
    for row in rows:
        yield _line(row)


def _line(row: Sequence[Any]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out).writerow([_safe(value) for value in row])
    return out.getvalue()


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

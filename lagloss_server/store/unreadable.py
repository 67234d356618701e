"""Stored rows, read one by one: a row that this version cannot read is set aside by name, and all others are read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import structlog
from pydantic import ValidationError
from sqlalchemy import Row

import lagloss
from lagloss_server.base.invalid import explain

MAX_REASON: Final = 200
SHOWN: Final = 20
"""Names that a text lists at most."""
NEWER: Final = f"written by a newer version of lagloss than {lagloss.__version__}"
RowKind = Literal["definition", "token", "silence", "user", "tap"]
ResultKind = Literal["window", "rollup"]
MAX_RESULTS: Final = 1_000
"""Unreadable results that a process names at most."""
T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, order=True)
class UnreadableRow:
    """A row that is set aside. `pipeline`: whose it is, empty for no pipeline's; `name`: its key, of a definition the
    version, of a result its start (epoch s), of a roll-up with the period; `since_ms`: from when on a definition is in
    force (epoch ms)."""

    kind: RowKind | ResultKind
    pipeline: str
    name: str
    why: str
    since_ms: int = field(default=0, compare=False)

    @property
    def place(self) -> str:
        """`definition orders/3`, `silence 7d1c`."""
        return _short(f"{self.kind} {'/'.join(part for part in (self.pipeline, self.name) if part)}")

    def __str__(self) -> str:
        return f"{self.place} ({self.why})"


class ReadRows(list[T]):
    """The rows that can be read, and the `unreadable` ones among them."""

    def __init__(self, values: Iterable[T] = (), unreadable: Iterable[UnreadableRow] = ()) -> None:
        super().__init__(values)
        self.unreadable = list(unreadable)


def read_each(
    rows: Iterable[Row[Any]], read: Callable[[Row[Any]], T], name: Callable[[Row[Any], str], UnreadableRow]
) -> ReadRows[T]:
    """Read each row by itself, whatever stands in the others.

    Args:
        read: makes the value of a row; whatever it raises sets that row aside.
        name: makes the entry of a row that cannot be read, for this reason.
    """
    result: ReadRows[T] = ReadRows()
    for row in rows:
        try:
            result.append(read(row))
        except Exception as error:
            result.unreadable.append(name(row, reason(error)))
    return result


def reason(error: Exception) -> str:
    """Return why a row cannot be read, in one line without values of it: /healthz shows it. A key or a format that this
    version does not have means that a newer version wrote the row."""
    if isinstance(error, ValidationError):
        errors = error.errors(include_url=False, include_input=False)
        if any(error["loc"] == ("apiVersion",) and error["type"] == "literal_error" for error in errors):
            return f"{NEWER}: unsupported apiVersion"
        unknown = next((error for error in errors if error["type"] == "extra_forbidden"), None)
        is_whole = not any(error["type"] == "missing" and len(error["loc"]) == 1 for error in errors)
        if unknown is not None and is_whole:
            return _short(f"{NEWER}: unknown key {'.'.join(map(str, unknown['loc']))}")
        place = ".".join(map(str, errors[0]["loc"])) or "document"
        return _short(f"cannot be read: {place}: {next(explain(error, None)).problem}")
    return _short(f"cannot be read: {error}" if isinstance(error, ValueError) else f"cannot be read: {error!r}")


def _short(text: str) -> str:
    text, _, _ = text.partition(", found ")
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"


def some_of(names: Sequence[str]) -> str:
    """List names, the first ones if there are many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


class UnreadableRows:
    """The rows that a process has set aside, as it last read each kind of them. Used by several threads."""

    def __init__(self) -> None:
        self._rows: Mapping[RowKind, frozenset[UnreadableRow]] = {}
        self._lock = threading.Lock()

    def replace(self, kind: RowKind, rows: Iterable[UnreadableRow]) -> None:
        """Note what is unreadable of a kind now; log what was not before, and what can be read again or is gone."""
        with self._lock:
            before, now = self._rows.get(kind, frozenset()), frozenset(rows)
            self._rows = {**self._rows, kind: now}
        for row in sorted(now - before):
            log.warning("row unreadable", kind=kind, pipeline=row.pipeline, row=row.name, why=row.why)
        for row in sorted(before - now):
            log.info("row readable again", kind=kind, pipeline=row.pipeline, row=row.name)

    def __iter__(self) -> Iterator[UnreadableRow]:
        return iter(sorted([*(row for rows in self._rows.values() for row in rows), *RESULTS]))

    def health_note(self) -> str:
        """Return the text of a healthy /healthz."""
        rows = [str(row) for row in self]
        return f"ok; unreadable: {some_of(rows)}" if rows else "ok"

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        return dict(Counter(row.kind for row in self))


class UnreadableResults:
    """The stored windows and roll-ups that this process could not read when it last tried. Used by several threads.

    There are millions of results, read where they are needed: no pass over all of them can find the unreadable ones.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[ResultKind, str, str], UnreadableRow] = {}
        self._lock = threading.Lock()

    def note(self, kind: ResultKind, pipeline: str, name: str, error: Exception) -> None:
        """Note a row that cannot be read; log it if that is new."""
        row = UnreadableRow(kind, pipeline, name, reason(error))
        key = kind, pipeline, name
        with self._lock:
            if self._rows.get(key) == row or len(self._rows) >= MAX_RESULTS:
                return
            self._rows[key] = row
        log.warning("row unreadable", kind=kind, pipeline=pipeline, row=name, why=row.why)

    def clear(self, kind: ResultKind, pipeline: str, name: str) -> None:
        """Note that a row was read."""
        if not self._rows:  # the hot path: no lock, and no key
            return
        with self._lock:
            is_gone = self._rows.pop((kind, pipeline, name), None) is not None
        if is_gone:
            log.info("row readable again", kind=kind, pipeline=pipeline, row=name)

    def __iter__(self) -> Iterator[UnreadableRow]:
        with self._lock:
            return iter(sorted(self._rows.values()))


RESULTS: Final = UnreadableResults()
"""Those of this process."""

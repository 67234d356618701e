"""Rows of a table that are remembered by minute of event time, to be compared with the table again. Pure.

A minute is looked at when it is 10 min old, 1 h, 6 h and so on, last when `recheck` has passed. A row that two looks
miss, `CONFIRM_MS` or more apart, is lost afterwards. In between, rows can be written again that are deleted first.

A table with more than `MAX_ROWS` rows in a minute is sampled by the hash of the ids: the rows with the lowest hashes
stay, so parts of a minute can be thinned each for itself. Times are epoch ms.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from lagloss.wire.format import SAMPLE_ALL, WINDOW_S, hash_id, window_start_of
from taps.tables.reading import MissingRows, SeenRow, TableVersion

MAX_ROWS: Final = 1_000
"""Remembered of a minute; with UUIDs as ids, they take 32 kB."""
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
AGES_MS: Final = (10 * _MINUTE_MS, _HOUR_MS, 6 * _HOUR_MS, _DAY_MS, 3 * _DAY_MS, 7 * _DAY_MS, 14 * _DAY_MS)
"""Ages of a minute at which it is looked at, besides `recheck`."""
CONFIRM_MS: Final = 10 * _MINUTE_MS
"""Between the look that misses a row first and the one that states that it is lost."""
RETURN_MS: Final = 10 * _MINUTE_MS, _HOUR_MS
"""Bounds of how long after a look lost rows are looked for again; between them, as long as they have been missed."""

Cause = Literal["deleted", "rewritten", "recreated"]
"""What became of the rows: they were deleted, the table was truncated or rewritten, or dropped and created again."""


class NotComparable(Exception):
    """A version of a table says nothing of rows that were seen in an earlier one."""


class RememberedRow(msgspec.Struct, array_like=True, frozen=True):
    """A row: where it was read, when and in what it was seen last, and the first look since then that missed it.

    Attributes:
        table, content: as of a `TableVersion`.
        missed_ms: 0: none.
        cause: empty: it is not missed.
        is_lost: a later look missed it again.
    """

    place: int
    id: str
    event_ms: int
    seen_ms: int
    table: str = ""
    content: str = ""
    missed_ms: int = 0
    cause: Cause | Literal[""] = ""
    is_lost: bool = False

    @property
    def seen(self) -> SeenRow:
        return SeenRow(self.place, self.id, self.event_ms)


@dataclass(frozen=True, slots=True)
class RememberedMinute:
    """Rows of a minute of event time, or of a part of it, by id.

    Attributes:
        window_start_s: its start (epoch s).
        sample: ids whose hash modulo 2^32 is below it are remembered.
        version: the newest in which a row was seen, or looked for.
        compared_ms: when it was compared last; 0: never.
    """

    window_start_s: int
    rows: Mapping[str, RememberedRow]
    version: TableVersion
    sample: int = SAMPLE_ALL
    compared_ms: int = 0

    @property
    def end_ms(self) -> int:
        return (self.window_start_s + WINDOW_S) * 1_000

    @property
    def lost(self) -> dict[str, RememberedRow]:
        """Rows that are lost afterwards, by id."""
        return {id_: row for id_, row in self.rows.items() if row.is_lost}

    def packed_rows(self) -> bytes:
        """Return the rows for `rows_of`."""
        return zlib.compress(msgspec.msgpack.encode(list(self.rows.values())), 1)


def rows_of(packed: bytes) -> dict[str, RememberedRow]:
    """Return rows that were packed, by id."""
    rows = msgspec.msgpack.decode(zlib.decompress(packed), type=list[RememberedRow])
    return {row.id: row for row in rows}


def by_minute(rows: Iterable[SeenRow], version: TableVersion, now_ms: int) -> list[RememberedMinute]:
    """Return the minutes of rows that were just read; of several rows with one id, the last one stands for it."""
    minutes: defaultdict[int, dict[str, RememberedRow]] = defaultdict(dict)
    for row in rows:
        remembered = RememberedRow(*row, now_ms, version.table, version.content)
        minutes[window_start_of(row.event_ms)][row.id] = remembered
    return [_thinned(RememberedMinute(start, minutes[start], version)) for start in sorted(minutes)]


def merged(parts: Sequence[RememberedMinute]) -> RememberedMinute:
    """Return the parts of a minute together, oldest first: a row that a later part has was seen again.

    Rows that were seen in another store than the newest are forgotten, unless they are lost.
    """
    newest = parts[-1].version
    alike = [part for part in parts if _is_comparable(part.version, newest)]
    rows: dict[str, RememberedRow] = {}
    for part in parts:
        rows |= part.rows if _is_comparable(part.version, newest) else part.lost
    return _thinned(
        RememberedMinute(
            parts[0].window_start_s,
            rows,
            max((part.version for part in alike), key=lambda version: version.at),
            min(part.sample for part in parts),
            max(part.compared_ms for part in parts),
        )
    )


def compared(minute: RememberedMinute, missing: MissingRows, now_ms: int) -> RememberedMinute:
    """Return a minute after a look at the table.

    Raises:
        NotComparable: the look says nothing of its rows.
    """
    _check_comparable(minute.version, missing.version)
    rows = {id_: _after_look(row, id_ in missing.ids, missing.version, now_ms) for id_, row in minute.rows.items()}
    return replace(minute, rows=rows, version=missing.version, compared_ms=now_ms)


def due_ms(window_start_s: int, now_ms: int, recheck_ms: int) -> int | None:
    """Return when a minute reaches the next of the ages at which it is looked at; None: it is past the last."""
    end_ms = (window_start_s + WINDOW_S) * 1_000
    ages = (*(age_ms for age_ms in AGES_MS if age_ms < recheck_ms), recheck_ms)
    return next((end_ms + age_ms for age_ms in ages if end_ms + age_ms > now_ms), None)


def next_look_ms(minute: RememberedMinute, now_ms: int, recheck_ms: int) -> int | None:
    """Return when to look at a minute again that was just looked at; None: never."""
    due = due_ms(minute.window_start_s, now_ms, recheck_ms)
    looks = [] if due is None else [due]
    missed = [row for row in minute.rows.values() if row.missed_ms]
    if not all(row.is_lost for row in missed):
        looks.append(now_ms + CONFIRM_MS)
    elif missed and due is not None:  # they can be put back
        shortest_ms, longest_ms = RETURN_MS
        since_ms = now_ms - max(row.missed_ms for row in missed)
        looks.append(now_ms + min(max(since_ms, shortest_ms), longest_ms))
    return min(looks, default=None)


def _is_comparable(seen: TableVersion, now: TableVersion) -> bool:
    return (seen.store, seen.columns) == (now.store, now.columns)


def _check_comparable(seen: TableVersion, now: TableVersion) -> None:
    """Raise NotComparable if rows that were seen in a version can be there, though another one does not show them."""
    if now.store != seen.store:
        raise NotComparable("its rows were seen on another server than the one that answers now")
    if now.columns != seen.columns:
        raise NotComparable(f"its id was read as {seen.columns}, and is {now.columns} now")
    if now.at < seen.at:
        raise NotComparable("the server that answers is behind what was read before")


def _after_look(row: RememberedRow, is_missing: bool, version: TableVersion, now_ms: int) -> RememberedRow:
    if not is_missing:
        return RememberedRow(row.place, row.id, row.event_ms, now_ms, version.table, version.content)
    if not row.missed_ms:
        return msgspec.structs.replace(row, missed_ms=now_ms, cause=_cause(row, version))
    is_confirmed = now_ms - row.missed_ms >= CONFIRM_MS
    return msgspec.structs.replace(row, is_lost=row.is_lost or is_confirmed)


def _cause(row: RememberedRow, version: TableVersion) -> Cause:
    if version.table != row.table:
        return "recreated"
    return "deleted" if version.content == row.content else "rewritten"


def _thinned(minute: RememberedMinute) -> RememberedMinute:
    """Return the minute with the rows of its sample, and a smaller one if these are too many. Lost ones stay."""
    lost = minute.lost
    hashes = {id_: hash_id(id_) % SAMPLE_ALL for id_ in minute.rows if id_ not in lost}
    sample = minute.sample
    kept = {id_ for id_, id_hash in hashes.items() if id_hash < sample}
    if len(kept) > MAX_ROWS:
        sample = max(1, sorted(hashes[id_] for id_ in kept)[MAX_ROWS])
        kept = {id_ for id_ in kept if hashes[id_] < sample}
    rows = {id_: row for id_, row in minute.rows.items() if id_ in lost or id_ in kept}
    return replace(minute, rows=rows, sample=sample)

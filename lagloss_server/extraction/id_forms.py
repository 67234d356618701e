"""Ids of the forms that an expression can have: texts of parts, a hash of them, or the position of a record.

A hash is over the texts of its parts as netstrings (`5:hello,`), so that no two lists of parts have the same input.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss.identity import ID_HEADER, REPLAY_HEADER
from lagloss_server.extraction import kinds
from lagloss_server.extraction.columns import I8, PartColumn
from lagloss_server.extraction.ids import measure_ids, measure_parts, write_ids
from lagloss_server.extraction.reasons import CODES
from lagloss_server.extraction.spec import Extraction, Records

HASH_DIGITS: Final = 32
"""Hexadecimal digits of SHA-256 that are an id: of a thousand million messages, two collide with a chance of 1e-21."""
_MISSING: Final = (kinds.ABSENT, kinds.NULL)
_BIG_ENDIAN: Final = (4, 8)
"""Bytes of an int or a long as Java writes it, and Spring Kafka's headers hold it."""
_POSITION: Final = re.compile(rb"([A-Za-z0-9._-]{1,249})/(0|[1-9]\d{0,9})/(0|[1-9]\d{0,18})")


@dataclass(frozen=True, slots=True)
class ReadIds:
    """The ids of some records: `codes`, why a row has none, of `CODES`, or 0; `write` returns those of rows that have
    one."""

    codes: I8
    write: Callable[[npt.NDArray[np.intp]], list[bytes]]


def read_ids(extraction: Extraction, parts: Sequence[PartColumn]) -> ReadIds:
    """Return the ids of records whose parts, by the id's expression, these are."""
    expression = extraction.id
    if expression.is_own_position:
        topic = PartColumn.of_text(extraction.origins[0].encode(), parts[0].kinds.size)
        return _joined([topic, *parts])
    match expression.form:
        case "text":
            return _joined(parts)
        case "hash":
            return _hashed(parts)
        case "position":
            return _positions(parts, [topic.encode() for topic in extraction.origins])


def named_positions(extraction: Extraction, records: Records) -> dict[int, bytes]:
    """Return by row the ids of records that were replayed and name, in the header of ids, the position of the message
    that they are copies of: their own is another. Of ids of other forms there are none."""
    if extraction.id.form != "position":
        return {}
    replayed = records.with_header(REPLAY_HEADER)
    origins = {topic.encode() for topic in extraction.origins}
    return {
        row: position
        for row, position in (records.with_header(ID_HEADER).items() if replayed else ())
        if row in replayed and _is_of(position, origins)
    }


def with_named(ids: ReadIds, named: Mapping[int, bytes]) -> ReadIds:
    """Return ids of which these rows have others."""

    def write(rows: npt.NDArray[np.intp]) -> list[bytes]:
        is_named = np.isin(rows, list(named))
        others = iter(ids.write(rows[~is_named]))
        return [
            named[row] if has_name else next(others)
            for row, has_name in zip(rows.tolist(), is_named.tolist(), strict=True)
        ]

    return ReadIds(without(ids.codes, named), write)


def without(codes: I8, rows: Collection[int]) -> I8:
    """Return codes of which these rows have none."""
    cleared = codes.copy()
    cleared[list(rows)] = 0
    return cleared


def _joined(parts: Sequence[PartColumn]) -> ReadIds:
    sizes, codes = measure_ids(parts)
    return ReadIds(codes, lambda rows: write_ids(parts, sizes, rows))


def _hashed(parts: Sequence[PartColumn]) -> ReadIds:
    sizes, codes = measure_parts(parts)

    def write(rows: npt.NDArray[np.intp]) -> list[bytes]:
        columns = [
            write_ids([part], part_sizes.reshape(1, -1), rows) for part, part_sizes in zip(parts, sizes, strict=True)
        ]
        return [_hash(texts) for texts in zip(*columns, strict=True)]

    return ReadIds(codes, write)


def _hash(texts: Sequence[bytes]) -> bytes:
    netstrings = b"".join(b"%d:%b," % (len(text), text) for text in texts)
    return hashlib.sha256(netstrings).hexdigest()[:HASH_DIGITS].encode()


def _positions(parts: Sequence[PartColumn], origins: Collection[bytes]) -> ReadIds:
    """Return positions that other records name. One that is not of a topic of `origins` (if there are any) is no id: it
    would be another message than all that these topics have."""
    rows = parts[0].kinds.size
    codes = np.zeros(rows, np.int8)
    ids: list[bytes] = [b""] * rows
    is_missing = np.isin(np.stack([part.kinds for part in parts]), _MISSING).any(axis=0)
    codes[is_missing] = CODES["no_id"]
    for row in np.flatnonzero(~is_missing).tolist():
        position = _position(*(part.value(row) for part in parts))
        if position is None or not _is_of(position, origins):
            codes[row] = CODES["bad_id"]
        else:
            ids[row] = position
    return ReadIds(codes, lambda chosen: [ids[row] for row in chosen.tolist()])


def _is_of(position: bytes, origins: Collection[bytes]) -> bool:
    """Return whether this is a position in a topic of `origins`, or of any if there are none."""
    return bool(_POSITION.fullmatch(position)) and (not origins or position.partition(b"/")[0] in origins)


def _position(first: int | bytes | None, *numbers: int | bytes | None) -> bytes | None:
    """Return TOPIC/PARTITION/OFFSET, which stands in one part or is made of three; None if it is not one."""
    if not isinstance(first, bytes):
        return None
    whole = b"/".join([first, *(b"%d" % number for number in map(_number, numbers) if number is not None)])
    return whole if _POSITION.fullmatch(whole) and (not numbers or b"/" not in first) else None


def _number(value: int | bytes | None) -> int | None:
    """Return a partition or an offset: a number, its digits, or an int or long as Java writes it. Eight digits that
    were meant as a long would be offset 3 x 10^18, and four as an int partition 800 million."""
    if isinstance(value, bytes):
        if value.isdigit():
            return int(value) if len(value) < HASH_DIGITS else None
        return int.from_bytes(value, "big", signed=True) if len(value) in _BIG_ENDIAN else None
    return value

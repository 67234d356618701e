"""Protobuf records: their parts by the compiled walk, or else by Google's library, which judges what is a message.

Proto3 does not write a field without presence that has its default, so such a field is there: 0, "" or the first name
of an enum. A field with presence (`optional`, in a `oneof`, a message) that is not set is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from lagloss_server.model.expressions import Path
from taps.extraction import kinds
from taps.extraction.columns import I64, ByteColumn, PartTable
from taps.extraction.protobuf_walk import TIMESTAMP, ProtobufProgram, field_of, find_in_protobuf

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class _Nowhere(Exception):
    """A path leads nowhere in this message."""


MAX_LISTED_DEPTH: Final = 5
"""Of paths that are listed: a recursive message has no end."""
Step = Callable[[Any], Any]


class ProtobufFinder:
    """Finds the parts at some paths in messages of one type."""

    def __init__(self, descriptor: Any, paths: Sequence[Path]) -> None:
        self._message = GetMessageClass(descriptor)
        self._steps = [_steps(descriptor, path) for path in paths]
        self._program = ProtobufProgram.of(descriptor, paths)
        self._whole = paths.index(()) if () in paths else -1

    def find(self, column: ByteColumn, rows: I64, table: PartTable) -> I64:
        """Put the parts of these rows into the table, and return the rows that are no such message."""
        if self._program is None:
            return self.find_slowly(column, rows, table)
        if self._whole >= 0:
            table.kinds[self._whole, rows] = kinds.OTHER  # unless the walk says more of it
        unsure = rows[~find_in_protobuf(column, rows, self._program, table)]
        table.kinds[:, unsure] = kinds.ABSENT
        return self.find_slowly(column, unsure, table)

    def find_slowly(self, column: ByteColumn, rows: I64, table: PartTable) -> I64:
        """Do the same by the library alone, message by message."""
        parse = self._message.FromString
        broken = []
        for row in rows.tolist():
            try:
                message = parse(column.at(row))
            except DecodeError:
                broken.append(row)
                continue
            for part, steps in enumerate(self._steps):
                if steps is not None:
                    _put(table, part, row, message, steps)
        return np.array(broken, np.int64)


def message_paths(descriptor: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the paths of the plain fields of a message, through messages within messages."""
    for field in descriptor.fields:
        path = (*above, field.name)
        if field.is_repeated:
            continue
        inner = field.message_type
        if inner is None or inner.full_name == TIMESTAMP or inner.full_name in _WRAPPERS:
            yield path
        elif len(path) < MAX_LISTED_DEPTH:
            yield from message_paths(inner, path)


def _put(table: PartTable, part: int, row: int, message: Any, steps: Sequence[Step]) -> None:
    try:
        for step in steps:
            message = step(message)
    except _Nowhere:
        return
    if isinstance(message, _Moment):
        table.put_moment(part, row, message.ns)
    else:
        table.put(part, row, message)


class _Moment:
    """A Timestamp."""

    def __init__(self, message: Any) -> None:
        self.ns = message.seconds * 1_000_000_000 + message.nanos


def _steps(descriptor: Any, path: Path) -> list[Step] | None:
    """Return the way from a message to the value at a path, None if its type has no such field."""
    steps: list[Step] = []
    at: Any = descriptor
    """The message's descriptor, the field's where it is repeated, or None where the value has no parts."""
    last: Any = None
    for name in path:
        if at is None:
            return None
        if isinstance(name, int) or _is_map(at):
            if not _is_repeated(at) or _is_map(at) != isinstance(name, str):
                return None
            value = at.message_type.fields_by_name["value"] if _is_map(at) else at
            if _is_map(at) and at.message_type.fields_by_name["key"].type != at.TYPE_STRING:
                return None
            steps.append(_entry(name) if _is_map(at) else _item(name))
            last, at = value, value.message_type
            continue
        if _is_repeated(at):
            return None
        found = field_of(at, name)
        if found is None:
            return None
        steps.append(_member(found))
        last = found
        at = found if _is_repeated(found) else found.message_type
    steps.append(_ending(descriptor if last is None else at, last))
    return steps


def _is_repeated(at: Any) -> bool:
    return bool(getattr(at, "is_repeated", False))


def _is_map(at: Any) -> bool:
    return _is_repeated(at) and at.message_type is not None and at.message_type.GetOptions().map_entry


def _member(field: Any) -> Step:
    name = field.name
    if _is_repeated(field) or not field.has_presence:
        return lambda message: getattr(message, name)

    def present(message: Any) -> Any:
        if not message.HasField(name):
            raise _Nowhere
        return getattr(message, name)

    return present


def _item(index: Any) -> Step:
    def item(items: Any) -> Any:
        if index >= len(items):
            raise _Nowhere
        return items[index]

    return item


def _entry(key: Any) -> Step:
    def entry(entries: Any) -> Any:
        if key not in entries:
            raise _Nowhere
        return entries[key]

    return entry


def _ending(at: Any, field: Any) -> Step:
    """Return how the value at the end of a path is made one that a table takes."""
    if _is_repeated(at):
        return lambda _: ()
    if at is not None:
        if at.full_name == TIMESTAMP:
            return _Moment
        if at.full_name in _WRAPPERS:
            return lambda message: message.value
        return lambda _: ()
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return lambda value: value

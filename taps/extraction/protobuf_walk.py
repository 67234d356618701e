"""A walk over Protobuf's wire format that finds fields at some paths, compiled: no message is made.

It takes only what it is sure of: messages whose every field is as its schema says, with values in the range of their
type. All others it leaves to Google's library, which is the judge of what is a message (protobuf_format.py). So it does
with all messages where a path leads through a repeated field or one of a `oneof`, or a type has required fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.model.expressions import Path
from lagloss_server.packing.compiled import U8, Int, compiled_bare
from lagloss_server.packing.varints import varint
from taps.extraction import kinds
from taps.extraction.columns import I64, ByteColumn, PartTable
from taps.extraction.text import is_utf8
from taps.extraction.trie import PathNode

TIMESTAMP: Final = "google.protobuf.Timestamp"
MAX_DEPTH: Final = 64
MAX_NODES: Final = 10_000
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_INT32, _INT64, _UINT32, _UINT64, _SINT32, _SINT64, _BOOL, _ENUM = range(8)
"""What is read of a varint."""
_SFIXED32, _UFIXED32, _FLOAT, _SFIXED64, _UFIXED64, _DOUBLE = range(8, 14)
_STRING, _BYTES, _MESSAGE, _PACKED, _SECONDS, _NANOS, _OTHER = range(14, 21)
_TYPES: Final = {
    1: _DOUBLE, 2: _FLOAT, 3: _INT64, 4: _UINT64, 5: _INT32, 6: _UFIXED64, 7: _UFIXED32, 8: _BOOL, 9: _STRING,
    11: _MESSAGE, 12: _BYTES, 13: _UINT32, 14: _ENUM, 15: _SFIXED32, 16: _SFIXED64, 17: _SINT32, 18: _SINT64,
}  # fmt: skip
"""By the number of a field's type in its descriptor; a group is none of them."""
_MAX_SECONDS: Final = 9_000_000_000
"""So many seconds since the epoch fit an int64 as ns: to the year 2255."""
_KIND_ABSENT, _KIND_BOOL, _KIND_INT, _KIND_FLOAT = kinds.ABSENT, kinds.BOOL, kinds.INT, kinds.FLOAT
_KIND_TEXT, _KIND_BYTES, _KIND_MOMENT = kinds.TEXT, kinds.BYTES, kinds.MOMENT


class _Unsuitable(Exception):
    """The walk is not for this schema and these paths."""


@dataclass(frozen=True, slots=True)
class ProtobufProgram:
    """Messages as nodes by number, 0 the root: of each the first and last of its `fields`, the first and last of its
    `defaults`, and the part that it is itself, a Timestamp (-1: none).

    A field: its number, what it is, the part (-1: none), the node of a message or what a packed field holds, and of an
    enum the first and last of its `symbols`. A default: the part and kind of a field without presence, and the symbol
    of an enum. A symbol: its number, and its place and size in `text`.
    """

    nodes: I64
    fields: I64
    defaults: I64
    symbols: I64
    text: U8

    @classmethod
    def of(cls, descriptor: Any, paths: Sequence[Path]) -> ProtobufProgram | None:
        """Make the program, None where the walk is not for these paths."""
        builder = _Builder()
        try:
            builder.message(descriptor, PathNode.of(paths))
        except (_Unsuitable, RecursionError):
            return None
        return builder.program()

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.nodes, self.fields, self.defaults, self.symbols


@dataclass(slots=True)
class _Builder:
    nodes: list[list[int]] = field(default_factory=list)
    fields: list[list[int]] = field(default_factory=list)
    defaults: list[list[int]] = field(default_factory=list)
    symbols: list[list[int]] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    shared: dict[str, int] = field(default_factory=dict)
    """Nodes off the paths, by the message's name."""

    def program(self) -> ProtobufProgram:
        def table(rows: list[list[int]], columns: int) -> I64:
            return np.array(rows, np.int64).reshape(-1, columns)

        text = np.frombuffer(bytes(self.text), np.uint8)
        return ProtobufProgram(
            table(self.nodes, 5), table(self.fields, 6), table(self.defaults, 3), table(self.symbols, 3), text
        )

    def message(self, descriptor: Any, path: PathNode) -> int:
        """Add the nodes of a message and return its number."""
        is_shared = path.part < 0 and not path.children
        if is_shared and descriptor.full_name in self.shared:
            return self.shared[descriptor.full_name]
        if len(self.nodes) == MAX_NODES:
            raise _Unsuitable
        number = len(self.nodes)
        self.nodes.append([0, 0, 0, 0, -1])
        if is_shared:
            self.shared[descriptor.full_name] = number
        below = _by_field(descriptor, path)
        rows = [self._field(each, below.get(each.number, PathNode())) for each in descriptor.fields]
        defaults = [
            [row[2], _kind_of(row[1]), row[4] if row[1] == _ENUM else -1]
            for each, row in zip(descriptor.fields, rows, strict=True)
            if row[2] >= 0 and row[1] != _MESSAGE and not each.has_presence
        ]
        if path.part >= 0 and descriptor.full_name != TIMESTAMP:
            if number or descriptor.full_name.startswith("google.protobuf."):
                raise _Unsuitable
        elif path.part >= 0:
            if path.children:
                raise _Unsuitable
            self.nodes[number][4] = path.part
            ops = {1: _SECONDS, 2: _NANOS}
            rows = [[row[0], ops[row[0]], path.part, -1, 0, 0] for row in rows]
        first, default = len(self.fields), len(self.defaults)
        self.fields += sorted(rows)
        self.defaults += defaults
        self.nodes[number][:4] = first, len(self.fields), default, len(self.defaults)
        return number

    def _field(self, each: Any, path: PathNode) -> list[int]:
        """Return the row of a field."""
        if each.is_required:
            raise _Unsuitable
        is_on_path = path.part >= 0 or bool(path.children)
        if is_on_path and (each.is_repeated or (each.containing_oneof and len(each.containing_oneof.fields) > 1)):
            raise _Unsuitable
        op = _TYPES.get(each.type, _OTHER)
        if op == _MESSAGE:
            return [each.number, op, -1, self.message(each.message_type, path), 0, 0]
        if path.children or (is_on_path and op == _OTHER):
            raise _Unsuitable
        if each.is_repeated and op not in (_STRING, _BYTES, _OTHER):
            return [each.number, _PACKED, -1, op, 0, 0]
        if op != _ENUM or not is_on_path:
            return [each.number, op, path.part, -1, 0, 0]
        first = len(self.symbols)
        default = each.enum_type.values_by_number[each.default_value]
        others = [value for value in each.enum_type.values_by_number.values() if value is not default]
        for value in (default, *others):
            name = value.name.encode()
            self.symbols.append([value.number, len(self.text), len(name)])
            self.text += name
        return [each.number, op, path.part, -1, first, len(self.symbols)]


def _by_field(descriptor: Any, path: PathNode) -> dict[int, PathNode]:
    """Return where paths go on from a message, by the field's number."""
    found: dict[int, PathNode] = {}
    for step, below in path.children.items():
        if isinstance(step, int):
            raise _Unsuitable
        each = field_of(descriptor, step)
        if each is None:
            continue  # such a part is absent
        if each.number in found:  # by both of its names
            raise _Unsuitable
        found[each.number] = below
    return found


def field_of(descriptor: Any, name: str) -> Any:
    """Return the field of a message with this name, its own or that in JSON; None if there is none."""
    return descriptor.fields_by_name.get(name) or next((f for f in descriptor.fields if f.json_name == name), None)


def _kind_of(op: int) -> int:
    if op in (_FLOAT, _DOUBLE):
        return kinds.FLOAT
    return {_BOOL: kinds.BOOL, _ENUM: kinds.TEXT, _STRING: kinds.TEXT, _BYTES: kinds.BYTES}.get(op, kinds.INT)


def find_in_protobuf(
    column: ByteColumn, rows: I64, program: ProtobufProgram, table: PartTable
) -> npt.NDArray[np.bool_]:
    """Put the parts of these rows into the table, and return of which of them all is found.

    The others may have parts in the table that are to be cleared.
    """
    sure = np.zeros(rows.size, np.bool_)
    nodes, ends = np.empty((2, MAX_DEPTH), np.int64)
    beside = table.put_beside(program.text.tobytes()) if program.symbols.size else 0
    _walk(
        column.data, column.starts, column.ends, rows, program.arrays, beside,
        table.kinds, table.numbers, table.numbers.view(np.float64), table.starts, table.sizes, nodes, ends, sure,
    )  # fmt: skip
    return sure


@compiled_bare
def _is_packed(data: U8, at: Int, end: Int, op: Int) -> bool:
    """Return whether these bytes are values of a packed field, one after the other."""
    if op >= _SFIXED32:
        return bool((end - at) % (4 if op <= _FLOAT else 8) == 0)
    while at < end:
        _, at = varint(data, at, end)
        if at < 0:
            return False
    return True


@compiled_bare
def _begin(
    node: Int, row: Int, made: Any, beside: Int, found_kinds: Any, numbers: Any, places: Any, sizes: Any
) -> None:
    """Set what a message has though it is not written: its fields without presence, or the time 0."""
    nodes, _, defaults, symbols = made
    part = nodes[node, 4]
    if part >= 0 and found_kinds[part, row] != _KIND_MOMENT:
        found_kinds[part, row] = _KIND_MOMENT
        numbers[part, row], places[part, row], sizes[part, row] = 0, 0, 0
    for each in range(nodes[node, 2], nodes[node, 3]):
        part = defaults[each, 0]
        if found_kinds[part, row] == _KIND_ABSENT:
            found_kinds[part, row] = defaults[each, 1]
            numbers[part, row], places[part, row], sizes[part, row] = 0, 0, 0
            if defaults[each, 2] >= 0:
                places[part, row] = beside + symbols[defaults[each, 2], 1]
                sizes[part, row] = symbols[defaults[each, 2], 2]


@compiled_bare
def _walk(
    data: U8, starts: I64, ends: I64, rows: I64, made: Any, beside: Int,
    found_kinds: Any, numbers: Any, reals: Any, places: Any, sizes: Any,
    stack: I64, stack_ends: I64, sure: Any,
) -> None:  # fmt: skip
    """Walk over each message. The stack: the nodes of messages, and where each ends."""
    nodes, fields, _, symbols = made
    for number in range(rows.size):
        row = rows[number]
        at, end = starts[row], ends[row]
        stack[0], stack_ends[0] = 0, end
        depth = 0
        hint = nodes[0, 0]
        _begin(0, row, made, beside, found_kinds, numbers, places, sizes)
        good = True
        while True:
            while at == stack_ends[depth] and depth > 0:
                depth -= 1
                hint = nodes[stack[depth], 0]
            if at == stack_ends[depth]:
                break
            end = stack_ends[depth]
            tag, at = varint(data, at, end)
            if at < 0 or tag < 8 or tag >= 1 << 32:
                good = False
                break
            wire, field_number = np.int64(tag & np.uint64(7)), np.int64(tag >> np.uint64(3))
            # fields mostly come in the order of their numbers: look on from the last one
            node = stack[depth]
            first, last = nodes[node, 0], nodes[node, 1]
            found = hint
            while found < last and fields[found, 0] < field_number:
                found += 1
            if found >= last or fields[found, 0] != field_number:
                found = first
                while found < last and fields[found, 0] != field_number:
                    found += 1
            op = part = -1
            if found < last:
                hint = found
                op, part = fields[found, 1], fields[found, 2]
            if wire == _VARINT:
                raw, at = varint(data, at, end)
                packed = op == _PACKED and fields[found, 3] <= _ENUM
                if at < 0 or not (op <= _ENUM or op in (_SECONDS, _NANOS) or packed):
                    good = False
                    break
                if part < 0:
                    continue
                value: Int = np.int64(raw)
                kind = _KIND_INT
                if op in (_SINT32, _SINT64):
                    value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
                if op in (_INT32, _SINT32, _ENUM, _NANOS):
                    good = -(1 << 31) <= value < 1 << 31
                elif op == _UINT32:
                    good = 0 <= value < 1 << 32
                elif op == _UINT64:
                    good = value >= 0
                elif op == _BOOL:
                    good = 0 <= value <= 1
                    kind = _KIND_BOOL
                elif op == _SECONDS:
                    good = -_MAX_SECONDS <= value <= _MAX_SECONDS
                if not good:
                    break
                if op in (_SECONDS, _NANOS):
                    if op == _SECONDS:
                        places[part, row] = value
                    else:
                        sizes[part, row] = value
                    numbers[part, row] = places[part, row] * 1_000_000_000 + sizes[part, row]
                    continue
                if op == _ENUM:
                    symbol, after = fields[found, 4], fields[found, 5]
                    while symbol < after and symbols[symbol, 0] != value:
                        symbol += 1
                    if symbol == after:
                        good = False
                        break
                    kind = _KIND_TEXT
                    places[part, row], sizes[part, row] = beside + symbols[symbol, 1], symbols[symbol, 2]
                found_kinds[part, row], numbers[part, row] = kind, value
            elif wire == _SIZED:
                raw, at = varint(data, at, end)
                if at < 0 or raw > np.uint64(end - at):
                    good = False
                    break
                size: Int = np.int64(raw)
                if op in (_STRING, _BYTES):
                    if op == _STRING and not is_utf8(data, at, at + size):
                        good = False
                        break
                    if part >= 0:
                        found_kinds[part, row] = _KIND_TEXT if op == _STRING else _KIND_BYTES
                        places[part, row], sizes[part, row] = at, size
                    at += size
                elif op == _MESSAGE:
                    depth += 1
                    if depth == MAX_DEPTH:
                        good = False
                        break
                    node = fields[found, 3]
                    stack[depth], stack_ends[depth] = node, at + size
                    hint = nodes[node, 0]
                    _begin(node, row, made, beside, found_kinds, numbers, places, sizes)
                elif op == -1 or (op == _PACKED and _is_packed(data, at, at + size, fields[found, 3])):
                    at += size
                else:
                    good = False
                    break
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
                held = fields[found, 3] if op == _PACKED else op
                low, high = (_SFIXED64, _DOUBLE) if wire == _FIXED64 else (_SFIXED32, _FLOAT)
                if size > end - at or (held >= 0 and (held < low or held > high)):
                    good = False
                    break
                if part >= 0:
                    found_kinds[part, row] = _KIND_INT
                    if op == _DOUBLE:
                        reals[part, row] = data[at : at + 8].view(np.float64)[0]
                        found_kinds[part, row] = _KIND_FLOAT
                    elif op == _FLOAT:
                        reals[part, row] = data[at : at + 4].view(np.float32)[0]
                        found_kinds[part, row] = _KIND_FLOAT
                    elif wire == _FIXED64:
                        numbers[part, row] = data[at : at + 8].view(np.int64)[0]
                        good = op == _SFIXED64 or numbers[part, row] >= 0
                    elif op == _SFIXED32:
                        numbers[part, row] = data[at : at + 4].view(np.int32)[0]
                    else:
                        numbers[part, row] = data[at : at + 4].view(np.uint32)[0]
                    if not good:
                        break
                at += size
            else:  # a group
                good = False
                break
        sure[number] = good

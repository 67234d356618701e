"""A walk over Avro's binary encoding by a program, compiled: it says of each record whether it is one, and finds parts.

Records come from elsewhere, so it is strict and bounded: nothing is read beyond a record's end, a record ends where its
encoding does, texts are UTF-8, and nesting and work have an end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.packing.compiled import U8, Int, compiled_bare
from lagloss_server.packing.varints import avro_long
from taps.extraction import avro_program as program
from taps.extraction import kinds
from taps.extraction.avro_program import AvroProgram
from taps.extraction.columns import I64, ByteColumn, PartTable
from taps.extraction.text import is_utf8

MAX_DEPTH: Final = 64
MAX_EMPTY: Final = 100_000
"""Values of a record, nulls mostly, beyond one for each byte: items that have no bytes could else go on for hours."""
_NULL, _BOOLEAN, _LONG, _FLOAT, _DOUBLE, _STRING = (
    program.NULL, program.BOOLEAN, program.LONG, program.FLOAT, program.DOUBLE, program.STRING,
)  # fmt: skip
_FIXED, _ENUM, _RECORD, _ARRAY, _MAP, _UNION = (
    program.FIXED, program.ENUM, program.RECORD, program.ARRAY, program.MAP, program.UNION,
)  # fmt: skip
_TEXT, _ABSENT = kinds.TEXT, kinds.ABSENT


def find_in_avro(column: ByteColumn, rows: I64, made: AvroProgram, table: PartTable) -> npt.NDArray[np.bool_]:
    """Put the parts of these rows into the table, and return which of them are records of this schema.

    The others may have parts in the table that are to be cleared.
    """
    good = np.zeros(rows.size, np.bool_)
    nodes, left, counts = np.empty((3, MAX_DEPTH), np.int64)
    beside = table.put_beside(made.text.tobytes()) if made.symbols.size else 0
    _walk(
        column.data, column.starts, column.ends, rows, made.arrays, beside,
        table.kinds, table.numbers, table.numbers.view(np.float64), table.starts, table.sizes,
        nodes, left, counts, good,
    )  # fmt: skip
    return good


@compiled_bare
def _pick(data: U8, start: Int, size: Int, index: Int, pick: Int, picks: I64, text: U8) -> Int:
    """Return which pick an item is, -1 if none. A map's item has no index, but a name."""
    while pick >= 0:
        if index >= 0:
            if picks[pick, 2] == index:
                return pick
        elif picks[pick, 4] == size:
            same = True
            for step in range(size):
                if text[picks[pick, 3] + step] != data[start + step]:
                    same = False
                    break
            if same:
                return pick
        pick = picks[pick, 1]
    return -1


@compiled_bare
def _walk(
    data: U8, starts: I64, ends: I64, rows: I64, made: Any, beside: Int,
    found_kinds: Any, numbers: Any, reals: Any, places: Any, sizes: Any,
    nodes: I64, left: I64, counts: I64, good: Any,
) -> None:  # fmt: skip
    """Walk over each record. The stack: `nodes` of containers; `left`, the items of a block still to come; `counts`,
    the items or fields that came before."""
    ops, node_kinds, parts, first, second, links, picks, symbols, text = made
    for number in range(rows.size):
        row = rows[number]
        at, end = starts[row], ends[row]
        depth = 0
        node = 0
        values = at - end - MAX_EMPTY
        while values < 0:
            values += 1
            op = ops[node]
            part = parts[node]
            # read a value; at < 0 means that it is none
            if op == _STRING:
                size, at = avro_long(data, at, end)
                if at < 0 or size < 0 or size > end - at:
                    break
                if node_kinds[node] == _TEXT and not is_utf8(data, at, at + size):
                    break
                if part >= 0:
                    found_kinds[part, row] = node_kinds[node]
                    places[part, row], sizes[part, row] = at, size
                at += size
            elif op == _LONG:
                value, at = avro_long(data, at, end)
                if at < 0:
                    break
                if part >= 0:
                    found_kinds[part, row], numbers[part, row] = node_kinds[node], value
            elif op == _UNION:
                branch, at = avro_long(data, at, end)
                if at < 0 or branch < 0 or branch >= first[node]:
                    break
                node = links[second[node] + branch]
                if ops[node] != _NULL:
                    continue
                if parts[node] >= 0:
                    found_kinds[parts[node], row] = node_kinds[node]
            elif op in (_RECORD, _ARRAY, _MAP):
                if depth == MAX_DEPTH:
                    break
                if part >= 0:
                    found_kinds[part, row] = node_kinds[node]
                nodes[depth], left[depth], counts[depth] = node, 0, 0
                depth += 1
            elif op in (_DOUBLE, _FLOAT, _FIXED):
                size = 8 if op == _DOUBLE else 4 if op == _FLOAT else first[node]
                if size > end - at:
                    break
                if part >= 0:
                    found_kinds[part, row] = node_kinds[node]
                    places[part, row], sizes[part, row] = at, size
                    if op == _DOUBLE:
                        reals[part, row] = data[at : at + 8].view(np.float64)[0]
                    elif op == _FLOAT:
                        reals[part, row] = data[at : at + 4].view(np.float32)[0]
                at += size
            elif op == _BOOLEAN:
                if at >= end or data[at] > 1:
                    break
                if part >= 0:
                    found_kinds[part, row], numbers[part, row] = node_kinds[node], data[at]
                at += 1
            elif op == _ENUM:
                symbol, at = avro_long(data, at, end)
                if at < 0 or symbol < 0 or symbol >= first[node]:
                    break
                if part >= 0:
                    found_kinds[part, row] = node_kinds[node]
                    places[part, row] = beside + symbols[second[node] + symbol, 0]
                    sizes[part, row] = symbols[second[node] + symbol, 1]
            elif part >= 0:  # null
                found_kinds[part, row] = node_kinds[node]
            # on to the next value: the next field, or the next item
            node = -1
            while depth > 0 and node < 0:
                top = depth - 1
                parent = nodes[top]
                if ops[parent] == _RECORD:
                    if counts[top] < first[parent]:
                        node = links[second[parent] + counts[top]]
                        counts[top] += 1
                    else:
                        depth -= 1
                    continue
                if left[top] == 0:
                    items, at = avro_long(data, at, end)
                    if at >= 0 and items < 0:  # and the bytes of the block
                        items = -items
                        size, at = avro_long(data, at, end)
                        if size < 0:
                            at = -1
                    if at < 0 or items < 0:
                        at = -1
                        break
                    if items == 0:
                        depth -= 1
                        continue
                    left[top] = items
                left[top] -= 1
                start, size = 0, 0
                index = counts[top]
                if ops[parent] == _MAP:
                    size, at = avro_long(data, at, end)
                    if at < 0 or size < 0 or size > end - at or not is_utf8(data, at, at + size):
                        at = -1
                        break
                    start = at
                    at += size
                    index = -1
                counts[top] += 1
                node = first[parent]
                if second[parent] >= 0:
                    pick = _pick(data, start, size, index, second[parent], picks, text)
                    if pick >= 0:
                        node = picks[pick, 0]
                        for each in range(picks[pick, 5], picks[pick, 5] + picks[pick, 6]):  # a map may repeat a key
                            found_kinds[links[each], row] = _ABSENT
            if at < 0:
                break
            if depth == 0:
                good[number] = at == end
                break

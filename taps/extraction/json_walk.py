"""A walk over JSON texts that finds the values at some paths, compiled: no object is made of anything else.

It takes only what it is sure of, a valid text in which each path is met once at most. All other records it leaves to
Python's json, which is the judge of what is JSON (json_format.py), and so it does with strings that have escapes and
with numbers that take more than a division.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba.cpython.unsafe.numbers import trailing_zeros

from lagloss_server.packing.compiled import U8, Int, compiled_bare
from taps.extraction import kinds
from taps.extraction.columns import I64, ByteColumn, PartTable
from taps.extraction.text import character_end, mark_end, space_end
from taps.extraction.trie import FlatTrie

U64 = npt.NDArray[np.uint64]
MAX_DEPTH: Final = 64
EXACT: Final = 2**53
"""Integers up to this, and powers of ten up to 22, are float64 without rounding, so their quotient is rounded once."""

_POWERS: Final = 10.0 ** np.arange(23)
_NULL, _BOOL, _INT, _RAW = kinds.NULL, kinds.BOOL, kinds.INT, kinds.RAW
_FLOAT, _TEXT, _OTHER = kinds.FLOAT, kinds.TEXT, kinds.OTHER


_zeros: Any = trailing_zeros
"""How many zero bits a word ends with: numba's own intrinsic."""


def special_bits(data: U8) -> U64:
    """Return a bit for each byte that ends the plain run of a string: a quote, a backslash, a control character, or the
    first of a character beyond ASCII. Bit i of word w is byte 64 w + i."""
    marks = np.zeros(-(-data.size // 64) * 64, np.bool_)
    _mark(data, marks)
    return np.packbits(marks, bitorder="little").view(np.uint64)


@compiled_bare
def _mark(data: U8, marks: Any) -> None:
    for at in range(data.size):  # one branchless expression, which the compiler makes SIMD instructions of
        byte = data[at]
        marks[at] = (byte == 0x22) | (byte == 0x5C) | (byte < 0x20) | (byte >= 0x80)


@compiled_bare
def _run_end(bits: U64, at: Int, end: Int) -> Int:
    """Return the next byte that has its bit set, from this one on; or any place from `end` on."""
    word = at >> 6
    left = bits[word] >> np.uint64(at & 63)
    if left != 0:
        return at + np.int64(_zeros(left))
    word += 1
    while (word << 6) < end:
        if bits[word] != 0:
            return (word << 6) + np.int64(_zeros(bits[word]))
        word += 1
    return end


@compiled_bare
def _string(data: U8, at: Int, end: Int, bits: U64) -> tuple[Int, bool]:
    """Return where a string's closing quote is, from the byte after its opening one, -1 if it is none; and whether it
    is plain: without escapes."""
    plain = True
    while at < end:
        at = _run_end(bits, at, end)
        if at >= end:
            break
        byte = data[at]
        if byte == 0x22:
            return at, plain
        if byte == 0x5C:
            plain = False
            at = _escape_end(data, at + 1, end)
        elif byte >= 0x80:
            at = character_end(data, at, end)
        else:
            break
        if at < 0:
            break
    return -1, False


@compiled_bare
def _escape_end(data: U8, at: Int, end: Int) -> Int:
    """Return where an escape ends, from the byte after its backslash; -1 if it is none."""
    if at >= end:
        return -1
    byte = data[at]
    if byte == 0x75:  # u
        if at + 5 > end:
            return -1
        for each in range(at + 1, at + 5):
            digit = data[each] | 0x20
            if not (0x30 <= data[each] <= 0x39 or 0x61 <= digit <= 0x66):
                return -1
        return at + 5
    for plain in (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
        if byte == plain:
            return at + 1
    return -1


@compiled_bare
def _infinity_end(data: U8, at: Int, end: Int) -> Int:
    """Return where the word `Infinity` ends that begins at this byte, -1 if it does not."""
    for byte in (0x49, 0x6E, 0x66, 0x69, 0x6E, 0x69, 0x74, 0x79):
        if at >= end or data[at] != byte:
            return -1
        at += 1
    return at


@compiled_bare
def _digits(data: U8, at: Int, end: Int) -> Int:
    while at < end and 0x30 <= data[at] <= 0x39:
        at += 1
    return at


@compiled_bare
def _number(data: U8, at: Int, end: Int, powers: Any) -> tuple[Int, Int, Int, float]:
    """Return where a number ends, -1 if it is none; its kind, RAW if its value is left to others; its value as an
    integer and as a float."""
    negative = data[at] == 0x2D
    if negative:
        at += 1
    first = at
    at = _digits(data, at, end)
    whole = at - first
    if whole == 0:
        at = _infinity_end(data, first, end) if negative else -1
        return at, _FLOAT, 0, -np.inf
    if data[first] == 0x30 and whole > 1:
        return -1, 0, 0, 0.0
    fraction = 0
    if at < end and data[at] == 0x2E:
        dot = at + 1
        at = _digits(data, dot, end)
        fraction = at - dot
        if fraction == 0:
            return -1, 0, 0, 0.0
    exponent = False
    if at < end and data[at] | 0x20 == 0x65:
        exponent = True
        at += 1
        if at < end and (data[at] == 0x2B or data[at] == 0x2D):
            at += 1
        power = at
        at = _digits(data, at, end)
        if at == power:
            return -1, 0, 0, 0.0
    if exponent or whole + fraction > 18 + (fraction == 0 and data[first] < 0x39):  # int64 has 19 digits, up to 922…
        return at, _RAW, 0, 0.0
    value: Int = 0
    for each in range(first, at):
        if data[each] != 0x2E:
            value = value * 10 + np.int64(data[each] - 0x30)
    if (value == 0 and negative) or (fraction and value > EXACT):
        return at, _RAW, 0, 0.0
    if negative:
        value = -value
    if fraction:
        return at, _FLOAT, 0, value / powers[fraction]
    return at, _INT, value, 0.0


@compiled_bare
def _child(data: U8, start: Int, size: Int, node: Int, first: I64, after: I64, index: I64, at: I64, sizes: I64,
           names: U8) -> Int:  # fmt: skip
    """Return the child of a node with this name, -1 if there is none."""
    child = first[node]
    while child >= 0:
        if index[child] < 0 and sizes[child] == size:
            same = True
            for step in range(size):
                if names[at[child] + step] != data[start + step]:
                    same = False
                    break
            if same:
                return child
        child = after[child]
    return -1


@compiled_bare
def _item(number: Int, node: Int, first: I64, after: I64, index: I64) -> Int:
    """Return the child of a node with this index, -1 if there is none."""
    child = first[node]
    while child >= 0 and index[child] != number:
        child = after[child]
    return child


def find_in_json(column: ByteColumn, trie: FlatTrie, table: PartTable) -> npt.NDArray[np.bool_]:
    """Put the parts of these records into the table, and return of which rows all is found.

    The other rows are null, or left to Python's json: they may have parts in the table that are to be cleared.
    """
    sure = np.zeros(len(column), np.bool_)
    nodes, counts = np.empty((2, MAX_DEPTH), np.int64)
    seen = np.full(trie.part.size, -1, np.int64)
    _walk(
        column.data, column.starts, column.ends, special_bits(column.data), _POWERS, trie.arrays,
        table.kinds, table.numbers, table.numbers.view(np.float64), table.starts, table.sizes,
        nodes, counts, seen, sure,
    )  # fmt: skip
    return sure


@compiled_bare
def _walk(
    data: U8, starts: I64, ends: I64, bits: U64, powers: Any, trie: Any,
    found_kinds: Any, numbers: Any, reals: Any, places: Any, sizes: Any,
    nodes: I64, counts: I64, seen: I64, sure: Any,
) -> None:  # fmt: skip
    """Walk over each record. The stack: `nodes` of containers, and how many items of an array came before, -1 for an
    object; `seen`: the row in which a node of the trie was last met."""
    first, after, index, name_at, name_sizes, parts, names = trie
    for row in range(starts.size):
        if starts[row] < 0:
            continue
        end = ends[row]
        at = space_end(data, mark_end(data, starts[row], end), end)
        depth = 0
        node = 0
        good = True
        while good:
            if at >= end:
                good = False
                break
            # a value begins here; `node` is its place in the trie, -1 if no path leads there
            part = parts[node] if node >= 0 else -1
            byte = data[at]
            opened = False
            if byte == 0x22:
                start = at + 1
                at, plain = _string(data, start, end, bits)
                if at < 0:
                    good = False
                    break
                if part >= 0:
                    found_kinds[part, row] = _TEXT if plain else _RAW
                    places[part, row], sizes[part, row] = start, at - start
                    if not plain:
                        places[part, row], sizes[part, row] = start - 1, at - start + 2
                at += 1
            elif byte == 0x7B or byte == 0x5B:
                if depth == MAX_DEPTH:
                    good = False
                    break
                if part >= 0:
                    found_kinds[part, row] = _OTHER
                nodes[depth] = node
                counts[depth] = -1 if byte == 0x7B else 0
                depth += 1
                at = space_end(data, at + 1, end)
                if at < end and data[at] == byte + 2:  # its closing bracket
                    at += 1
                    depth -= 1
                else:
                    opened = True
            elif byte == 0x2D or 0x30 <= byte <= 0x39:
                start = at
                at, kind, whole, real = _number(data, at, end, powers)
                if at < 0:
                    good = False
                    break
                if part >= 0:
                    found_kinds[part, row] = kind
                    places[part, row], sizes[part, row] = start, at - start
                    if kind == _FLOAT:
                        reals[part, row] = real
                    else:
                        numbers[part, row] = whole
            elif (
                byte == 0x74
                and at + 4 <= end
                and data[at + 1] == 0x72
                and data[at + 2] == 0x75
                and data[at + 3] == 0x65
            ):
                at += 4
                if part >= 0:
                    found_kinds[part, row], numbers[part, row] = _BOOL, 1
            elif (
                byte == 0x66 and at + 5 <= end and data[at + 1] == 0x61 and data[at + 2] == 0x6C
                and data[at + 3] == 0x73 and data[at + 4] == 0x65
            ):  # fmt: skip
                at += 5
                if part >= 0:
                    found_kinds[part, row], numbers[part, row] = _BOOL, 0
            elif (
                byte == 0x6E
                and at + 4 <= end
                and data[at + 1] == 0x75
                and data[at + 2] == 0x6C
                and data[at + 3] == 0x6C
            ):
                at += 4
                if part >= 0:
                    found_kinds[part, row] = _NULL
            elif byte == 0x49:
                at = _infinity_end(data, at, end)
                if at < 0:
                    good = False
                    break
                if part >= 0:
                    found_kinds[part, row], reals[part, row] = _FLOAT, np.inf
            elif byte == 0x4E and at + 3 <= end and data[at + 1] == 0x61 and data[at + 2] == 0x4E:
                at += 3
                if part >= 0:
                    found_kinds[part, row], reals[part, row] = _FLOAT, np.nan
            else:
                good = False
                break
            # the value has ended, or a container has begun: on to the next value
            if not opened:
                closed = True
                while closed:
                    at = space_end(data, at, end)
                    if depth == 0:
                        break
                    if at >= end:
                        good = False
                        break
                    byte = data[at]
                    at += 1
                    if byte == 0x2C:
                        at = space_end(data, at, end)
                        if counts[depth - 1] >= 0:
                            counts[depth - 1] += 1
                        closed = False
                    elif byte == (0x7D if counts[depth - 1] < 0 else 0x5D):
                        depth -= 1
                    else:
                        good = False
                        break
                if not good:
                    break
                if depth == 0:
                    good = at == end
                    break
            parent = nodes[depth - 1]
            node = -1
            if counts[depth - 1] >= 0:
                if parent >= 0:
                    node = _item(counts[depth - 1], parent, first, after, index)
                continue
            if at >= end or data[at] != 0x22:
                good = False
                break
            start = at + 1
            at, plain = _string(data, start, end, bits)
            if at < 0 or (not plain and parent >= 0):
                good = False
                break
            if parent >= 0:
                node = _child(data, start, at - start, parent, first, after, index, name_at, name_sizes, names)
                if node >= 0:
                    if seen[node] == row:  # the same name twice: the last one counts
                        good = False
                        break
                    seen[node] = row
            at = space_end(data, at + 1, end)
            if at >= end or data[at] != 0x3A:
                good = False
                break
            at = space_end(data, at + 1, end)
        sure[row] = good

"""Text in compiled loops."""

from __future__ import annotations

from lagloss_server.packing.compiled import U8, Int, compiled_bare


@compiled_bare
def character_end(data: U8, at: Int, end: Int) -> Int:
    """Return where the character ends that begins at this byte of 0x80 or more; -1 if it is no UTF-8 (RFC 3629)."""
    first = data[at]
    if first < 0xC2 or first > 0xF4:
        return -1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > end:
        return -1
    second = data[at + 1]
    low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
    if second < low or second > high:
        return -1
    for step in range(2, size):
        if data[at + step] & 0xC0 != 0x80:
            return -1
    return at + size


@compiled_bare
def space_end(data: U8, at: Int, end: Int) -> Int:
    """Return where the white space ends, as JSON has it, that begins at this byte."""
    while at < end and (data[at] == 0x20 or data[at] == 0x0A or data[at] == 0x0D or data[at] == 0x09):
        at += 1
    return at


@compiled_bare
def mark_end(data: U8, at: Int, end: Int) -> Int:
    """Return where a text begins, behind a byte order mark if it has one."""
    if end - at >= 3 and data[at] == 0xEF and data[at + 1] == 0xBB and data[at + 2] == 0xBF:
        return at + 3
    return at


@compiled_bare
def is_utf8(data: U8, at: Int, end: Int) -> bool:
    """Return whether these bytes are UTF-8."""
    high = 0
    for each in range(at, end):  # plain ASCII, the most frequent, without a branch a byte
        high |= data[each]
    if high < 0x80:
        return True
    while at < end:
        at = at + 1 if data[at] < 0x80 else character_end(data, at, end)
        if at < 0:
            return False
    return True

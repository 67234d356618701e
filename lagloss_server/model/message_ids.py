"""Message ids as text that a database, a terminal and a page can hold: control characters escaped, reversibly.

The names of messages are in this form from the moment they are read from a block; JSON, which can spell every
character, has the ids themselves.
"""

from __future__ import annotations

import re
import sys
import unicodedata

from lagloss.wire.format import hash_id

_UNSHOWN = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Unicode categories without a glyph of their own: controls, joiners and marks of direction, separators."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def readable_id(raw: bytes) -> str:
    r"""Return a packed message id, escaped. Bytes that are no UTF-8, which no emitter of ours sends, are `\xNN`."""
    return escape_id(raw.decode("utf-8", "backslashreplace"))


def escape_id(message_id: str) -> str:
    r"""Return the id with characters that cannot be seen as `\xNN`, `\uNNNN` or `\UNNNNNNNN`.

    Most ids come back as they are. A backslash that could be taken for the beginning of such an escape is `\x5c`.
    """
    if message_id.isascii() and message_id.isprintable() and "\\" not in message_id:
        return message_id
    return "".join(
        _escaped(char) if _must_be_escaped(char, message_id[index + 1 : index + 2]) else char
        for index, char in enumerate(message_id)
    )


def unescape_id(escaped: str) -> str:
    """Return the id that `escape_id` made this of."""
    return _ESCAPE.sub(_unescaped, escaped)


def hashes_of(id_text: str) -> list[int]:
    """Return the hashes that this text may name a message by: it may be an id, an escaped id, or a hash in hex."""
    is_hex = len(id_text) == 16 and set(id_text.lower()) <= set("0123456789abcdef")
    return [*map(hash_id, dict.fromkeys((id_text, unescape_id(id_text)))), *([int(id_text, 16)] if is_hex else [])]


def _must_be_escaped(char: str, following: str) -> bool:
    if char == "\\":
        return following in ("x", "u", "U")
    return unicodedata.category(char) in _UNSHOWN


def _unescaped(match: re.Match[str]) -> str:
    code = int(match[1] or match[2] or match[3], 16)
    is_character = code <= sys.maxunicode and not 0xD800 <= code < 0xE000
    return chr(code) if is_character else match[0]


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

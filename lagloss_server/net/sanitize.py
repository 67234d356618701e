"""Sanitizing of texts from other hosts: secrets redacted, in any encoding, and control characters removed."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

HIDDEN: Final = "***"
_SHORTEST_PART: Final = 4
"""Parts of an address shorter than this (`/v2`, `?a=1`) are no secrets; redacting them would make texts unreadable."""

_TURNING: Final = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the text direction, and so could disguise the following text."""


class Redactor:
    """Replaces these secrets, and the given addresses with all their parts, in texts."""

    def __init__(self, secrets: Iterable[str] = (), urls: Iterable[str] = ()) -> None:
        needles = {secret for secret in secrets if secret}
        for url in urls:
            needles.update(_parts(url))
        forms = sorted({form for needle in needles for form in _forms(needle)}, key=len, reverse=True)
        self.longest = len(forms[0]) if forms else 0
        """Characters of the longest text that is redacted."""
        self._pattern = re.compile("|".join(map(re.escape, forms)), re.IGNORECASE) if forms else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


def _parts(url: str) -> Iterator[str]:
    """Yield the address and its parts that may be secret; also its host, in which some services put a token."""
    yield url
    parts = urlsplit(url)
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        yield from (pair, b64encode(pair.encode()).decode())
    secrets = [parts.username, parts.password, parts.hostname, parts.netloc, parts.path, parts.query, parts.fragment]
    secrets += parts.path.split("/")
    secrets += [value for _, value in parse_qsl(parts.query)]
    yield from (part for part in secrets if part and len(part) >= _SHORTEST_PART)
    if parts.password:
        yield parts.password


def _forms(needle: str) -> Iterator[str]:
    """Yield a text as it is, and as it is encoded in URLs, JSON and HTML."""
    for text in (needle, unquote(needle)):
        escaped = json.dumps(text)[1:-1]
        yield from (text, quote(text, safe=""), quote(text), escaped, escaped.replace("/", "\\/"), html.escape(text))


def one_line(value: object, limit: int) -> str:
    """Return at most `limit` characters, without line breaks and other control characters."""
    text = str(value)[: 2 * limit + 100]  # enough: only white space gets shorter, and this need not be exact
    printable = "".join(" " if _controls(character) else character for character in text)
    printable = " ".join(printable.split())
    return printable if len(printable) <= limit else printable[: limit - 1].rstrip() + "…"


def _controls(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _TURNING

"""Where a login leads to: a path of this site, and no other."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from starlette.requests import HTTPConnection

HOME: Final = "/"
_MAX_LENGTH: Final = 4_096
_LOCAL: Final = re.compile(r"/(?!/)[^\x00-\x20\x7f\\]*")
"""Browsers take a backslash for a slash and leave tabs and line ends out, so `/\\t/evil.example` is another site."""
_OWN_PAGES: Final = ("/login", "/logout")


def checked_next(text: str) -> str:
    """Return the path and query that `text` is, fit for a header; the home page if it is anything else."""
    path = text.partition("?")[0].rstrip("/")
    if len(text) > _MAX_LENGTH or not _LOCAL.fullmatch(text) or path.startswith(_OWN_PAGES):
        return HOME
    return quote(text, safe="/?#[]@!$&'()*+,;=:%-._~", errors="replace")


def wanted(connection: HTTPConnection) -> str:
    """Return the requested path and query, to come back to."""
    raw = connection.scope.get("raw_path") or quote(connection.scope["path"]).encode()
    query = connection.scope.get("query_string", b"")
    return checked_next((raw + (b"?" + query if query else b"")).decode("latin-1"))

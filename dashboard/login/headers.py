"""Headers on every answer that restrict what the dashboard's pages may do, and other sites with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from dashboard.request.links import STATIC

_YEAR_S: Final = 31_536_000
_FIXED: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send `Origin: null` with our own forms
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def content_security_policy(script_hashes: Sequence[str]) -> str:
    """Scripts: files of ours, and the inline ones with these hashes (`sha256-…`). Styles may stand inline: Plotly,
    Mantine and AG Grid write them."""
    scripts = " ".join(["'self'", *(f"'{script_hash.strip(chr(39))}'" for script_hash in script_hashes)])
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


class SecureHeaders:
    """Headers added to each answer. `is_https`: whether people reach the dashboard by HTTPS."""

    def __init__(self, script_hashes: Sequence[str], *, is_https: bool) -> None:
        self._headers = {**_FIXED, "Content-Security-Policy": content_security_policy(script_hashes)}
        if is_https:
            self._headers["Strict-Transport-Security"] = f"max-age={_YEAR_S}"

    def added(self, scope: Scope, send: Send) -> Send:
        """Wrap `send` so that the answer to this request has the headers, in place of the application's own.

        Browsers may keep the program's own files, and nothing else.
        """
        is_static = scope["path"].startswith(STATIC)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                if not (is_static and message["status"] in (200, 304)):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        return send_with_headers

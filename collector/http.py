"""uvicorn's faster HTTP protocol, with a bound on request line and headers, which only its slower one has."""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 16 * 1024
"""Request line and headers, without the piece in which they begin: that has 256 KiB at most, and may be all there is
of the request."""


class BoundedHttp(HttpToolsProtocol):
    """Hangs up on a client whose request has more than `MAX_HEAD_BYTES` before its body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = False
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request line and headers too large")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

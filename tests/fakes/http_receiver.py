"""An HTTP server that keeps what it was sent and answers as it is told."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpReceiver:
    """Runs while its block does, on loopback. Answers with the next of `replies`; with `answer` when there are none.
    `ahead_s`: by how much its clock is ahead."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self.ahead_s = 0.0
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.port = self._server.server_port
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}"

    def answer(self, request: Request) -> Reply:
        """What a request is answered with; 200 unless a fake knows better."""
        return Reply()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                receiver.requests.append(request)
                reply = receiver.replies.pop(0) if receiver.replies else receiver.answer(request)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_HEAD = do_POST  # noqa: N815  # as http.server names it

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string((timestamp or time.time()) + receiver.ahead_s)

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

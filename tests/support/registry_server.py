"""A schema registry that speaks the part of Confluent's REST API that lagloss asks for, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOT_FOUND = 404, {"error_code": 40403, "message": "Schema not found"}


@dataclass
class RegistryServer:
    """`answers`: status and document of each place, as `/schemas/ids/1`; other places are not found."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    url: str = ""


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """It listens on a port of its own until the end."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.authorization.append(self.headers.get("Authorization"))
            status, document = registry.answers.get(self.path, NOT_FOUND)
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        registry.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
